"""What a weights file holds, as a graph's constants: matched by the names of layers, as Caffe does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dnncore.errors import ModelImportError
from dnncore.importers.caffe.blobs import extents, fits, to_array
from dnncore.importers.caffe.dnncore_caffe_pb2 import BlobProto, NetParameter
from dnncore.importers.caffe.net import Stored
from dnncore.importers.caffe.reading import Source, name_of, read_binary
from dnncore.importers.caffe.upgrade import stored_blobs
from dnncore.nn.graph import Constant

__all__ = ["read_weights"]


def read_weights(
    source: Source, stored: Mapping[str, Stored], constants: Mapping[str, Constant], *, allow_missing: bool
) -> dict[str, np.ndarray]:
    """The constants that a `.caffemodel` holds. Layers of the file that the net does not have are passed over.

    Args:
        source: The file.
        stored: What is wanted, by the names of layers.
        constants: What is made of it.
        allow_missing: Whether layers that the file does not have may keep what they begin with.

    Raises:
        ModelImportError: it cannot be read, layers have no weights in it, or have others; the message lists them all.
    """
    what = name_of(source)
    blobs: dict[str, Sequence[BlobProto]] = {}
    for name, found in stored_blobs(read_binary(source, NetParameter)):
        if len(list(found)) and name in stored:
            blobs.setdefault(name, list(found))
    problems = [_problem(name, blobs.get(name), wanted, allow_missing) for name, wanted in stored.items()]
    if any(problems):
        raise ModelImportError(what, [problem for problem in problems if problem])
    weights: dict[str, np.ndarray] = {}
    for name, found in blobs.items():
        wanted = stored[name]
        arrays = [
            to_array(blob, f"{what}: layer {name!r}: blob {place}").reshape(shape)
            for place, (blob, shape) in enumerate(zip(found, wanted.shapes, strict=True))
        ]
        for constant, convert in wanted.fills.items():
            weights[constant] = np.ascontiguousarray(convert(arrays)).reshape(constants[constant].shape)
    return weights


def _problem(name: str, found: Sequence[BlobProto] | None, wanted: Stored, allow_missing: bool) -> str | None:
    if found is None:
        return (
            None if allow_missing else f"layer {name!r} has no weights in the file; `allow_missing` keeps its fillers"
        )
    if len(found) != len(wanted.shapes):
        return f"layer {name!r} has {len(found)} blobs in the file, the net needs {len(wanted.shapes)}; or rename the layer"
    for place, (blob, shape) in enumerate(zip(found, wanted.shapes, strict=True)):
        if not fits(blob, shape):
            theirs = list(extents(blob))
            return f"layer {name!r}: blob {place} is {theirs} in the file, the net needs {list(shape)}; or rename the layer"
    return None
