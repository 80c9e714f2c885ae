"""mma.sync: fragments against the PTX manual's formulas, results against NumPy and against the exact model."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from emulator.tests.tensor_model import aligned_sum, pair_sum
from emulator.tests.tensor_units import Element, Mma, pack, pointer, units, unpack

Array = npt.NDArray[Any]
E = Element


class Case(NamedTuple):
    """A shape with its types."""

    m: int
    k: int
    a: Element
    b: Element
    d: Element

    def instruction(self, saturate: bool = False) -> Mma:
        return Mma(self.m, 8, self.k, self.d, self.a, self.b, self.d, saturate)


_I8, _F8 = (E.S8, E.U8), (E.E4M3, E.E5M2)
_CASES = [
    *(Case(16, k, E.F16, E.F16, d) for k, d in product((8, 16), (E.F16, E.F32))),
    *(Case(16, k, E.BF16, E.BF16, E.F32) for k in (8, 16)),
    *(Case(16, k, E.TF32, E.TF32, E.F32) for k in (4, 8)),
    *(Case(m, k, a, b, E.S32) for (m, k), a, b in product(((8, 16), (16, 16), (16, 32)), _I8, _I8)),
    *(Case(16, k, a, b, d) for k, a, b, d in product((16, 32), _F8, _F8, (E.F16, E.F32))),
    *(Case(m, k, E.F64, E.F64, E.F64) for m, k in ((8, 4), (16, 4), (16, 8), (16, 16))),
]
_FLOATS = [case for case in _CASES if case.d in (E.F16, E.F32)]


def _name(case: Case) -> str:
    return f"m{case.m}n8k{case.k}-{case.d.name}-{case.a.name}-{case.b.name}"


# Formulas of PTX ISA 9.7.14.5.1 to 9: (row, column) of element i by group g = lane / 4 and thread t = lane % 4 of the group.
Formula = Callable[[int, int, int], tuple[int, int]]
_A: dict[tuple[int, int, int], Formula] = {  # by bits of an element, m and k
    (16, 16, 8): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    (16, 16, 16): lambda g, t, i: (g if i < 2 or 4 <= i < 6 else g + 8, t * 2 + (i & 1) + (0 if i < 4 else 8)),
    (32, 16, 4): lambda g, t, i: (g if i == 0 else g + 8, t),
    (32, 16, 8): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
    (64, 8, 4): lambda g, t, _: (g, t),
    (64, 16, 4): lambda g, t, i: (g if i == 0 else g + 8, t),
    (64, 16, 8): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
    (64, 16, 16): lambda g, t, i: (g if i % 2 == 0 else g + 8, i * 2 + t if i % 2 == 0 else i * 2 - 2 + t),
    (8, 8, 16): lambda g, t, i: (g, t * 4 + i),
    (8, 16, 16): lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)),
    (8, 16, 32): lambda g, t, i: (g if i < 4 or 8 <= i < 12 else g + 8, t * 4 + (i & 3) + (0 if i < 8 else 16)),
}
_B: dict[tuple[int, int], Formula] = {  # by bits and k
    (16, 8): lambda g, t, i: (t * 2 + i, g),
    (16, 16): lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g),
    (32, 4): lambda g, t, _: (t, g),
    (32, 8): lambda g, t, i: (t if i == 0 else t + 4, g),
    (64, 4): lambda g, t, _: (t, g),
    (64, 8): lambda g, t, i: (t if i == 0 else t + 4, g),
    (64, 16): lambda g, t, i: (t + i * 4, g),
    (8, 16): lambda g, t, i: (t * 4 + i, g),
    (8, 32): lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g),
}
_C: dict[int, Formula] = {
    8: lambda g, t, i: (g, t * 2 + i),
    16: lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
}


def _places(formula: Formula, elements: int) -> npt.NDArray[np.int32]:
    return np.array([[formula(lane // 4, lane % 4, i) for i in range(elements)] for lane in range(32)], np.int32)


def _formula(case: Case, operand: str) -> npt.NDArray[np.int32]:
    match operand:
        case "a":
            return _places(_A[case.a.storage.itemsize * 8, case.m, case.k], case.m * case.k // 32)
        case "b":
            return _places(_B[case.b.storage.itemsize * 8, case.k], case.k * 8 // 32)
        case _:
            return _places(_C[case.m], case.m * 8 // 32)


def _registers(matrix: Array, places: npt.NDArray[np.int32]) -> npt.NDArray[np.uint32]:
    """Bits of a matrix as the lanes' registers."""
    return np.ascontiguousarray(matrix[places[..., 0], places[..., 1]]).view(np.uint32)


