"""The arithmetic of asynchronous units (emulator/runtime) as a library of its own: what the tests of it call."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Layout", "Rows", "TensorType", "TensorUse", "address", "map_bytes", "refused", "rows_of", "units"]

_EMULATOR = Path(__file__).parent.parent
_PARTS = ("mbarrier_state", "reduce", "tensor_box", "tensor_map")
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")

Array = npt.NDArray[Any]


class TensorType(IntEnum):
    """CUtensorMapDataType."""

    U8 = 0
    U16 = 1
    U32 = 2
    S32 = 3
    U64 = 4
    S64 = 5
    F16 = 6
    F32 = 7
    F64 = 8
    BF16 = 9
    F32_FTZ = 10
    TF32 = 11
    TF32_FTZ = 12

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4)[self]


class TensorUse(IntEnum):
    """Of emulator/runtime/tensor_box.h."""

    LOAD = 0
    PREFETCH = 1
    STORE = 2


class _Layout(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("address", ctypes.c_void_p),
        ("dims", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("element_strides", ctypes.c_void_p),
        *((name, ctypes.c_uint32) for name in ("interleave", "swizzle", "promotion", "fill")),
    ]


@functools.cache
def units() -> ctypes.CDLL:
    """Compile and load the driver, once a session."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "async_units.so"
        sources = ["tests/async_driver.cpp", *(f"runtime/{part}.cpp" for part in _PARTS)]
        command = [
            "g++",
            *_FLAGS,
            f"-I{_EMULATOR}",
            *(str(_EMULATOR / source) for source in sources),
            "-o",
            str(library),
        ]
        subprocess.run(command, check=True)
        loaded = ctypes.CDLL(str(library))
    for name in (
        "encode_tiled_map",
        "encode_im2col_map",
        "replace_map_address",
        "box_of",
        "place_problem",
        "reduction_problem",
        "mbarrier_step",
    ):
        getattr(loaded, name).restype = ctypes.c_char_p
    for name in ("encoded", "row_fills_swizzle"):
        getattr(loaded, name).restype = ctypes.c_bool
    loaded.swizzle.restype = ctypes.c_uint32
    loaded.mbarrier_init.restype = ctypes.c_uint64
    return loaded


def address(array: Array) -> ctypes.c_void_p:
    """The address of a C-contiguous array."""
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def map_bytes(offset: int = 0) -> Array:
    """128 zero bytes at `offset` behind an address that is a multiple of 64."""
    room = np.zeros(128 + 64 + offset, np.uint8)
    start = -room.ctypes.data % 64 + offset
    return room[start : start + 128]


@dataclass
class Layout:
    """Arguments that both encode functions have; the strides default to a packed tensor's."""

    dims: list[int]
    type: int = TensorType.F16
    strides: list[int] | None = None
    element_strides: list[int] | None = None
    base: int = 1 << 20
    interleave: int = 0
    swizzle: int = 0
    promotion: int = 0
    fill: int = 0
    rank: int | None = None
    _held: list[Array] = field(default_factory=list, repr=False)

    @property
    def all_strides(self) -> list[int]:
        """In bytes, of every dimension."""
        size = TensorType(self.type).size if self.type in list(TensorType) else 1
        if self.strides is not None:
            return [size, *self.strides]
        return [size * int(np.prod(self.dims[:i], dtype=np.int64)) for i in range(len(self.dims))]

    @property
    def steps(self) -> list[int]:
        """Traversal strides."""
        return self.element_strides or [1] * len(self.dims)

    def _argument(self, values: list[int], dtype: npt.DTypeLike) -> ctypes.c_void_p:
        self._held.append(np.array([*values, 0], dtype))
        return address(self._held[-1])

    def struct(self) -> _Layout:
        """As the C++ side takes it."""
        return _Layout(
            self.type,
            len(self.dims) if self.rank is None else self.rank,
            self.base,
            self._argument(self.dims, np.uint64),
            self._argument(self.all_strides[1:], np.uint64),
            self._argument(self.steps, np.uint32),
            self.interleave,
            self.swizzle,
            self.promotion,
            self.fill,
        )

    def tiled(self, box: list[int], into: Array | None = None) -> tuple[Array, str]:
        """The encoded map, and what was wrong."""
        encoded = map_bytes() if into is None else into
        struct = self.struct()
        said = units().encode_tiled_map(ctypes.byref(struct), self._argument(box, np.uint32), address(encoded))
        return encoded, said.decode()

    def im2col(self, lower: list[int], upper: list[int], channels: int, pixels: int) -> tuple[Array, str]:
        """The encoded map, and what was wrong."""
        encoded = map_bytes()
        struct = self.struct()
        corners = self._argument(lower, np.int32), self._argument(upper, np.int32)
        said = units().encode_im2col_map(ctypes.byref(struct), *corners, channels, pixels, address(encoded))
        return encoded, said.decode()


@dataclass
class Rows:
    """Rows of a box, as the C++ side found them."""

    offsets: Array
    inside: Array
    first: int
    elements: int
    skip: int
    count: int
    problem: str

    def copied(self, memory: Array, element: int, outside: int = 0) -> Array:
        """The box's bytes in rows, gathered from a tensor's memory; `outside` stands for what is not in the tensor."""
        box = np.full((len(self.offsets), self.elements * element), outside, np.uint8)
        low, high = self.skip * element, (self.skip + self.count) * element
        for row, (offset, inside) in enumerate(zip(self.offsets, self.inside, strict=True)):
            if inside and self.count:
                start = int(offset) + (self.first + self.skip) * element
                assert 0 <= start <= start + high - low <= memory.size, "a row beyond the tensor's memory"
                box[row, low:high] = memory[start : start + high - low]
        return box


def rows_of(encoded: Array, coordinates: list[int], offsets: list[int] | None = None) -> Rows:
    """The rows of a copy with the encoded map."""
    capacity = 1 << 16
    where, inside = np.zeros(capacity, np.int64), np.zeros(capacity, np.uint8)
    summary = np.zeros(5, np.int64)
    place = np.array([*coordinates, 0], np.int32)
    filter_offsets = None if offsets is None else np.array([*offsets, 0], np.uint16)
    said = units().box_of(
        address(encoded),
        address(place),
        None if filter_offsets is None else address(filter_offsets),
        address(where),
        address(inside),
        ctypes.c_int64(capacity),
        address(summary),
    )
    rows = int(summary[0])
    first, elements, skip, count = (int(n) for n in summary[1:])
    return Rows(where[:rows], inside[:rows].astype(bool), first, elements, skip, count, said.decode())


def refused(encoded: Array, coordinates: list[int], use: TensorUse) -> str:
    """Why an H200 takes no such copy; empty if it does."""
    place = np.array([*coordinates, 0], np.int32)
    said: bytes = units().place_problem(address(encoded), address(place), use)
    return said.decode()
