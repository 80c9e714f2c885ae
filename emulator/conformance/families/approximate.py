"""Approximations: PTX ISA 9.7.3 and 9.7.4, whose errors the manual bounds; recorded outputs are compared with that bound."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from emulator.conformance import exact
from emulator.conformance.checks import Comparison, Family
from emulator.conformance.exact import FORMATS, Number
from emulator.conformance.families.floating import lift
from emulator.conformance.scalar import COUNT, Op, Table
from emulator.conformance.values import moderate, operands

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.values import Array


def _by_float(rule: Callable[[float], float]) -> Callable[[Number], Number]:
    """A function of doubles, with its limits at the infinities."""

    def evaluate(x: Number) -> Number:
        if x.nan:
            return exact.NAN
        value = (-math.inf if x.negative else math.inf) if x.infinite else float(x.value)
        if x.magnitude == 0 and x.negative:
            value = -0.0
        result = rule(value)
        if math.isnan(result):
            return exact.NAN
        if math.isinf(result):
            return exact.infinity(result < 0)
        return Number(math.copysign(1, result) < 0, abs(Fraction(result)))

    return evaluate


def _power(x: float) -> float:
    return math.inf if x > 1000 else 0.0 if x < -1000 else 2.0**x


def _logarithm(x: float) -> float:
    return -math.inf if x == 0 else math.nan if x < 0 else math.log2(x)


def _inverse_root(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, x)
    return math.nan if x < 0 else 1 / math.sqrt(x)


def _inverse(x: Number) -> Number:
    return exact.divide(FORMATS["f32"].decode(0x3F800000), x)


def _angles(name: str) -> list[Array]:
    return [moderate(name, "f32", COUNT) & 0x83FFFFFF | 0x3C000000]  # magnitudes in [2^-7, 2)


def _divisors(name: str) -> list[Array]:
    # div.approx is bounded for divisors in [2^-126, 2^126]: exponents in the middle of the range.
    a, b = operands(name, ("f32", "f32"), COUNT)
    return [a, b & 0xBFFFFFFF | 0x20000000]


def _f32(table: Table) -> None:
    rows: list[tuple[str, Callable[[Number], Number], Comparison]] = [
        ("ex2.approx", _by_float(_power), Comparison(ulp=2, reason="PTX ISA 9.7.3, ex2: 2 ulp")),
        (
            "lg2.approx",
            _by_float(_logarithm),
            Comparison(relative=2**-22, absolute=2**-22, reason="PTX ISA 9.7.3, lg2: 2^-22, absolute near 1"),
        ),
        ("rcp.approx", _inverse, Comparison(ulp=1, reason="PTX ISA 9.7.3, rcp: 1 ulp")),
        ("sqrt.approx", exact.root, Comparison(relative=2**-22, reason="PTX ISA 9.7.3, sqrt: 2^-23 and a rounding")),
        ("rsqrt.approx", _by_float(_inverse_root), Comparison(relative=2**-22, reason="PTX ISA 9.7.3, rsqrt: 2^-22.9")),
    ]
    for text, rule, comparison in rows:
        for flush in (True, False):
            oracle = lift("f32", rule, flush=flush)
            title = f"{text}{'.ftz' if flush else ''}.f32"
            table.add(Op(title, "f32", ("f32",), oracle, comparison=comparison))
    circle = Comparison(absolute=2**-20, reason="PTX ISA 9.7.3, sin and cos: 2^-20.5 in [-pi, pi]")
    for text, function in (("sin", math.sin), ("cos", math.cos)):
        for flush in (True, False):
            oracle = lift("f32", _by_float(function), flush=flush)
            title = f"{text}.approx{'.ftz' if flush else ''}.f32"
            table.add(Op(title, "f32", ("f32",), oracle, comparison=circle, inputs=_angles))
    tangent = Comparison(relative=2**-10.9, reason="PTX ISA 9.7.3, tanh: 2^-11 relative, and a rounding")
    table.add(Op("tanh.approx.f32", "f32", ("f32",), lift("f32", _by_float(math.tanh)), comparison=tangent))
    quotient = Comparison(ulp=2, reason="PTX ISA 9.7.3, div: 2 ulp")
    for text in ("div.approx", "div.full"):
        for flush in (True, False):
            oracle = lift("f32", exact.divide, flush=flush)
            title = f"{text}{'.ftz' if flush else ''}.f32"
            table.add(Op(title, "f32", ("f32", "f32"), oracle, comparison=quotient, inputs=_divisors))


def _f64(table: Table) -> None:
    coarse = Comparison(relative=2**-20, reason="PTX ISA 9.7.3: about the upper 20 bits of the mantissa")
    for text, rule in (("rcp.approx.ftz.f64", _inverse), ("rsqrt.approx.ftz.f64", _by_float(_inverse_root))):
        table.add(Op(text, "f64", ("f64",), lift("f64", rule, flush=True), comparison=coarse))
    fine = Comparison(ulp=4, reason="PTX ISA 9.7.3, rsqrt.approx.f64: 2^-52.5 or so")
    table.add(Op("rsqrt.approx.f64", "f64", ("f64",), lift("f64", _by_float(_inverse_root)), comparison=fine))


def _halves(table: Table) -> None:
    half = Comparison(ulp=2, reason="PTX ISA 9.7.4, ex2: 2^-9.9 relative; tanh: 2^-10.987 absolute")
    brain = Comparison(ulp=2, reason="PTX ISA 9.7.4, ex2: 2^-7 relative; tanh: 2^-8 absolute")
    for kind, comparison in (("f16", half), ("bf16", brain)):
        for text, rule in (("ex2.approx", _power), ("tanh.approx", math.tanh)):
            ftz = text.startswith("ex2") and kind == "bf16"
            oracle = lift(kind, _by_float(rule), flush=ftz)
            title = f"{text}{'.ftz' if ftz else ''}.{kind}"
            table.add(Op(title, kind, (kind,), oracle, comparison=comparison))
            both = lambda a, oracle=oracle: oracle(a & 0xFFFF) | oracle(a >> 16) << 16  # noqa: E731
            table.add(Op(f"{title}x2", f"{kind}x2", (f"{kind}x2",), both, comparison=comparison))


def family() -> Family:
    """The checks."""
    made = Family("approximate")
    table = Table(made)
    _f32(table)
    _f64(table)
    _halves(table)
    return made