def _multiply(case: Case, a: Array, b: Array, c: Array, saturate: bool = False) -> Array:
    """D's bits, from the bits of the operands."""
    in_a = _registers(a, _formula(case, "a"))
    in_b = _registers(b, _formula(case, "b"))
    places = _formula(case, "c")
    in_c = _registers(c, places)
    out = np.empty_like(in_c)
    words = [operand.shape[1] for operand in (in_a, in_b, in_c)]
    instruction = case.instruction(saturate)
    assert units().mma_problem(ctypes.byref(instruction)) is None
    units().mma(
        ctypes.byref(instruction),
        pointer(out),
        pointer(in_a),
        words[0],
        pointer(in_b),
        words[1],
        pointer(in_c),
        words[2],
    )
    d = np.empty_like(c)
    d[places[..., 0], places[..., 1]] = out.view(case.d.storage)
    return d


def _random(element: Element, shape: tuple[int, int], random: np.random.Generator, spread: float = 2) -> Array:
    """Bits of random values: integers of the whole range, floats over 2 * `spread` powers of two."""
    if element in (E.S8, E.U8):
        return random.integers(0, 256, shape).astype(np.uint8)
    if element is E.S32:
        return random.integers(-(2**20), 2**20, shape).astype(np.int32).view(np.uint32)
    values = random.choice([-1.0, 1.0], shape) * 2.0 ** random.uniform(-spread, spread, shape)
    return pack(element, values)


@pytest.mark.parametrize("case", _CASES, ids=_name)
def test_fragments_are_those_of_the_manual(case: Case) -> None:
    for operand, element, size in (
        ("a", case.a, case.m * case.k),
        ("b", case.b, case.k * 8),
        ("c", case.d, case.m * 8),
    ):
        expected = _formula(case, operand)
        places = np.empty_like(expected)
        elements = units().fragment(
            ctypes.c_char(operand.encode()), case.m, 8, case.k, ctypes.c_uint8(element), pointer(places)
        )
        assert elements == size // 32
        np.testing.assert_array_equal(places, expected)
        assert len({tuple(place) for place in places.reshape(-1, 2)}) == size  # every element once


@pytest.mark.parametrize("case", _CASES, ids=_name)
def test_product(case: Case) -> None:
    random = np.random.default_rng(case.k)
    a, b, c = (
        _random(element, shape, random)
        for element, shape in ((case.a, (case.m, case.k)), (case.b, (case.k, 8)), (case.d, (case.m, 8)))
    )
    d = unpack(case.d, _multiply(case, a, b, c))
    left, right, start = unpack(case.a, a), unpack(case.b, b), unpack(case.d, c)
    expected = left @ right + start
    if case.d is E.S32:
        np.testing.assert_array_equal(d, expected)
        return
    size = np.abs(left) @ np.abs(right) + np.abs(start)
    bound = {E.F16: 2.0**-10, E.F32: 2.0**-21, E.F64: 2.0**-49}[case.d]
    assert np.max(np.abs(d - expected) / size) < bound


@pytest.mark.parametrize("case", _FLOATS, ids=_name)
@pytest.mark.parametrize("spread", [1, 6, 14])
def test_bits_are_those_of_the_exact_model(case: Case, spread: float) -> None:
    random = np.random.default_rng(11)
    if E.E4M3 in (case.a, case.b):
        spread = min(spread, 7)
    a, b = (_random(e, shape, random, spread) for e, shape in ((case.a, (case.m, case.k)), (case.b, (case.k, 8))))
    c = _random(case.d, (case.m, 8), random, spread)
    a[random.random(a.shape) < 0.1] = 0
    d = _multiply(case, a, b, c)
    left, right, start = unpack(case.a, a), unpack(case.b, b), unpack(case.d, c)
    in_pairs = case.a in _F8
    for i, j in product(range(case.m), range(8)):
        sum_ = left[i].tolist(), right[:, j].tolist(), float(start[i, j])
        expected = pair_sum(*sum_, case.d) if in_pairs else aligned_sum(*sum_, (case.a, case.b), case.d, 25)
        assert d[i, j] == pack(case.d, np.array([expected]))[0], (i, j)


