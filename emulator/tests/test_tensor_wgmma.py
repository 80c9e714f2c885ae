"""wgmma: matrix descriptors against CuTe's description of the layouts, results against NumPy and against the exact model."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from emulator.tests.tensor_model import aligned_sum
from emulator.tests.tensor_units import Element, Wgmma, pack, pointer, units, unpack

Array = npt.NDArray[Any]
E = Element

_ANY = 1 << 20  # the size of a mode that goes on
_SWIZZLE_BITS = {0: 0, 32: 3, 64: 2, 128: 1}  # bits 62 and 63 of the descriptor


def _descriptor(start: int, leading: int, stride: int, swizzle: int, base_offset: int = 0) -> int:
    fields = (
        (start & 0x3FFFF) >> 4,
        leading >> 4 << 16,
        stride >> 4 << 32,
        base_offset << 49,
        _SWIZZLE_BITS[swizzle] << 62,
    )
    return sum(fields)


def _layout(index: int, shape: Sequence[int], strides: Sequence[int]) -> int:
    """A coordinate of a hierarchical mode, as CuTe maps it: leftmost digit first."""
    offset = 0
    for size, stride in zip(shape[:-1], strides[:-1], strict=True):
        offset += index % size * stride
        index //= size
    return offset + index * strides[-1]


@dataclass(frozen=True)
class Placement:
    """An operand's place in shared memory, in the terms of cute/atom/mma_traits_sm90_gmma.hpp."""

    swizzle: int  # bytes; 0: none
    mn_major: bool
    start: int
    leading: int
    stride: int
    pattern: int = 0  # an address at which the swizzling pattern begins, a multiple of 128

    @property
    def descriptor(self) -> int:
        period = {0: 1, 32: 256, 64: 512, 128: 1024}[self.swizzle]
        base_offset = self.pattern >> 7 & 7 if self.pattern % period else 0
        return _descriptor(self.start, self.leading, self.stride, self.swizzle, base_offset)

    def addresses(self, lines: int, depth: int, element_bytes: int) -> npt.NDArray[np.int64]:
        """Of the elements by line and k: canonical layout, in bytes, and then Swizzle<log2(width), 4, 3>."""
        unit = 16
        elements, width = unit // element_bytes, max(self.swizzle // unit, 1)
        mn: tuple[Sequence[int], Sequence[int]]
        k: tuple[Sequence[int], Sequence[int]]
        if self.mn_major and width == 1:
            mn, k = ((elements, _ANY), (element_bytes, self.stride)), ((8, _ANY), (unit, self.leading))
        elif self.mn_major:
            mn = ((elements, width, _ANY), (element_bytes, unit, self.leading))
            k = ((8, _ANY), (width * unit, self.stride))
        else:
            mn = ((8, _ANY), (width * unit, self.stride))
            k = ((elements, 2), (element_bytes, self.leading if width == 1 else unit))
        plain = [[_layout(line, *mn) + _layout(i, *k) for i in range(depth)] for line in range(lines)]
        relative = np.array(plain, np.int64) + self.start - self.pattern
        return (relative ^ (relative >> 7 & width - 1) << 4) + self.pattern


