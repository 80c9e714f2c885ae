"""Half-precision arithmetic: PTX ISA 9.7.4."""

from __future__ import annotations

from emulator.ptx.rule import Rule

__all__ = ["RULES"]

_F16 = ".type=f16|f16x2"
_BF16 = ".type=bf16|bf16x2"


def _arithmetic(name: str, section: str, title: str) -> tuple[Rule, ...]:
    """add, sub and mul: with .ftz and .sat of f16, plain of bf16."""
    return (
        Rule(name, section, title, f".rn? .ftz? .sat? {_F16}", "d a b", f"half_{name}<{{ftz}}, {{sat}}>({{a}}, {{b}})"),
        Rule(name, section, title, f".rn? {_BF16}", "d a b", f"half_{name}<false, false>({{a}}, {{b}})"),
    )


def _extreme(name: str, section: str, greater: str) -> tuple[Rule, ...]:
    """min and max: of numbers, or of magnitudes with the signs combined."""
    what = "maximum" if greater == "true" else "minimum"
    rows = []
    for modifiers, flush in ((f".ftz? .NaN? {{}} {_F16}", "{ftz}"), (f".NaN? {{}} {_BF16}", "false")):
        for sign, title in (("false", what), ("true", f"{what} of magnitudes, signs combined")):
            between = ".xorsign .abs" if sign == "true" else ""
            value = f"half_extreme<{greater}, {flush}, {{NaN}}, {sign}>({{a}}, {{b}})"
            rows.append(Rule(name, section, title, modifiers.format(between), "d a b", value))
    return tuple(rows)


RULES = (
    *_arithmetic("add", "9.7.4.1", "half addition"),
    *_arithmetic("sub", "9.7.4.2", "half subtraction"),
    *_arithmetic("mul", "9.7.4.3", "half multiplication"),
    Rule("fma.rn", "9.7.4.4", "a * b + c, rounded once", f".ftz? .sat? {_F16}", "d a b c",
         "half_fma<{ftz}, {sat}, false>({a}, {b}, {c})"),
    Rule("fma.rn", "9.7.4.4", "a * b + c, negative ones to zero", f".ftz? .relu {_F16}", "d a b c",
         "half_fma<{ftz}, false, true>({a}, {b}, {c})"),
    Rule("fma.rn", "9.7.4.4", "a * b + c, rounded once", f".relu? {_BF16}", "d a b c",
         "half_fma<false, false, {relu}>({a}, {b}, {c})"),
    Rule("neg", "9.7.4.5", "half negation", f".ftz? {_F16}", "d a", "half_neg<{ftz}>({a})"),
    Rule("neg", "9.7.4.5", "half negation", _BF16, "d a", "half_neg<false>({a})"),
    Rule("abs", "9.7.4.6", "half absolute value", f".ftz? {_F16}", "d a", "half_abs<{ftz}>({a})"),
    Rule("abs", "9.7.4.6", "half absolute value", _BF16, "d a", "half_abs<false>({a})"),
    *_extreme("min", "9.7.4.7", "false"),
    *_extreme("max", "9.7.4.8", "true"),
    Rule("tanh.approx", "9.7.4.9", "hyperbolic tangent of halves", f"{_F16}|bf16|bf16x2", "d a", "half_tanh({a})"),
    Rule("ex2.approx", "9.7.4.10", "power of two of halves", _F16, "d a", "half_ex2<false>({a})"),
    Rule("ex2.approx.ftz", "9.7.4.10", "power of two of halves", _BF16, "d a", "half_ex2<true>({a})"),
)  # fmt: skip