@pytest.mark.parametrize("case", [case for case in _FLOATS if case.a not in _F8], ids=_name)
def test_nan_and_infinity(case: Case) -> None:
    a, b, c = np.ones((16, case.k)), np.ones((case.k, 8)), np.zeros((16, 8))
    a[0, 0], a[1, 1], a[2, 1], c[3, :], b[1, 7] = np.inf, np.nan, -np.inf, np.inf, 0
    c[4, 0] = np.nan
    d = _multiply(case, pack(case.a, a), pack(case.b, b), pack(case.d, c))
    values = unpack(case.d, d)
    nan = {E.F16: 0x7FFF, E.F32: 0x7FFFFFFF}[case.d]
    assert np.all(values[0] == np.inf)
    assert np.all(d[1] == nan)
    assert np.all(values[2, :7] == -np.inf)
    assert d[2, 7] == nan  # infinity times zero
    assert np.all(values[3] == np.inf)
    assert d[4, 0] == nan
    assert np.all(values[4, 1:7] == case.k)
    assert np.all(values[5:, :7] == case.k)
    assert np.all(values[5:, 7] == case.k - 1)


def test_overflow_becomes_infinity() -> None:
    case = Case(16, 16, E.BF16, E.BF16, E.F32)
    huge = np.full((16, 16), 2.0**64)
    d = _multiply(case, pack(E.BF16, huge), pack(E.BF16, huge[:, :8]), pack(E.F32, np.zeros((16, 8))))
    assert np.all(np.isposinf(unpack(E.F32, d)))


def test_tf32_ignores_the_low_bits() -> None:
    case = Case(16, 8, E.TF32, E.TF32, E.F32)
    random = np.random.default_rng(3)
    a, b = _random(E.F32, (16, 8), random), _random(E.F32, (8, 8), random)
    c = np.zeros((16, 8), np.uint32)
    cut = np.uint32(0xFFFFE000)
    np.testing.assert_array_equal(_multiply(case, a | ~cut, b | ~cut, c), _multiply(case, a & cut, b & cut, c))


@pytest.mark.parametrize("saturate", [False, True])
def test_integer_overflow(saturate: bool) -> None:
    case = Case(16, 32, E.S8, E.U8, E.S32)
    a = pack(E.S8, np.where(np.arange(16)[:, None] < 8, 127, -128) * np.ones((1, 32)))
    b = np.full((32, 8), 255, np.uint8)
    start = np.where(np.arange(16)[:, None] < 8, 2**31 - 5, -(2**31) + 5) * np.ones((1, 8), np.int64)
    d = _multiply(case, a, b, start.astype(np.int32).view(np.uint32), saturate).view(np.int32)
    exact = a.view(np.int8).astype(np.int64) @ b.astype(np.int64) + start
    np.testing.assert_array_equal(d, np.clip(exact, -(2**31), 2**31 - 1) if saturate else exact.astype(np.int32))


@pytest.mark.parametrize(
    ("instruction", "name", "problem"),
    [
        (Mma(8, 8, 4, E.F16, E.F16, E.F16, E.F16), "mma.sync.m8n8k4.f16.f16.f16.f16", "this shape"),
        (Mma(16, 8, 16, E.F32, E.F16, E.BF16, E.F32), "mma.sync.m16n8k16.f32.f16.bf16.f32", "this shape"),
        (Mma(16, 8, 64, E.S32, E.S8, E.S8, E.S32), "mma.sync.m16n8k64.s32.s8.s8.s32", "this shape"),
        (Mma(16, 8, 16, E.F16, E.BF16, E.BF16, E.F16), "mma.sync.m16n8k16.f16.bf16.bf16.f16", "accumulator"),
        (Mma(16, 8, 16, E.F32, E.F16, E.F16, E.F16), "mma.sync.m16n8k16.f32.f16.f16.f16", "accumulator"),
        (
            Mma(16, 8, 8, E.F32, E.TF32, E.TF32, E.F32, True),
            "mma.sync.m16n8k8.f32.tf32.tf32.f32.satfinite",
            "satfinite",
        ),
    ],
)
def test_what_is_not_there_is_named(instruction: Mma, name: str, problem: str) -> None:
    buffer = ctypes.create_string_buffer(128)
    units().mma_name(ctypes.byref(instruction), buffer)
    assert buffer.value.decode() == name
    assert problem in units().mma_problem(ctypes.byref(instruction)).decode()
