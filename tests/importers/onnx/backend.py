"""dnncore as a backend of onnx.backend.test.

Operands of dtypes that no device has (int64 shapes, weights of 4 bits) are taken as constants, and so are all of a node that
gives such dtypes where it can be folded; everything else is computed on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto
from onnx.backend.base import Backend, BackendRep

from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.importers.onnx.folding import FOLDS
from dnncore.importers.onnx.importing import Imports, import_nodes
from dnncore.importers.onnx.limits import Limits
from dnncore.importers.onnx.reading import Opened
from dnncore.importers.onnx.tensors import DTYPES
from dnncore.importers.onnx.values import Known
from dnncore.nn import Executor, Parameters

_SETTINGS: Mapping[str, tuple[int, ...]] = {
    "CastLike": (1,), "Dropout": (1, 2), "Pad": (2,), "Range": (0, 1, 2), "Resize": (1, 2, 3), "TopK": (1,), "Upsample": (1,)
}  # fmt: skip
"""Operands that are settings, and what these are made of: exporters write constants there, the cases of onnx inputs."""


class DnncoreRep(BackendRep):
    """A model whose shapes are known when it runs."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model

    def run(self, inputs: Sequence[np.ndarray], **_: Any) -> tuple[np.ndarray, ...]:
        weights = {one.name for one in self._model.graph.initializer}
        names = [one.name for one in self._model.graph.input if one.name not in weights]
        return run(self._model, dict(zip(names, inputs, strict=True)))


class DnncoreBackend(Backend):
    """On the CPU."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **_: Any) -> DnncoreRep:
        return DnncoreRep(model)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


def run(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """The outputs of a model."""
    imports, rest = imports_of(model, feeds)
    wanted = [name for name, found in imports.outputs.items() if not isinstance(found, Known)]
    computed = _computed(imports, wanted, rest) if wanted else {}
    for one in model.graph.output:  # indices are int32 in a net
        if one.name in computed and computed[one.name].dtype == np.int32:
            computed[one.name] = computed[one.name].astype(DTYPES[one.type.tensor_type.elem_type])
    return tuple(found.few if isinstance(found, Known) else computed[name] for name, found in imports.outputs.items())


def imports_of(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> tuple[Imports, dict[str, np.ndarray]]:
    """A model whose settings, and what no device has a dtype for, are constants; and the other feeds."""
    settings: set[str] = set()
    for node in reversed(model.graph.node):
        made = node.op_type != "Shape" and settings.intersection(node.output)  # of other settings
        settings |= {
            name
            for index, name in enumerate(node.input)
            if made or index in _SETTINGS.get(node.op_type, ()) or _is_folded(model, node)
        }
    given = {
        name: np.asarray(array)
        for name, array in feeds.items()
        if _is_known(array) and (name in settings or not _is_on_devices(array))
    }
    imports = import_nodes(Opened(model, "case", None), {}, given, Limits())
    return imports, {name: array for name, array in feeds.items() if name not in given}


def _is_known(array: np.ndarray) -> bool:
    return isinstance(array, np.ndarray | np.generic) and array.dtype in DTYPES.values()


def _is_on_devices(array: np.ndarray) -> bool:
    """Whether devices compute with such; pixels they only cast and move."""
    return _is_device_dtype(array.dtype)


def _is_device_dtype(dtype: np.dtype) -> bool:
    try:
        return DType.of(dtype) is not DType.UINT8
    except BadParamError:
        return False


def _is_folded(model: ModelProto, node: NodeProto) -> bool:
    """Whether none of a node's results, which are outputs, has a dtype that devices compute with."""
    dtypes = {one.name: one.type.tensor_type.elem_type for one in model.graph.output}
    found = [DTYPES.get(dtypes.get(name, 0)) for name in node.output]
    return node.op_type in FOLDS and not any(dtype is None or _is_device_dtype(dtype) for dtype in found)


def _computed(imports: Imports, wanted: Sequence[str], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    model = imports.model(wanted)
    with (
        Handle("cpu") as handle,
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        Executor(model.graph, handle, parameters, 1) as executor,
    ):
        return {name: array.copy() for name, array in executor.run(feeds).items()}