def _placements(start: int, lines: int, element_bytes: int, mn_major: bool) -> Iterator[Placement]:
    """Operands of `lines` lines and 32 bytes of k for each swizzling, with and without gaps between the pieces."""
    for swizzle, gap in product((0, 32, 64, 128), (0, 1024)):
        width = max(swizzle // 16, 1)
        atom = 8 * 16 * width  # bytes: eight rows of the swizzle's width
        if not mn_major:
            leading = lines * 16 + gap if swizzle == 0 else 16
            yield Placement(swizzle, mn_major, start, leading, atom + gap)
        elif swizzle == 0:
            column = lines * element_bytes // 16 * (atom + gap // 8)  # of eight values of k
            yield Placement(swizzle, mn_major, start, column + gap, atom + gap // 8)
        else:
            pieces = -(-lines * element_bytes // (16 * width))
            yield Placement(swizzle, mn_major, start, atom + gap, pieces * (atom + gap))


_LINES = 128


def _layouts() -> list[tuple[Element, Placement]]:
    """Every layout, and those with a pattern also where it begins elsewhere than at a multiple of its period."""
    cases = [(e, p) for e in (E.F16, E.TF32, E.S8) for p in _placements(1024, _LINES, e.storage.itemsize, False)]
    cases += [(E.F16, p) for p in _placements(1024, _LINES, 2, True)]
    moved = [
        (e, Placement(**{**vars(p), "start": p.start + shift, "pattern": p.start + shift}))
        for (e, p), shift in product(cases, (128, 640))
        if p.swizzle
    ]
    return cases + moved


@pytest.mark.parametrize(("element", "placement"), _layouts())
def test_addresses(element: Element, placement: Placement) -> None:
    depth = 32 // element.storage.itemsize
    expected = placement.addresses(_LINES, depth, element.storage.itemsize)
    assert len(set(expected.ravel().tolist())) == expected.size
    for first, lines in ((0, _LINES), (16, 16), (40, 8)):
        addresses = np.empty((lines, depth), np.uint32)
        units().element_addresses(
            ctypes.c_uint64(placement.descriptor),
            ctypes.c_bool(placement.mn_major),
            ctypes.c_uint8(element),
            first,
            lines,
            depth,
            pointer(addresses),
        )
        np.testing.assert_array_equal(addresses, expected[first : first + lines])


def test_a_step_along_k_within_the_pattern() -> None:
    """Descriptors that begin 32, 64, 96 bytes into a row of 128 see the next columns: the pattern is the address's."""
    tile = Placement(128, False, 2048, 16, 1024)
    rows, columns = np.meshgrid(np.arange(64), np.arange(64), indexing="ij")
    plain = 2048 + rows * 128 + columns * 2
    expected = plain ^ (plain >> 7 & 7) << 4
    for step in range(4):
        placement = Placement(**{**vars(tile), "start": tile.start + 32 * step})
        addresses = np.empty((64, 16), np.uint32)
        units().element_addresses(
            ctypes.c_uint64(placement.descriptor),
            ctypes.c_bool(False),
            ctypes.c_uint8(E.F16),
            0,
            64,
            16,
            pointer(addresses),
        )
        np.testing.assert_array_equal(addresses, expected[:, 16 * step : 16 * step + 16])


@pytest.mark.parametrize(
    ("descriptor", "problem"),
    [
        (_descriptor(1024, 16, 1024, 128), None),
        (_descriptor(1024, 16, 1024, 128, 3), None),
        (_descriptor(1024, 16, 1024, 0, 3), "base offset"),
        (1 << 14, "outside"),
        (1 << 46, "outside"),
        (1 << 61, "outside"),
    ],
)
def test_descriptors_that_are_wrong(descriptor: int, problem: str | None) -> None:
    said = units().descriptor_problem(ctypes.c_uint64(descriptor))
    assert (said is None) if problem is None else (problem in said.decode())


def _accumulator_places(n: int) -> npt.NDArray[np.int64]:
    """PTX ISA 9.7.15.5.1, figure of D: (row, column) by thread of the warpgroup and element."""
    thread, i = np.arange(128)[:, None], np.arange(n // 2)[None, :]
    row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
    return np.stack([row, i // 4 * 8 + thread % 4 * 2 + i % 2], axis=-1)


def _a_places(depth: int, element_bytes: int) -> npt.NDArray[np.int64]:
    """The figures of A in registers: (row, k) by thread and element."""
    neighbours = 4 // element_bytes
    thread, i = np.arange(128)[:, None], np.arange(depth // 2)[None, :]
    register = i // neighbours
    row = thread // 32 * 16 + thread % 32 // 4 + register % 2 * 8
    return np.stack([row, (register // 2 * 4 + thread % 4) * neighbours + i % neighbours], axis=-1)


class Operand:
    """A random multiplicand, by line and k, in bits."""

    def __init__(self, element: Element, lines: int, random: np.random.Generator) -> None:
        shape = (lines, 32 // element.storage.itemsize)
        self.element = element
        if element in (E.S8, E.U8):
            self.bits: Array = random.integers(0, 256, shape).astype(np.uint8)
        else:
            self.bits = pack(element, random.choice([-1.0, 1.0], shape) * 2.0 ** random.uniform(-3, 3, shape))

    @property
    def values(self) -> npt.NDArray[np.float64]:
        return unpack(self.element, self.bits)

    def put(self, shared: npt.NDArray[np.uint8], placement: Placement) -> None:
        size = self.element.storage.itemsize
        lines, depth = self.bits.shape
        addresses = placement.addresses(lines, depth, size)
        for byte in range(size):
            shared[addresses + byte] = self.bits >> 8 * byte & 0xFF


def _instruction(a: Element, b: Element, d: Element, n: int, **fields: Any) -> Wgmma:
    values = {"scale_a": 1, "scale_b": 1, **fields}
    return Wgmma(n=n, k=32 // a.storage.itemsize, d=d, a=a, b=b, **values)


def _multiply(
    instruction: Wgmma,
    d: Array,
    a: Operand,
    b: Operand,
    places: tuple[Placement | None, Placement],
    scale_d: bool = True,
) -> Array:
    """D's bits after the instruction, from D's before; A is in registers when it has no place."""
    shared = np.full(1 << 17, 0xCD, np.uint8)
    place_a, place_b = places
    b.put(shared, place_b)
    registers = None
    if place_a is None:
        at = _a_places(a.bits.shape[1], a.element.storage.itemsize)
        registers = np.ascontiguousarray(a.bits[at[..., 0], at[..., 1]]).view(np.uint32)
    else:
        a.put(shared, place_a)
    at = _accumulator_places(instruction.n)
    accumulators = np.ascontiguousarray(d[at[..., 0], at[..., 1]]).view(np.uint32)
    assert units().wgmma_problem(ctypes.byref(instruction), ctypes.c_bool(place_a is None)) is None
    problem = units().wgmma(
        ctypes.byref(instruction),
        pointer(accumulators),
        accumulators.shape[1],
        None if registers is None else pointer(registers),
        ctypes.c_uint64(place_a.descriptor if place_a else 0),
        ctypes.c_uint64(place_b.descriptor),
        ctypes.c_bool(scale_d),
        pointer(shared),
    )
    assert problem is None
    result = np.empty_like(d)
    result[at[..., 0], at[..., 1]] = accumulators.view(d.dtype)
    return result


def _start(d: Element, n: int, random: np.random.Generator) -> Array:
    if d is E.S32:
        return random.integers(-(2**20), 2**20, (64, n)).astype(np.int32).view(np.uint32)
    return pack(d, random.normal(size=(64, n)))


def _compare(d: Element, result: Array, left: Array, right: Array, start: Array, digits: int = 20) -> None:
    expected = left @ right.T + start
    if d is E.S32:
        np.testing.assert_array_equal(unpack(d, result), expected)
        return
    size = np.abs(left) @ np.abs(right).T + np.abs(start)
    assert np.max(np.abs(unpack(d, result) - expected) / size) < 2.0 ** -min(digits, 10 if d is E.F16 else digits)


_A_AT, _B_AT = 1024, 1 << 16
_PLAIN = (Placement(128, False, _A_AT, 16, 1024), Placement(128, False, _B_AT, 16, 1024))
_TYPES = [
    *((E.F16, E.F16, d) for d in (E.F16, E.F32)),
    (E.BF16, E.BF16, E.F32),
    (E.TF32, E.TF32, E.F32),
    *((a, b, E.S32) for a, b in product((E.S8, E.U8), repeat=2)),
    *((a, b, d) for a, b, d in product((E.E4M3, E.E5M2), (E.E4M3, E.E5M2), (E.F16, E.F32))),
]


@pytest.mark.parametrize(("a_type", "b_type", "d_type"), _TYPES)
@pytest.mark.parametrize("n", [8, 24, 64, 256])
@pytest.mark.parametrize("in_registers", [False, True])
def test_product(a_type: Element, b_type: Element, d_type: Element, n: int, in_registers: bool) -> None:
    random = np.random.default_rng(n)
    a, b, start = Operand(a_type, 64, random), Operand(b_type, n, random), _start(d_type, n, random)
    instruction = _instruction(a_type, b_type, d_type, n)
    result = _multiply(instruction, start, a, b, (None if in_registers else _PLAIN[0], _PLAIN[1]))
    f8 = a_type in (E.E4M3, E.E5M2)
    _compare(d_type, result, a.values, b.values, unpack(d_type, start), 8 if f8 else 20)


_MAJORS = list(product((False, True), repeat=2))


@pytest.mark.parametrize(
    ("element", "majors"),
    [*product((E.F16, E.BF16), _MAJORS), *((e, (False, False)) for e in (E.TF32, E.S8, E.E4M3))],
)
def test_every_layout(element: Element, majors: tuple[bool, bool]) -> None:
    n, d_type = 96, E.S32 if element is E.S8 else E.F32
    random = np.random.default_rng(2)
    a, b, start = Operand(element, 64, random), Operand(element, n, random), _start(d_type, n, random)
    instruction = _instruction(element, element, d_type, n, transposed_a=majors[0], transposed_b=majors[1])
    size = element.storage.itemsize
    results = [
        _multiply(instruction, start, a, b, places)
        for places in zip(_placements(_A_AT, 64, size, majors[0]), _placements(_B_AT, n, size, majors[1]), strict=True)
    ]
    assert len(results) == 8
    _compare(d_type, results[0], a.values, b.values, unpack(d_type, start), 8 if element is E.E4M3 else 20)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize(("a_type", "b_type", "d_type"), [t for t in _TYPES if t[2] is not E.S32])
def test_bits_are_those_of_the_exact_model(a_type: Element, b_type: Element, d_type: Element) -> None:
    random = np.random.default_rng(4)
    a, b, start = Operand(a_type, 64, random), Operand(b_type, 8, random), _start(d_type, 8, random)
    result = _multiply(_instruction(a_type, b_type, d_type, 8), start, a, b, _PLAIN)
    digits = 13 if a_type in (E.E4M3, E.E5M2) else 25
    before = unpack(d_type, start)
    for i, j in product(range(0, 64, 5), range(8)):
        expected = aligned_sum(
            a.values[i].tolist(), b.values[j].tolist(), float(before[i, j]), (a_type, b_type), d_type, digits
        )
        assert result[i, j] == pack(d_type, np.array([expected]))[0], (i, j)


@pytest.mark.parametrize("in_registers", [False, True])
def test_scales(in_registers: bool) -> None:
    random = np.random.default_rng(8)
    a, b, start = Operand(E.F16, 64, random), Operand(E.F16, 16, random), _start(E.F32, 16, random)
    places = (None if in_registers else _PLAIN[0], _PLAIN[1])
    for scale_a, scale_b, scale_d in product((1, -1), (1, -1), (False, True)):
        instruction = _instruction(E.F16, E.F16, E.F32, 16, scale_a=scale_a, scale_b=scale_b)
        result = _multiply(instruction, start, a, b, places, scale_d)
        before = unpack(E.F32, start) * scale_d
        _compare(E.F32, result, a.values * scale_a, b.values * scale_b, before)


@pytest.mark.parametrize("saturate", [False, True])
def test_integer_overflow(saturate: bool) -> None:
    random = np.random.default_rng(9)
    a, b = Operand(E.U8, 64, random), Operand(E.U8, 8, random)
    start = np.full((64, 8), 2**31 - 1000, np.int32).view(np.uint32)
    result = _multiply(_instruction(E.U8, E.U8, E.S32, 8, saturate=saturate), start, a, b, _PLAIN).view(np.int32)
    exact = (a.values @ b.values.T).astype(np.int64) + 2**31 - 1000
    np.testing.assert_array_equal(result, np.minimum(exact, 2**31 - 1) if saturate else exact.astype(np.int32))


@pytest.mark.parametrize(
    ("majors", "in_registers"),
    [((False, False), False), ((True, True), False), ((False, True), True), ((False, False), True)],
)
def test_units_read_are_those_of_the_elements(majors: tuple[bool, bool], in_registers: bool) -> None:
    """What is checked covers what is read: rows of the warp, all columns, nothing twice."""
    n, warp = 40, 2
    place_a, place_b = (Placement(64, major, at, 2048, 4096) for major, at in zip(majors, (_A_AT, _B_AT), strict=True))
    instruction = _instruction(E.F16, E.F16, E.F32, n, transposed_a=majors[0], transposed_b=majors[1])
    read = np.empty(1024, np.uint32)
    count = units().units_read(
        ctypes.byref(instruction),
        warp,
        ctypes.c_bool(in_registers),
        ctypes.c_uint64(place_a.descriptor),
        ctypes.c_uint64(place_b.descriptor),
        pointer(read),
    )
    expected = set((place_b.addresses(n, 16, 2) & ~15).ravel().tolist())
    if not in_registers:
        expected |= set((place_a.addresses(64, 16, 2)[32:48] & ~15).ravel().tolist())
    assert count == len(expected)
    assert set(read[:count].tolist()) == expected


def test_the_shapes_of_the_manual() -> None:
    """PTX ISA 9.7.15.5.2: N is every multiple of 8 for floats, and a shorter list for integers."""
    integers = {8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256}
    for n in range(1, 300):
        for (a, d), allowed in (((E.F16, E.F32), n % 8 == 0 and n <= 256), ((E.U8, E.S32), n in integers)):
            problem = units().wgmma_problem(ctypes.byref(_instruction(a, a, d, n)), ctypes.c_bool(False))
            assert (problem is None) == allowed, n


@pytest.mark.parametrize(
    ("instruction", "in_registers", "problem"),
    [
        (_instruction(E.F16, E.BF16, E.F32, 64), False, "no such multiplicands"),
        (_instruction(E.F64, E.F64, E.F64, 64), False, "no such multiplicands"),
        (Wgmma(64, 32, E.F32, E.F16, E.F16, 1, 1), False, "no such shape"),
        (_instruction(E.BF16, E.BF16, E.F16, 64), False, "accumulator"),
        (_instruction(E.F16, E.F16, E.F32, 64, saturate=True), False, "satfinite"),
        (_instruction(E.F16, E.F16, E.F32, 64, scale_a=2), False, "imm-scale"),
        (_instruction(E.S8, E.S8, E.S32, 64, scale_b=-1), False, "imm-scale"),
        (_instruction(E.F16, E.F16, E.F32, 64, transposed_a=True), True, "registers"),
        (_instruction(E.TF32, E.TF32, E.F32, 64, transposed_b=True), False, "MN-major"),
        (_instruction(E.S8, E.U8, E.S32, 64, transposed_a=True), False, "MN-major"),
    ],
)
def test_what_is_not_there_is_named(instruction: Wgmma, in_registers: bool, problem: str) -> None:
    assert problem in units().wgmma_problem(ctypes.byref(instruction), ctypes.c_bool(in_registers)).decode()
    buffer = ctypes.create_string_buffer(128)
    units().wgmma_name(ctypes.byref(instruction), buffer)
    assert buffer.value.decode().startswith(f"wgmma.mma_async.m64n64k{instruction.k}.")
