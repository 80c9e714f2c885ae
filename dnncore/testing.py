"""How results are judged: one tolerance for the whole project, as a function of dtype and reduction length.

The bound is the a-priori one of floating-point error analysis (Higham, Accuracy and Stability of Numerical Algorithms, section
3.1): the error of a sum of n products is at most n u |a|'|b|. Independent roundings add up like sqrt(n), so the gate takes a few
times sqrt(n) where that is smaller. `docs/numerics.md` says more.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from dnncore.dtypes import DType

__all__ = ["TF32_ROUNDOFF", "assert_close", "tolerance", "unit_roundoff"]

TF32_ROUNDOFF = 2.0**-11
"""u of tf32, whose mantissa has 10 bits behind the point."""

_FUNCTION_ULPS = 8
"""Allowance for exp, log and tanh of the CUDA maths library (1 to 2 ulp each, several in a row)."""


def unit_roundoff(dtype: DType) -> float:
    """u: half the distance from 1 to the next larger number; 0 for integers, which hold what they hold."""
    return float(_finfo(dtype).eps) / 2 if dtype.is_floating else 0.0


def _finfo(dtype: DType) -> np.finfo:
    """NumPy's own knows no bfloat16."""
    finfo: Any = ml_dtypes.finfo
    found: np.finfo = finfo(dtype.numpy)
    return found


def tolerance(dtype: DType, length: int, math_type: str = "dtype") -> float:
    """Error allowed relative to the magnitude of what was summed.

    Args:
        dtype: Of the tensors. A 16-bit one adds the rounding of what is stored to the error of the float32 arithmetic.
        length: Products or terms in one output.
        math_type: `Offer.math`. "tf32" adds the rounding of both factors of a product.
    """
    stored = 2 * unit_roundoff(dtype) if dtype is not dtype.compute else 0.0
    factors = 2 * TF32_ROUNDOFF if math_type == "tf32" else 0.0
    return stored + factors + unit_roundoff(dtype.compute) * (_FUNCTION_ULPS + min(length, 4 * math.sqrt(length)))


def _absolute(dtype: DType, length: int) -> float:
    """Error allowed however small the magnitude: what is lost below the smallest normal number, and an integer's rounding."""
    if not dtype.is_floating:
        return 0.5
    return float(_finfo(dtype).smallest_subnormal) + length * float(np.finfo(dtype.compute.numpy).tiny)


def assert_close(
    actual: np.ndarray,
    expected: np.ndarray,
    magnitude: np.ndarray,
    dtype: DType,
    length: int,
    what: str = "result",
    math_type: str = "dtype",
) -> None:
    """Fail unless every element is within `tolerance` times its magnitude; NaN and infinities must be in the same places.

    int8 and uint8 must be the value rounded and saturated, int32 the value rounded, bool whether it is not 0.

    Args:
        actual: What was computed, in `dtype`.
        expected: The float64 reference.
        magnitude: For each element the sum of the absolute values that went into it; at least |expected|.
        dtype: Of `actual`.
        length: Terms in one element.
        what: For the message.
        math_type: As of `tolerance`.
    """
    if actual.shape != expected.shape:
        raise AssertionError(f"{what}: shape {actual.shape}, expected {expected.shape}")
    if dtype is DType.INT32:
        np.testing.assert_array_equal(actual, np.rint(expected), what)
        return
    if dtype in (DType.INT8, DType.UINT8):
        limits = np.iinfo(dtype.numpy)
        expected = np.clip(np.nan_to_num(expected), limits.min, limits.max)
    if dtype is DType.BOOL:
        expected = expected != 0
    special = ~np.isfinite(expected)
    actual = actual.astype(np.float64)
    same = np.where(np.isnan(expected), np.isnan(actual), actual == expected)
    if not same[special].all():
        index = tuple(int(i) for i in np.argwhere(special & ~same)[0])
        raise AssertionError(f"{what}: {actual[index]} at {index}, expected {expected[index]}")
    with np.errstate(invalid="ignore"):
        error = np.where(special, 0.0, np.abs(actual - expected))
    allowed = tolerance(dtype, length, math_type) * np.where(special, 1.0, magnitude) + _absolute(dtype, length)
    bad = ~(error <= allowed)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        raise AssertionError(
            f"{what}: {int(bad.sum())} of {bad.size} elements differ; first at {index}: {actual[index]!r}, expected "
            f"{expected[index]!r}, error {error[index]:.3g}, allowed {allowed[index]:.3g}"
        )
