"""Number formats of the matrix units against NumPy and against tables from their definitions."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from emulator.tests.tensor_units import Format, decode, encode, pointer, units

Array = npt.NDArray[Any]

_BITS = {Format.F16: 16, Format.BF16: 16, Format.E4M3: 8, Format.E5M2: 8}


def _table(number_format: Format) -> npt.NDArray[np.float64]:
    """Values of all bit patterns, by NumPy's types or by OCP's definition of e4m3."""
    every = np.arange(1 << _BITS[number_format], dtype=np.uint32)
    match number_format:
        case Format.F16:
            return every.astype(np.uint16).view(np.float16).astype(np.float64)
        case Format.BF16:
            with np.errstate(invalid="ignore"):  # signalling NaNs
                return (every << 16).view(np.float32).astype(np.float64)
        case Format.E5M2:
            return (every << 8).astype(np.uint16).view(np.float16).astype(np.float64)
    exponent, fraction = every >> 3 & 15, every & 7
    values = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent.astype(int) - 7))
    values[(every & 127) == 127] = np.nan
    return np.where(every & 128, -values, values)


@pytest.mark.parametrize("number_format", list(_BITS))
def test_every_pattern_decodes_to_its_value_and_back(number_format: Format) -> None:
    expected = _table(number_format)
    every = np.arange(expected.size, dtype=np.uint32)
    values = decode(number_format, every)
    np.testing.assert_array_equal(values, expected)
    assert np.array_equal(np.signbit(values)[~np.isnan(values)], np.signbit(expected)[~np.isnan(values)])
    canonical = expected.size // 2 - 1
    for toward_zero in (False, True):
        np.testing.assert_array_equal(
            encode(number_format, values, toward_zero), np.where(np.isnan(expected), canonical, every)
        )


def _doubles(count: int, largest_exponent: int) -> npt.NDArray[np.float64]:
    random = np.random.default_rng(5)
    exponents = random.uniform(-largest_exponent - 30, largest_exponent, count)
    return random.choice([-1.0, 1.0], count) * 2.0**exponents


@pytest.mark.parametrize("number_format", list(_BITS))
def test_rounding_finds_the_neighbour(number_format: Format) -> None:
    table = _table(number_format)
    positive = table[: table.size // 2]
    finite = positive[np.isfinite(positive)]
    midpoints = (finite[1:] + finite[:-1]) / 2
    largest = int(np.log2(finite[-1]))
    values = np.concatenate([midpoints, -midpoints, np.nextafter(midpoints, 0), np.nextafter(midpoints, np.inf)])
    values = np.concatenate([values, _doubles(20000, largest)])
    magnitude = np.abs(values)
    below = np.searchsorted(finite, magnitude, side="right") - 1
    above = np.minimum(below + 1, finite.size - 1)
    nearer_above = magnitude - finite[below] > finite[above] - magnitude
    tie_to_even = (magnitude - finite[below] == finite[above] - magnitude) & (below % 2 == 1)
    sign = np.where(np.signbit(values), positive.size, 0)
    # The patterns count upward with the values, so an index is a pattern.
    np.testing.assert_array_equal(encode(number_format, values, toward_zero=True), below + sign)
    np.testing.assert_array_equal(
        encode(number_format, values), np.where(nearer_above | tie_to_even, above, below) + sign
    )


def test_f32_rounds_as_numpy_does() -> None:
    values = np.concatenate([_doubles(100000, 127), [0.0, -0.0, np.inf, -np.inf]])
    rounded = values.astype(np.float32)
    np.testing.assert_array_equal(encode(Format.F32, values), rounded.view(np.uint32))
    too_far = np.abs(rounded.astype(np.float64)) > np.abs(values)
    truncated = np.where(too_far, np.nextafter(rounded, np.float32(0)), rounded)
    np.testing.assert_array_equal(encode(Format.F32, values, toward_zero=True), truncated.view(np.uint32))
    assert encode(Format.F32, np.array([np.nan]))[0] == 0x7FFFFFFF


@pytest.mark.parametrize(
    ("number_format", "value", "nearest", "toward_zero"),
    [
        (Format.F16, 65519.0, 0x7BFF, 0x7BFF),
        (Format.F16, 65520.0, 0x7C00, 0x7BFF),
        (Format.F16, -1e300, 0xFC00, 0xFBFF),
        (Format.F32, 2.0**128, 0x7F800000, 0x7F7FFFFF),
        (Format.E4M3, 464.0, 0x7E, 0x7E),
        (Format.E4M3, 465.0, 0x7F, 0x7E),
        (Format.E4M3, np.inf, 0x7F, 0x7F),
        (Format.E5M2, 61440.0, 0x7C, 0x7B),
        (Format.F32, 5e-324, 0, 0),
    ],
)
def test_too_large_and_too_small(number_format: Format, value: float, nearest: int, toward_zero: int) -> None:
    assert encode(number_format, np.array([value]))[0] == nearest
    assert encode(number_format, np.array([value]), toward_zero=True)[0] == toward_zero


@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_fragments(transposed: bool) -> None:
    elements = np.arange(64, dtype=np.uint16).reshape(8, 8)
    registers = np.empty(32, np.uint32)
    units().matrix_fragments(pointer(elements), ctypes.c_bool(transposed), pointer(registers))
    seen = elements.T if transposed else elements
    # PTX ISA 9.7.14.5.15: row l / 4 goes to lanes 4 * row to 4 * row + 3, two elements each.
    np.testing.assert_array_equal(registers.view(np.uint16).reshape(8, 8), seen)
    back = np.empty((8, 8), np.uint16)
    units().matrix_of_fragments(pointer(registers), ctypes.c_bool(transposed), pointer(back))
    np.testing.assert_array_equal(back, elements)
