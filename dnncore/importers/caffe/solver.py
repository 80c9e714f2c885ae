"""solver.prototxt: what it says of a training run, and what the net's data layers say of images and batches.

Nothing here is a decision: `dnncore.train.caffe_solver` makes a configuration of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dnncore.errors import ModelImportError
from dnncore.importers.caffe.dnncore_caffe_pb2 import (
    DataParameter,
    LayerParameter,
    LossParameter,
    NetParameter,
    SolverParameter,
)
from dnncore.importers.caffe.net_state import NetState
from dnncore.importers.caffe.reading import Source, name_of, read_text
from dnncore.importers.caffe.upgrade import upgraded_layers

__all__ = ["DATA_LAYERS", "DataLayer", "data_layer", "has_batch_norm", "losses_of_parts", "read_solver", "solver_type"]

DATA_LAYERS = ("Data", "DummyData", "HDF5Data", "ImageData", "MemoryData", "WindowData")

_OLD_TYPES = {0: "SGD", 1: "Nesterov", 2: "AdaGrad", 3: "RMSProp", 4: "AdaDelta", 5: "Adam"}


@dataclass(frozen=True)
class DataLayer:
    """Where the images of a phase come from. Immutable.

    Args:
        name: Of the layer.
        type: Its type: "ImageData", "HDF5Data", ...
        source: The file or database that it names.
        backend: Of a database: "LMDB" or "LEVELDB"; else "".
        root: Folder that paths in the source count from.
        batch: Images an iteration; 0 where it says none.
        mirror: Whether images are mirrored at random.
        crop_size: Extent of the crop; 0 for none.
        transforms: Whether it says what is done to images; what is in memory is taken as it is.
    """

    name: str
    type: str
    source: str
    backend: str
    root: str
    batch: int
    mirror: bool
    crop_size: int
    transforms: bool


def read_solver(source: Source) -> SolverParameter:
    """Parse a solver's definition.

    Raises:
        ModelImportError: it cannot be read or is malformed, or says its type in the old way and in the new.
    """
    solver = read_text(source, SolverParameter)
    if solver.HasField("solver_type") and solver.HasField("type"):
        raise ModelImportError(name_of(source), ["gives both type and solver_type; one is needed"])
    return solver


def solver_type(solver: SolverParameter) -> str:
    """The name of its method, also where an old file says it by number."""
    return _OLD_TYPES[solver.solver_type] if solver.HasField("solver_type") else solver.type


def data_layer(prototxt: Path, phase: str) -> DataLayer | None:
    """The layer that reads images in a phase; None where the net has inputs instead.

    Raises:
        ModelImportError: the file cannot be read or is malformed.
    """
    for layer in _layers(prototxt, phase):
        if layer.type in DATA_LAYERS:
            param = _settings(layer)
            transform = layer.transform_param
            backend = DataParameter.DB.Name(layer.data_param.backend) if layer.type == "Data" else ""
            return DataLayer(
                *(layer.name, layer.type, getattr(param, "source", ""), backend, getattr(param, "root_folder", "")),
                *(getattr(param, "batch_size", 0), transform.mirror, transform.crop_size),
                layer.HasField("transform_param") or layer.type == "MemoryData",
            )
    return None


def has_batch_norm(prototxt: Path) -> bool:
    """Whether the net, while it is trained, normalises with statistics of the batch."""
    layers = _layers(prototxt, "train")
    return any(layer.type == "BatchNorm" and not layer.batch_norm_param.use_global_stats for layer in layers)


def losses_of_parts(prototxt: Path) -> tuple[str, ...]:
    """Names of the layers whose loss of a batch is not the mean of those of its parts: sums, and means of what is not ignored."""
    return tuple(
        layer.name
        for layer in _layers(prototxt, "train")
        if layer.HasField("loss_param")
        and (layer.loss_param.normalization == LossParameter.NONE or layer.loss_param.HasField("ignore_label"))
    )


def _settings(layer: LayerParameter) -> object:
    return {
        "Data": layer.data_param,
        "DummyData": layer.dummy_data_param,
        "HDF5Data": layer.hdf5_data_param,
        "ImageData": layer.image_data_param,
        "MemoryData": layer.memory_data_param,
        "WindowData": layer.window_data_param,
    }[layer.type]


def _layers(prototxt: Path, phase: str) -> list[LayerParameter]:
    layers, problems = upgraded_layers(read_text(prototxt, NetParameter))
    if problems:
        raise ModelImportError(str(prototxt), problems)
    return NetState(phase).kept(layers)
