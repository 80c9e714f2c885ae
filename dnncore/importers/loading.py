"""Any file that holds a model, and any net of the zoo, as a model: which importer reads a file follows from what it is called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from dnncore.errors import BackendUnavailableError, ModelImportError
from dnncore.nn.graph import BATCH, Extent
from dnncore.nn.model import Model
from dnncore.nn.package import Package
from dnncore.nn.zoo import ZOO
from dnncore.preprocessing import Preprocessing

__all__ = ["caffemodel_beside", "load_model", "load_preprocessing", "protobuf_for"]


_OF_PYTORCH = (
    "; weights of PyTorch come with their model, in Python: dnncore.torch.save_package(model, example, FOLDER), "
    "or torch.onnx.export (docs/from_pytorch.md)"
)
_REMEDIES = dict.fromkeys((".bin", ".ckpt", ".pt", ".pt2", ".pth", ".safetensors"), _OF_PYTORCH)
"""What to do with files of other kinds, by their suffix."""


def load_model(
    path: Path,
    weights: Path | None = None,
    *,
    phase: str = "test",
    shapes: Mapping[str, Sequence[Extent]] | None = None,
) -> Model:
    """The net and the weights of a model package (a folder), of an .onnx file or of a .prototxt; or a net of the zoo, not trained.

    Args:
        path: Where it is; or a name of the zoo.
        weights: The .caffemodel of a .prototxt; None for the one of the same stem beside it, or what its fillers make.
        phase: Of a .prototxt: "test" or "train".
        shapes: Of inputs by name, where a file leaves them open or others are wanted; "N" is the batch. For .onnx and .prototxt:
            a package, and a net of the zoo, has its own.

    Raises:
        PackageError: a package cannot be read.
        ModelImportError: a file is malformed, or has what cannot be imported, or nobody knows its kind; the message says it all.
        BackendUnavailableError: the library that reads such files is not there; the message says how to install it.
    """
    if weights is not None and path.suffix != ".prototxt":
        raise ModelImportError(str(path), [f"it brings its own weights; {weights} goes with a .prototxt"])
    if shapes and path.suffix not in (".onnx", ".prototxt"):
        named = ", ".join(shapes)
        raise ModelImportError(
            str(path), [f"it has extents of its own; those given for {named} go with an .onnx file or a .prototxt"]
        )
    if path.is_dir():
        package = Package.load(path)
        return Model(package.graph, package.weights)
    if path.suffix == ".onnx":
        from dnncore.importers.onnx import import_onnx

        return import_onnx(path, shapes=shapes)
    if path.suffix == ".prototxt":
        with protobuf_for(path):
            from dnncore.importers.caffe import import_caffe
        weights = weights or caffemodel_beside(path)
        return import_caffe(path, weights, phase=phase, input_shapes=_without_batch(path, shapes or {}))
    if (name := str(path)) in ZOO:
        graph = ZOO[name]()
        return Model(graph, graph.initialize(seed=0))
    kinds = "a model package (a folder), an .onnx file, a .prototxt"
    remedy = _REMEDIES.get(path.suffix, "")
    raise ModelImportError(name, [f"it is none of {kinds}, and none of the zoo's {', '.join(ZOO)}{remedy}"])


def load_preprocessing(
    path: Path,
    input_shape: tuple[int, ...] | None = None,
    *,
    crop: bool = True,
    image_shape: tuple[int, ...] | None = None,
) -> Preprocessing:
    """What the .prototxt by which a net of Caffe was trained does to images; as `dnncore.importers.caffe.read_preprocessing`.

    Raises:
        BackendUnavailableError: protobuf is not there.
    """
    with protobuf_for(path):
        from dnncore.importers.caffe import read_preprocessing
    return read_preprocessing(path, input_shape, crop=crop, image_shape=image_shape)


@contextmanager
def protobuf_for(path: Path) -> Iterator[None]:
    """Around imports of what reads a .prototxt.

    Raises:
        BackendUnavailableError: protobuf is not there; the message says how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise BackendUnavailableError(f"{path} is read with {error.name}: pip install dnncore[caffe]") from error


def caffemodel_beside(path: Path) -> Path | None:
    """A .prototxt's weights: the .caffemodel of the same stem in the same folder; None where there is none."""
    weights = path.with_suffix(".caffemodel")
    return weights if path.suffix == ".prototxt" and weights.is_file() else None


def _without_batch(path: Path, shapes: Mapping[str, Sequence[Extent]]) -> dict[str, tuple[int, ...]]:
    """Shapes as Caffe's importer takes them: without N, which comes first."""
    wrong = [name for name, shape in shapes.items() if not shape or shape[0] != BATCH or not _are_numbers(shape[1:])]
    if wrong:
        raise ModelImportError(str(path), [f"input {name!r}: a shape begins with {BATCH}" for name in wrong])
    return {name: tuple(int(extent) for extent in shape[1:]) for name, shape in shapes.items()}


def _are_numbers(extents: Sequence[Extent]) -> bool:
    return all(isinstance(extent, int) for extent in extents)
