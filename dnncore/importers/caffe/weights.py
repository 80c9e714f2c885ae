"""What a weights file holds, as a graph's constants: matched by the names of layers, as Caffe does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dnncore.errors import ModelImportError
from dnncore.importers.caffe.blobs import extents, fits, to_array
from dnncore.importers.caffe.dnncore_caffe_pb2 import BlobProto, NetParameter
from dnncore.importers.caffe.net import Stored
from dnncore.importers.caffe.reading import Source, name_of, read_binary
from dnncore.importers.caffe.upgrade import stored_blobs
from dnncore.importers.hdf5 import array_at, is_hdf5, opened
from dnncore.nn.graph import Constant

__all__ = ["read_weights"]


def read_weights(
    source: Source, stored: Mapping[str, Stored], constants: Mapping[str, Constant], *, allow_missing: bool
) -> dict[str, np.ndarray]:
    """The constants that a `.caffemodel` or a `.caffemodel.h5` holds. Layers that the net does not have are passed over.

    Args:
        source: The file; HDF5 by its path only.
        stored: What is wanted, by the names of layers.
        constants: What is made of it.
        allow_missing: Whether layers that the file does not have may keep what they begin with.

    Raises:
        ModelImportError: it cannot be read, layers have no weights in it, or have others; the message lists them all.
        BackendUnavailableError: it is HDF5, and h5py is not there.
    """
    what = name_of(source)
    if isinstance(source, bytes) or not _is_hdf5(Path(source)):
        found: dict[str, Sequence[_Blob]] = {}
        for name, blobs in stored_blobs(read_binary(source, NetParameter)):
            if name in stored and (messages := [_Message(blob) for blob in blobs]):
                found.setdefault(name, messages)
        return _weights(what, found, stored, constants, allow_missing)
    with opened(Path(source)) as root:
        arrays = {name: _numbered(root, f"data/{name}", len(one.shapes)) for name, one in stored.items()}
        return _weights(what, {name: one for name, one in arrays.items() if one}, stored, constants, allow_missing)


class _Blob(Protocol):
    """A blob of a file of which only the extents are known so far."""

    @property
    def extents(self) -> tuple[int, ...]:
        """As the file says them."""
        ...

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether they are these."""
        ...

    def array(self, what: str) -> np.ndarray:
        """float32."""
        ...


@dataclass(frozen=True)
class _Message:
    """Of a `.caffemodel`. Immutable."""

    blob: BlobProto

    @property
    def extents(self) -> tuple[int, ...]:
        return extents(self.blob)

    def fits(self, shape: Sequence[int]) -> bool:
        return fits(self.blob, shape)

    def array(self, what: str) -> np.ndarray:
        return to_array(self.blob, what)


@dataclass(frozen=True)
class _Dataset:
    """Of HDF5, while the file is open. Immutable."""

    dataset: Any

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(self.dataset.shape)

    def fits(self, shape: Sequence[int]) -> bool:
        return self.extents == tuple(shape)

    def array(self, what: str) -> np.ndarray:  # noqa: ARG002
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, as in a cast
            return np.asarray(self.dataset[()], np.float32)


def _numbered(root: Any, group: str, most: int) -> list[_Dataset]:
    """The arrays "0", "1", ... of a group, and one more than are wanted if there is one."""
    found: list[_Dataset] = []
    while len(found) <= most and (dataset := array_at(root, f"{group}/{len(found)}")) is not None:
        found.append(_Dataset(dataset))
    return found


def _is_hdf5(path: Path) -> bool:
    try:
        return is_hdf5(path)
    except (OSError, ValueError):
        return False  # which reading it as a message says better


def _weights(
    what: str,
    blobs: Mapping[str, Sequence[_Blob]],
    stored: Mapping[str, Stored],
    constants: Mapping[str, Constant],
    allow_missing: bool,
) -> dict[str, np.ndarray]:
    problems = [_problem(name, blobs.get(name), wanted, allow_missing) for name, wanted in stored.items()]
    if any(problems):
        raise ModelImportError(what, [problem for problem in problems if problem])
    weights: dict[str, np.ndarray] = {}
    for name, found in blobs.items():
        wanted = stored[name]
        arrays = [
            blob.array(f"{what}: layer {name!r}: blob {place}").reshape(shape)
            for place, (blob, shape) in enumerate(zip(found, wanted.shapes, strict=True))
        ]
        for constant, convert in wanted.fills.items():
            weights[constant] = np.ascontiguousarray(convert(arrays)).reshape(constants[constant].shape)
    return weights


def _problem(name: str, found: Sequence[_Blob] | None, wanted: Stored, allow_missing: bool) -> str | None:
    if found is None:
        return (
            None if allow_missing else f"layer {name!r} has no weights in the file; `allow_missing` keeps its fillers"
        )
    if len(found) != len(wanted.shapes):
        return f"layer {name!r} has {len(found)} blobs in the file, the net needs {len(wanted.shapes)}; or rename the layer"
    for place, (blob, shape) in enumerate(zip(found, wanted.shapes, strict=True)):
        if not blob.fits(shape):
            theirs = list(blob.extents)
            return f"layer {name!r}: blob {place} is {theirs} in the file, the net needs {list(shape)}; or rename the layer"
    return None
