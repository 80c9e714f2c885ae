"""PTX's types (PTX ISA 5.2): sizes, and the groups that instructions accept. C++ has types of the same names in scalar/types.h."""

from __future__ import annotations

from functools import cache

from emulator.ptx.errors import PtxError

__all__ = [
    "BITS",
    "FLOATS",
    "HALVES",
    "INTEGERS",
    "MEMORY",
    "SCALARS",
    "bytes_of",
    "storage",
]

_BITS = {"pred": 1, "tf32": 32, "f16": 16, "bf16": 16, "e4m3x2": 16, "e5m2x2": 16}
_BITS |= {"f16x2": 32, "bf16x2": 32, "u16x2": 32, "s16x2": 32}

BITS = "b16|b32|b64"
INTEGERS = "u16|u32|u64|s16|s32|s64"
FLOATS = "f32|f64"
HALVES = "f16|f16x2|bf16|bf16x2"
SCALARS = f"{BITS}|{INTEGERS}|{FLOATS}"
MEMORY = f"b8|b128|u8|s8|{SCALARS}"


@cache
def bytes_of(kind: str) -> int:
    """Size of a type in memory.

    Raises:
        PtxError: there is no such type.
    """
    bits = _BITS.get(kind)
    if bits is None:
        digits = kind[1:]
        if kind[:1] not in tuple("busf") or not digits.isdigit():
            raise PtxError(f"unknown type .{kind}")
        bits = int(digits)
    return max(bits // 8, 1)


@cache
def storage(kind: str) -> str:
    """C++ type of a register: floats as themselves, so that they stay in the host's vector registers; anything else as bits."""
    if kind in ("pred", "f32", "f64", "b128"):
        return kind
    return f"u{8 * bytes_of(kind)}"
