"""What the matrix checks share: elements of every type, fragments of a warp, images of shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from emulator.conformance import values
from emulator.conformance.exact import FORMATS, Number
from emulator.conformance.tensors import swizzled

if TYPE_CHECKING:
    from emulator.conformance.values import Array

WIDTHS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "s8": 8, "u8": 8, "s32": 32, "e4m3": 8, "e5m2": 8}
WORD = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def encode(kind: str, found: Array) -> Array:
    """Numbers that the type holds exactly, as its bit patterns."""
    if kind in ("f32", "tf32"):
        return found.astype(np.float32).view(np.uint32)
    if kind == "f64":
        return found.astype(np.float64).view(np.uint64)
    if kind == "f16":
        return found.astype(np.float16).view(np.uint16)
    if kind == "bf16":
        return (found.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    if kind in ("s8", "u8", "s32"):
        signed = {"s8": np.int8, "u8": np.uint8, "s32": np.int32}[kind]
        return found.astype(np.int64).astype(signed).view(WORD[WIDTHS[kind]])
    table = {x: FORMATS[kind].encode(Number(x < 0, abs(Fraction(x)))) for x in np.unique(found).tolist()}
    return np.array([table[x] for x in found.reshape(-1).tolist()], np.uint8).reshape(found.shape)


def whole(name: str, kind: str, shape: tuple[int, ...]) -> Array:
    """Small integers, whose products and sums are exact in every accumulator; any integers for integer types."""
    count = int(np.prod(shape))
    low, high = {"s8": (-128, 127), "u8": (0, 255)}.get(kind, (-4, 4))
    return values.integers(name, low, high, count).astype(np.float64).reshape(shape)


def fractions(name: str, kind: str, shape: tuple[int, ...]) -> Array:
    """Numbers below 1 with as many bits as the type has, of mixed magnitude."""
    count = int(np.prod(shape))
    top = {"e4m3": 7, "e5m2": 3}.get(kind, 255)
    mantissa = values.integers(name, -top, top, count).astype(np.float64)
    scale = np.exp2(-values.integers(name + "scale", 0, 5, count)) / (top + 1)
    return (mantissa * scale).reshape(shape)


def pack(elements: Array) -> Array:
    """Elements along the last axis as 32-bit words (64-bit elements as they are)."""
    elements = np.ascontiguousarray(elements)
    return elements if elements.dtype == np.uint64 else elements.view(np.uint32)


def a_fragments(matrix: Array) -> Array:
    """Registers [lane, register] of A for a warp: PTX ISA 9.7.14.5; rows a multiple of 8, one or two halves."""
    rows, depth = matrix.shape
    each = max(1, 4 // matrix.itemsize)
    lanes = np.arange(32)
    found = []
    for block in range(depth // (4 * each)):
        for half in range(rows // 8):
            columns = block * 4 * each + (lanes % 4)[:, None] * each + np.arange(each)
            found.append(pack(matrix[half * 8 + (lanes // 4)[:, None], columns]))
    return np.concatenate(found, axis=1)


def b_fragments(matrix: Array) -> Array:
    """Registers [lane, register] of B, which is [k, 8]."""
    return a_fragments(np.ascontiguousarray(matrix.T))


def c_fragments(matrix: Array) -> Array:
    """Registers [lane, register] of C or D: pairs of columns, rows 8 apart, then the next eight columns."""
    rows, columns = matrix.shape
    lanes = np.arange(32)
    found = []
    for block in range(columns // 8):
        for half in range(rows // 8):
            pair = block * 8 + (lanes % 4)[:, None] * 2 + np.arange(2)
            elements = matrix[half * 8 + (lanes // 4)[:, None], pair]
            found.append(pack(elements) if matrix.itemsize < 4 else elements)
    return np.concatenate(found, axis=1)


@dataclass(frozen=True)
class Layout:
    """How an operand of wgmma lies in shared memory: PTX ISA 9.7.15.5.1. `mn_major`: the rows or columns are contiguous."""

    swizzle: int = 0  # 0, 1, 2, 3: none, 32, 64, 128 bytes
    mn_major: bool = False

    @property
    def span(self) -> int:
        """Bytes of a row of the swizzled atom."""
        return 16 << self.swizzle

    @property
    def title(self) -> str:
        """For a check's name."""
        return f"{'MN' if self.mn_major else 'K'}/{self.span if self.swizzle else 'none'}"

    def image(self, matrix: Array) -> Array:
        """Shared memory of a matrix [rows or columns, k], and zeros where nothing lies."""
        size = matrix.itemsize
        extent, depth = matrix.shape
        image = np.zeros(self.bytes(extent, depth, size) // size, matrix.dtype)
        offsets = self._offset(np.arange(extent)[:, None], np.arange(depth)[None, :], extent, size)
        image[swizzled(offsets, self.swizzle) // size] = matrix
        return image

    def _groups(self, extent: int) -> int:
        return -(-extent // 8)

    def bytes(self, extent: int, depth: int, size: int) -> int:
        """Of an image: whole atoms of 1024 bytes."""
        last = int(self._offset(np.array(extent - 1), np.array(depth - 1), extent, size)) + size
        return -(-last // 1024) * 1024

    def strides(self, extent: int, size: int) -> tuple[int, int]:
        """The leading and the stride byte offset of the descriptor."""
        if not self.mn_major:
            # Without swizzle, core matrices of 8 rows by 16 bytes: all rows of a column of them, then the next column.
            return (128 * self._groups(extent), 128) if not self.swizzle else (16, 8 * self.span)
        atoms = -(-extent * size // self.span)
        if not self.swizzle:
            return 128 * atoms, 128  # leading: to the next 8 of k; stride: to the next 16 bytes of rows
        return 8 * self.span, 8 * self.span * atoms

    def _offset(self, mn: Any, k: Any, extent: int, size: int) -> Any:
        leading, stride = self.strides(extent, size)
        if self.mn_major:
            atom, inside = divmod(mn * size, self.span)
            group, row = divmod(k, 8)
            far = atom * stride + group * leading if not self.swizzle else atom * leading + group * stride
            return far + row * self.span + inside
        group, row = divmod(mn, 8)
        if not self.swizzle:
            column, inside = divmod(k * size, 16)
            return column * leading + group * stride + row * 16 + inside
        column, inside = divmod(k * size, self.span)
        assert not np.any(column), "one atom of k"
        return group * stride + row * self.span + inside

    def step(self, extent: int, size: int) -> int:
        """Bytes from one instruction's operand to the next one's along k (32 bytes of k)."""
        leading, stride = self.strides(extent, size)
        if self.mn_major:
            return 2 * (stride if self.swizzle else leading)
        return 32 if self.swizzle else 2 * leading

    def descriptor(self, extent: int, size: int) -> int:
        """The matrix descriptor without the address."""
        leading, stride = self.strides(extent, size)
        kind = {0: 0, 1: 3, 2: 2, 3: 1}[self.swizzle]
        return (leading >> 4) << 16 | (stride >> 4) << 32 | kind << 62
