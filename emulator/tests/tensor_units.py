"""The matrix units (emulator/tensor) as a library of their own, without a runtime: what the tests of them call."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Element", "Format", "Mma", "Wgmma", "decode", "encode", "pack", "units", "unpack"]

_EMULATOR = Path(__file__).parent.parent
_SOURCES = ("tests/tensor_driver.cpp", "tensor/dot.cpp", "tensor/instruction.cpp", "tensor/warp_tile.cpp")
_FLAGS = (
    "-std=c++20",
    "-O1",
    "-march=x86-64-v3",
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-Werror",
)

Array = npt.NDArray[Any]


class Element(IntEnum):
    """EmuType, as far as matrices go."""

    F16 = 0
    BF16 = 1
    TF32 = 2
    F32 = 3
    F64 = 4
    S8 = 5
    U8 = 6
    S32 = 7
    E4M3 = 8
    E5M2 = 9

    @property
    def storage(self) -> np.dtype[Any]:
        """Of one element in registers and in memory, as bits."""
        sizes = {"F16": 2, "BF16": 2, "TF32": 4, "F32": 4, "S32": 4, "F64": 8}
        return np.dtype(f"u{sizes.get(self.name, 1)}")


class Format(IntEnum):
    """The floating-point formats of tensor/formats.h, as the driver numbers them."""

    F16 = 0
    BF16 = 1
    F32 = 2
    E4M3 = 3
    E5M2 = 4


class Mma(ctypes.Structure):
    """EmuMma."""

    _fields_ = [
        *((name, ctypes.c_uint8) for name in ("m", "n", "k", "d", "a", "b", "c")),
        ("saturate", ctypes.c_bool),
    ]


class Wgmma(ctypes.Structure):
    """EmuWgmma."""

    _fields_ = [
        ("n", ctypes.c_uint16),
        ("k", ctypes.c_uint16),
        *((name, ctypes.c_uint8) for name in ("d", "a", "b")),
        ("scale_a", ctypes.c_int8),
        ("scale_b", ctypes.c_int8),
        *((name, ctypes.c_bool) for name in ("transposed_a", "transposed_b", "saturate")),
    ]


@functools.cache
def units() -> ctypes.CDLL:
    """Compile and load the driver, once a session."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "tensor_units.so"
        sources = [str(_EMULATOR / source) for source in _SOURCES]
        subprocess.run(["g++", *_FLAGS, f"-I{_EMULATOR}", *sources, "-o", str(library)], check=True)
        loaded = ctypes.CDLL(str(library))
    for name in ("mma_problem", "wgmma_problem", "wgmma", "descriptor_problem"):
        getattr(loaded, name).restype = ctypes.c_char_p
    return loaded


def pointer(array: Array) -> ctypes.c_void_p:
    """The address of a C-contiguous array."""
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def decode(number_format: Format, bits: Array) -> npt.NDArray[np.float64]:
    """Values of bit patterns."""
    flat = np.ascontiguousarray(bits, np.uint32).ravel()
    values = np.empty(flat.size, np.float64)
    units().decode_all(int(number_format), pointer(flat), pointer(values), flat.size)
    return values.reshape(np.shape(bits))


def encode(number_format: Format, values: Array, toward_zero: bool = False) -> npt.NDArray[np.uint32]:
    """Bit patterns of values."""
    flat = np.ascontiguousarray(values, np.float64).ravel()
    bits = np.empty(flat.size, np.uint32)
    units().encode_all(int(number_format), pointer(flat), ctypes.c_bool(toward_zero), pointer(bits), flat.size)
    return bits.reshape(np.shape(values))


def pack(element: Element, values: Array) -> Array:
    """Bits of values that the type holds (integers wrap around)."""
    match element:
        case Element.F16:
            return values.astype(np.float16).view(np.uint16)
        case Element.TF32 | Element.F32:
            return values.astype(np.float32).view(np.uint32)
        case Element.F64:
            return values.astype(np.float64).view(np.uint64)
        case Element.BF16:
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        case Element.E4M3 | Element.E5M2:
            return encode(Format[element.name], values).astype(np.uint8)
        case _:
            return values.astype(np.int64).astype(element.storage)


def unpack(element: Element, bits: Array) -> npt.NDArray[np.float64]:
    """Values of bits."""
    bits = np.ascontiguousarray(bits)
    match element:
        case Element.F16:
            return bits.view(np.float16).astype(np.float64)
        case Element.TF32:
            return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
        case Element.F32:
            return bits.view(np.float32).astype(np.float64)
        case Element.F64:
            return bits.view(np.float64)
        case Element.BF16:
            return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        case Element.E4M3 | Element.E5M2:
            return decode(Format[element.name], bits)
        case Element.S8:
            return bits.view(np.int8).astype(np.float64)
        case Element.S32:
            return bits.view(np.int32).astype(np.float64)
        case _:
            return bits.astype(np.float64)
