"""Deterministic inputs: bits from an integer hash, the same with every NumPy, and the special values of each type."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Bits of a register type, and the NumPy type that holds them. Packed halves count as one 32-bit word.
WIDTHS = {
    "pred": 8, "u8": 8, "s8": 8, "b8": 8, "e4m3": 8, "e5m2": 8,
    "u16": 16, "s16": 16, "b16": 16, "f16": 16, "bf16": 16, "e4m3x2": 16, "e5m2x2": 16,
    "u32": 32, "s32": 32, "b32": 32, "f32": 32, "tf32": 32, "f16x2": 32, "bf16x2": 32,
    "u64": 64, "s64": 64, "b64": 64, "f64": 64,
}  # fmt: skip
WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}

_F16 = [0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x8400, 0x3C00, 0xBC00, 0x3C01, 0x3800, 0x4000, 0x4200, 0x7BFF, 0xFBFF]
_F16 += [0x7C00, 0xFC00, 0x7E00, 0x3555, 0x6400, 0x5BFF, 0x0C00, 0xB800, 0x4900]
_BF16 = [0, 0x8000, 1, 0x8001, 0x007F, 0x0080, 0x8080, 0x3F80, 0xBF80, 0x3F81, 0x3F00, 0x4000, 0x4040, 0x7F7F, 0xFF7F]
_BF16 += [0x7F80, 0xFF80, 0x7FC0, 0x3EAB, 0x4480, 0x2000, 0xBF00, 0x4120, 0x5F00]
_F32 = [0, 1 << 31, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x80800000, 0x3F800000, 0xBF800000, 0x3F800001, 0x3F000000]
_F32 += [0x40000000, 0x40400000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3EAAAAAB, 0xBF000000]
_F32 += [0x3FC00000, 0x40200000, 0x4EFFFFFF, 0x4F000000, 0xCF000000, 0x4F800000, 0x5F000000, 0xDF000000, 0x43000000]
_F32 += [0x437F8000, 0xC3000000, 0x477FE000, 0x477FF000, 0x38800000, 0x33800000, 0x3DCCCCCD, 0x40490FDB]
_F64 = [0, 1 << 63, 1, (1 << 63) + 1, 0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x3FF0000000000000, 0xBFF0000000000000]
_F64 += [0x3FF0000000000001, 0x3FE0000000000000, 0x4000000000000000, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF]
_F64 += [0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0x3FD5555555555555, 0x41DFFFFFFFC00000]
_F64 += [0x41E0000000000000, 0xC1E0000000000000, 0x43E0000000000000, 0xC3E0000000000000, 0x47EFFFFFF0000000]
_F64 += [0x36A0000000000000, 0x3FF8000000000000, 0x4004000000000000, 0xBFE0000000000000, 0x3FB999999999999A]


def _integers(bits: int) -> list[int]:
    top = 1 << (bits - 1)
    return [0, 1, 2, 3, 7, 31, bits - 1, bits, 0x55 * (top // 64), top - 1, top, top + 1, 2 * top - 1, 2 * top - 2]


def specials(kind: str) -> list[int]:
    """Bit patterns at the edges of a type."""
    if kind == "pred":
        return [0, 1]
    if kind in ("f16x2", "bf16x2"):
        halves = _F16 if kind == "f16x2" else _BF16
        return [low | halves[(i * 7 + 3) % len(halves)] << 16 for i, low in enumerate(halves)]
    tables = {"f16": _F16, "bf16": _BF16, "f32": _F32, "tf32": _F32, "f64": _F64}
    return tables.get(kind) or _integers(WIDTHS[kind])


def hashed(name: str, count: int) -> npt.NDArray[np.uint64]:
    """`count` words of 64 bits that depend on the name and the position only (splitmix64)."""
    seed = np.uint64(zlib.crc32(name.encode()))
    with np.errstate(over="ignore"):
        x = (np.arange(1, count + 1, dtype=np.uint64) + (seed << np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def bits(name: str, kind: str, count: int) -> Array:
    """Random bit patterns of a type, uniform over the bits (`pred`: 0 or 1)."""
    words = hashed(name, count) >> np.uint64(64 - WIDTHS[kind])
    if kind == "pred":
        words &= np.uint64(1)
    return words.astype(WORDS[WIDTHS[kind]])


def integers(name: str, low: int, high: int, count: int) -> npt.NDArray[np.int64]:
    """Random integers in [low, high]."""
    return ((hashed(name, count) >> np.uint64(33)) % np.uint64(high - low + 1)).astype(np.int64) + low


def moderate(name: str, kind: str, count: int) -> Array:
    """Random floats of moderate exponent as bit patterns: products and sums of them mostly stay in range."""
    fields = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "tf32": (8, 23), "f64": (11, 52)}
    if kind in ("f16x2", "bf16x2"):
        low, high = (moderate(name + part, kind[:-2], count).astype(np.uint32) for part in ("low", "high"))
        packed: Array = low | high << np.uint32(16)
        return packed
    if kind not in fields:
        return bits(name, kind, count)
    exponent, mantissa = fields[kind]
    words = hashed(name, count)
    spread = min(8, (1 << exponent) // 4)
    power = (words >> np.uint64(1)) % np.uint64(2 * spread) + np.uint64((1 << (exponent - 1)) - 1 - spread)
    made = (words & np.uint64(1)) << np.uint64(exponent + mantissa) | power << np.uint64(mantissa)
    made |= words >> np.uint64(64 - mantissa)
    return made.astype(WORDS[WIDTHS[kind]])


def operands(name: str, kinds: tuple[str, ...], count: int) -> list[Array]:
    """Inputs of an operation: special values against each other, then moderate floats, then random bits."""
    found = []
    for position, kind in enumerate(kinds):
        special = np.array(specials(kind), dtype=WORDS[WIDTHS[kind]])
        index = np.arange(count, dtype=np.int64)
        # The steps are coprime to each other, so that pairs and triples of special values vary.
        step = (index, index // len(special) + index * 5, index * 11 + index // 7)[position % 3]
        values = special[step % len(special)]
        label = f"{name}/{position}"
        half, rest = count // 2, count - count // 2 - count // 4
        values[half : half + count // 4] = moderate(label, kind, count // 4)
        values[count - rest :] = bits(label + "/bits", kind, rest)
        found.append(values)
    return found
