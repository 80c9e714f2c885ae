"""Reductions of bulk copies: which there are, and their results against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from emulator.tests.async_units import Array, address, units

OPS = ("none", "add", "min", "max", "inc", "dec", "and", "or", "xor")
TYPES = (
    "f16",
    "bf16",
    "tf32",
    "f32",
    "f64",
    "s8",
    "u8",
    "s32",
    "e4m3",
    "e5m2",
    "u32",
    "s64",
    "u64",
    "b32",
    "b64",
    "b16",
    "b8",
)
INTEGERS = {"u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "b32": np.uint32, "b64": np.uint64}

# The table of PTX ISA 9.7.9.25.4.2.
SHARED = {
    "add": "u32 s32 u64",
    **dict.fromkeys(("min", "max"), "u32 s32"),
    **dict.fromkeys(("inc", "dec"), "u32"),
    **dict.fromkeys(("and", "or", "xor"), "b32"),
}
GLOBAL = {
    "add": "u32 s32 u64 f32 f64 f16 bf16",
    **dict.fromkeys(("min", "max"), "u32 s32 u64 s64 f16 bf16"),
    **dict.fromkeys(("inc", "dec"), "u32"),
    **dict.fromkeys(("and", "or", "xor"), "b32 b64"),
}


@pytest.mark.parametrize(("shared", "table"), [(True, SHARED), (False, GLOBAL)])
def test_which_there_are(shared: bool, table: dict[str, str]) -> None:
    found = {
        op: {t for i, t in enumerate(TYPES) if not units().reduction_problem(n, i, shared)} for n, op in enumerate(OPS)
    }
    assert found == {op: set(table.get(op, "").split()) for op in OPS}
    assert b"no asynchronous reduction .add.tf32 into global memory" in units().reduction_problem(1, 2, False)


def reduced(op: str, kind: str, destination: Array, source: Array) -> Array:
    """The C++ result."""
    result = destination.copy()
    units().reduce(address(result), address(source), result.nbytes, OPS.index(op), TYPES.index(kind))
    return result


@pytest.mark.parametrize(
    ("op", "kind"), [(op, t) for op, types in GLOBAL.items() for t in types.split() if t in INTEGERS]
)
def test_integers(op: str, kind: str) -> None:
    random = np.random.default_rng(7)
    dtype = np.dtype(INTEGERS[kind])
    a: Array = random.integers(0, 256, 256 * dtype.itemsize, np.uint8).view(dtype)
    b: Array = random.integers(0, 256, 256 * dtype.itemsize, np.uint8).view(dtype)
    a[:8], b[:8] = np.arange(8), 3  # where inc and dec wrap around
    one = dtype.type(1)
    zero = dtype.type(0)
    with np.errstate(over="ignore"):
        expected: dict[str, npt.NDArray[Any]] = {
            "add": a + b,
            "min": np.minimum(a, b),
            "max": np.maximum(a, b),
            "inc": np.where(a >= b, zero, a + one),
            "dec": np.where((a == 0) | (a > b), b, a - one),
            "and": a & b,
            "or": a | b,
            "xor": a ^ b,
        }
    np.testing.assert_array_equal(reduced(op, kind, a, b), expected[op])


@pytest.mark.parametrize(("kind", "dtype"), [("f16", np.float16), ("f32", np.float32), ("f64", np.float64)])
def test_floating_additions(kind: str, dtype: type[np.floating]) -> None:
    random = np.random.default_rng(8)
    a, b = (
        random.standard_normal(512).astype(dtype) * dtype(2.0) ** random.integers(-8, 8, 512).astype(dtype)
        for _ in range(2)
    )
    np.testing.assert_array_equal(reduced("add", kind, a, b), a + b)


def test_f32_flushes_subnormals_and_f16_does_not() -> None:
    tiny = np.array([0x00000001, 0x807FFFFF, 0x00800000], np.uint32)
    other = np.array([0, 0, 0x80800001], np.uint32)
    assert [hex(n) for n in reduced("add", "f32", tiny, other)] == ["0x0", "0x0", "0x80000000"]
    halves = reduced("add", "f16", np.array([1, 3], np.uint16), np.array([2, 0x8001], np.uint16))
    assert [int(n) for n in halves] == [3, 2]


def bf16(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """Bits of doubles rounded to nearest even, in one step."""
    scale = 2.0 ** (np.floor(np.log2(np.abs(values))) - 7)
    rounded = np.where(values == 0, 0.0, np.round(values / scale) * scale)
    return (rounded.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def test_bf16_additions_round_once() -> None:
    random = np.random.default_rng(9)
    a, b = (bf16(random.standard_normal(2048) * 2.0 ** random.integers(-6, 6, 2048)) for _ in range(2))
    wide = [(x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in (a, b)]
    exact = wide[0] + wide[1]
    assert np.count_nonzero(exact) == exact.size
    np.testing.assert_array_equal(reduced("add", "bf16", a, b), bf16(exact))


@pytest.mark.parametrize(("kind", "nan"), [("f16", 0x7E00), ("bf16", 0x7FC0)])
def test_floating_extremes(kind: str, nan: int) -> None:
    one, two, minus_zero = (0x3C00, 0x4000, 0x8000) if kind == "f16" else (0x3F80, 0x4000, 0x8000)
    a = np.array([one, nan, one, nan, 0, minus_zero], np.uint16)
    b = np.array([two, one, nan, nan, minus_zero, 0], np.uint16)
    assert [int(n) for n in reduced("min", kind, a, b)] == [one, one, one, 0x7FFF, minus_zero, minus_zero]
    assert [int(n) for n in reduced("max", kind, a, b)] == [two, one, one, 0x7FFF, 0, 0]
