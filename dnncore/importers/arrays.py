"""Files that hold one array: NumPy's .npy, and the .pb of ONNX's test data."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from dnncore.errors import BackendUnavailableError, BadParamError, ModelImportError

__all__ = ["data_set", "read_array"]

_MAX_BYTES = 1 << 30

_ZIP = b"PK\x03\x04"


def read_array(path: Path) -> np.ndarray:
    """The array in a file.

    Raises:
        ModelImportError: it cannot be read, has more than 1 GiB, or is of neither kind.
        BackendUnavailableError: the library that reads such files is not there; the message says how to install it.
    """
    try:
        if (size := path.stat().st_size) > _MAX_BYTES:
            raise ModelImportError(str(path), [f"has {size} B; at most {_MAX_BYTES} B are read"])
        if path.suffix == ".npy":
            return _npy(path)
        if path.suffix == ".pb":
            return _tensor(path)
    except (OSError, ValueError, EOFError) as error:
        raise ModelImportError(str(path), [f"cannot be read: {error}"]) from error
    raise ModelImportError(str(path), ["it is neither a .npy file nor a .pb"])


def _npy(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        if file.read(len(_ZIP)) == _ZIP:
            raise ModelImportError(str(path), ["is a zip, as .npz is; a .npy, of one array, is read"])
    # A map is as long as the file, whatever the header says; pickled objects are never mapped.
    return np.array(np.lib.format.open_memmap(path, mode="r"))


def _tensor(path: Path) -> np.ndarray:
    try:
        from google.protobuf.message import DecodeError
        from onnx import TensorProto
    except ModuleNotFoundError as error:
        raise BackendUnavailableError(f"{path} is read with {error.name}: pip install dnncore[onnx]") from error
    from dnncore.importers.onnx.limits import Budget
    from dnncore.importers.onnx.tensors import TensorReader

    try:
        return TensorReader(Budget("the array", _MAX_BYTES), None).read(TensorProto.FromString(path.read_bytes()))
    except (DecodeError, BadParamError) as error:
        raise ModelImportError(str(path), [f"cannot be read: {error}"]) from error


def data_set(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files of a data set as ONNX models bring them: input_0.pb, input_1.pb, ..., output_0.pb, ...; .npy will do too.

    Raises:
        ModelImportError: there are none.
    """
    inputs, outputs = (_numbered(folder, kind) for kind in ("input", "output"))
    if not inputs or not outputs:
        raise ModelImportError(str(folder), ["it has no input_0.pb, or no output_0.pb"])
    return inputs, outputs


def _numbered(folder: Path, kind: str) -> list[Path]:
    found = (re.fullmatch(rf"{kind}_(\d+)\.(pb|npy)", path.name) for path in folder.glob(f"{kind}_*"))
    return [folder / one[0] for one in sorted(filter(None, found), key=lambda one: int(one[1]))]
