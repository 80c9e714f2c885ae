"""The arithmetic of tensor/dot.h in exact fractions, element by element: what the units are compared with bit by bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from emulator.tests.tensor_units import Element

__all__ = ["aligned_sum", "pair_sum"]

_LEAST = {
    Element.F16: -14,
    Element.BF16: -126,
    Element.TF32: -126,
    Element.F32: -126,
    Element.E4M3: -6,
    Element.E5M2: -14,
}


def _exponent(value: float, element: Element) -> int:
    return -126 if value == 0 else max(math.frexp(value)[1] - 1, _LEAST[element])


def _round(exact: Fraction, result: Element, digits: int) -> float:
    if result is Element.F16:
        with np.errstate(over="ignore"):
            return float(np.float16(float(exact)))
    if exact == 0:
        return 0.0
    magnitude = abs(exact)
    exponent = math.floor(math.log2(magnitude))
    exponent += (magnitude >= Fraction(2) ** (exponent + 1)) - (magnitude < Fraction(2) ** exponent)
    if exponent >= 128:
        return math.copysign(math.inf, exact)
    fraction_bits = min(digits, 23) if exponent >= -126 else 23
    unit = Fraction(2) ** (max(exponent, -126) - fraction_bits)
    return float(math.trunc(exact / unit) * unit)


def aligned_sum(
    a: Sequence[float], b: Sequence[float], c: float, types: tuple[Element, Element], result: Element, digits: int
) -> float:
    """The sum of products and c: truncated `digits` digits behind the largest exponent, added, rounded once."""
    if math.isinf(c):
        return c
    exponents = [_exponent(x, types[0]) + _exponent(y, types[1]) for x, y in zip(a, b, strict=True)]
    exponents.append(_exponent(c, result))
    unit = Fraction(2) ** (max(exponents) - digits)
    addends = [Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)]
    total = sum(math.trunc(x / unit) for x in (*addends, Fraction(c)))
    return _round(total * unit, result, digits)


def pair_sum(a: Sequence[float], b: Sequence[float], c: float, result: Element) -> float:
    """The sum of mma.sync with f8 on sm_90: elements k % 4 < 2 by one f16 instruction, the rest by another, then c."""
    total = 0.0
    f16 = (Element.F16, Element.F16)
    for half in (0, 2):
        chosen = [k for k in range(len(a)) if k % 4 in (half, half + 1)]
        total = aligned_sum([a[k] for k in chosen], [b[k] for k in chosen], total, f16, result, 25)
    if result is Element.F16:
        with np.errstate(over="ignore"):
            return float(np.float16(total) + np.float16(c))
    return float(np.float32(total) + np.float32(c))
