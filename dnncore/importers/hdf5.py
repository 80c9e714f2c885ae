"""HDF5 files that nobody vouches for, through h5py: what lies in the file itself is read, once its extents are known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dnncore.errors import BackendUnavailableError, DnncoreError, ModelImportError

__all__ = ["array_at", "is_hdf5", "member", "opened"]

_MAGIC = b"\x89HDF\r\n\x1a\n"
_MAX_BYTES = (2 << 30) - 1
"""Of what is read at a time."""

_MAX_CHUNK = 1 << 20
"""Elements that are unpacked together, where an array has fewer."""


def is_hdf5(path: Path) -> bool:
    """Whether a file begins as HDF5 does.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The root group of a file, for reading.

    Raises:
        BackendUnavailableError: h5py is not there; the message says how to install it.
        ModelImportError: it is not there, no HDF5 file, or a damaged one.
    """
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise BackendUnavailableError(f"{path} is read with h5py: pip install dnncore[hdf5]") from error
    try:
        with h5py.File(path, "r") as file:
            yield file
    except DnncoreError:
        raise
    except FileNotFoundError as error:
        raise ModelImportError(str(path), ["is not there"]) from error
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:  # what h5py makes of a damaged file
        raise ModelImportError(str(path), [f"is no HDF5 file, or damaged: {error}"]) from error


def member(group: Any, name: str) -> Any | None:
    """A member of a group, at the end of a path with "/"; None where there is none.

    Raises:
        ModelImportError: a link on the way leads out of the file.
    """
    import h5py

    for part in name.split("/"):
        if not isinstance(group, h5py.Group) or part not in group:
            return None
        link = group.get(part, getlink=True)
        if not isinstance(link, h5py.HardLink):
            kind = type(link).__name__
            raise ModelImportError(
                group.file.filename, [f"{group.name}/{part} is a {kind}; only what lies in the file is read"]
            )
        group = group[part]
    return group


def array_at(group: Any, name: str, *, by_row: bool = False) -> Any | None:
    """An array of numbers as it lies in the file, of which nothing is read yet; None where there is none.

    Args:
        group: Where it is.
        name: Within the group.
        by_row: Whether it is read a row of its first dimension at a time, so that it may be as large as the file.

    Raises:
        ModelImportError: its elements lie in other files, are no numbers, or are too many.
    """
    import h5py

    found = member(group, name)
    if not isinstance(found, h5py.Dataset):
        return None
    what = f"{group.name.rstrip('/')}/{name}"
    if found.is_virtual or found.external:
        raise ModelImportError(group.file.filename, [f"{what} lies in other files; only what lies in the file is read"])
    if found.dtype.kind not in "fiu" or found.shape is None:
        raise ModelImportError(group.file.filename, [f"{what} is of {found.dtype}; numbers are read"])
    together = found.size // max(found.shape[0], 1) if by_row and found.shape else found.size
    itemsize = max(found.dtype.itemsize, np.dtype(np.float32).itemsize)
    if together * itemsize > _MAX_BYTES:
        raise ModelImportError(group.file.filename, [f"{what} has {found.size} elements, which are too many"])
    if found.chunks is not None and math.prod(found.chunks) > min(max(found.size, _MAX_CHUNK), _MAX_BYTES // itemsize):
        raise ModelImportError(group.file.filename, [f"{what} lies in chunks {found.chunks}, which are too large"])
    return found
