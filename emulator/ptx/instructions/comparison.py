"""Comparison and selection: PTX ISA 9.7.6, of halves 9.7.7."""

from __future__ import annotations

from emulator.ptx.rule import Rule
from emulator.ptx.types import FLOATS, INTEGERS, SCALARS

__all__ = ["RULES"]

_FLOATING = ".compare=eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"
_UNTYPED = "|b16|b32|b64"
_INTEGER_OPERATORS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
_ORDERED_OPERATORS = {"eq": "==", "neu": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
"""Comparisons of numbers that are C++'s own, NaN included, where subnormal numbers are not flushed."""
_COMBINE = ".combine=and|or|xor"
_COMPARED = "compare<Compare::{compare}, {flush}>({a}, {b})"


def _set_predicate(modifiers: str, compared: str, section: str = "9.7.6.2") -> tuple[Rule, ...]:
    """Setp with and without a predicate to combine with; `modifiers` has {} where that is named."""
    return (
        Rule("setp", section, "comparison to predicates", modifiers.format(""), "p|q? a b", compared),
        Rule("setp", section, "comparison, combined with a predicate", modifiers.format(_COMBINE), "p|q? a b c:pred",
             effect=f"const bool compared = {compared}; p = combine_{{combine}}(compared, {{c}}); "
                    "q = combine_{combine}(!compared, {c})"),
    )  # fmt: skip


def _set(modifiers: str, flush: str = "false", section: str = "9.7.6.1", compare: str = _COMPARED) -> tuple[Rule, ...]:
    """Set with and without a predicate to combine with."""
    compared = compare.replace("{flush}", flush)
    return (
        Rule("set", section, "comparison to a number", modifiers.format(""), "d:to a b", f"truth<{{to}}>({compared})"),
        Rule("set", section, "comparison, combined with a predicate, to a number", modifiers.format(_COMBINE),
             "d:to a b c:pred", f"truth<{{to}}>(combine_{{combine}}({compared}, {{c}}))"),
    )  # fmt: skip


def _set_predicate_pair(modifiers: str, flush: str) -> tuple[Rule, ...]:
    """Setp of two halves: p is the lower one's."""
    compared = f"compare_pair<Compare::{{compare}}, {flush}>({{a}}, {{b}})"
    return (
        Rule("setp", "9.7.7.2", "comparison of two halves", modifiers.format(""), "p|q a b",
             effect=f"const Pair<bool> both = {compared}; p = both.low; q = both.high"),
        Rule("setp", "9.7.7.2", "comparison of two halves, combined", modifiers.format(_COMBINE), "p|q a b c:pred",
             effect=f"const Pair<bool> both = combine_{{combine}}({compared}, {{c}}); p = both.low; q = both.high"),
    )  # fmt: skip


_PAIR = "compare_pair<Compare::{compare}, {flush}>({a}, {b})"
_TO = ".to=u32|s32|f32"

RULES = (
    *_set(f".compare=eq|ne {{}} {_TO} .type=b16|b32|b64"),
    *_set(f".compare=eq|ne|lt|le|gt|ge|lo|ls|hi|hs {{}} {_TO} .type={INTEGERS}"),
    *_set(f"{_FLOATING} {{}} .ftz? {_TO} .type=f32", "{ftz}"),
    *_set(f"{_FLOATING} {{}} {_TO} .type=f64"),
    *(
        row
        for compare, sign in _INTEGER_OPERATORS.items()
        for row in _set_predicate(
            f".compare={compare} {{}} .type={INTEGERS}{_UNTYPED if compare in ('eq', 'ne') else ''}", f"{{a}} {sign} {{b}}"
        )
    ),
    *(
        row
        for compare, sign in _ORDERED_OPERATORS.items()
        for row in _set_predicate(f".compare={compare} {{}} .type={FLOATS}", f"{{a}} {sign} {{b}}")
    ),
    *_set_predicate(f"{_FLOATING} {{}} .ftz? .type=f32", _COMPARED.replace("{flush}", "{ftz}")),
    *_set_predicate(f"{_FLOATING} {{}} .type=f64", _COMPARED.replace("{flush}", "false")),
    Rule("selp", "9.7.6.3", "a or b, by a predicate", f".type={SCALARS}", "d a b c:pred", "{c} ? {a} : {b}"),
    Rule("slct", "9.7.6.4", "a or b, by a sign", f".type={SCALARS} .s32", "d a b c:s32", "{c} >= 0 ? {a} : {b}"),
    Rule("slct", "9.7.6.4", "a or b, by a sign", f".ftz? .type={SCALARS} .f32", "d a b c:f32",
         "flush<{ftz}>({c}) >= 0 ? {a} : {b}"),
    *_set(f"{_FLOATING} {{}} .ftz? .to=f16|bf16|u16|s16|u32|s32 .type=f16", "{ftz}", "9.7.7.1"),
    *_set(f"{_FLOATING} {{}} .to=f16|bf16|u16|s16|u32|s32 .type=bf16", "false", "9.7.7.1"),
    *_set(f"{_FLOATING} {{}} .ftz? .to=f16|bf16 .type={FLOATS}", "{ftz}", "9.7.7.1"),
    *_set(f".compare=eq|ne|lt|le|gt|ge|lo|ls|hi|hs {{}} .to=f16|bf16 .type={INTEGERS}", "false", "9.7.7.1"),
    *_set(".compare=eq|ne {} .to=f16|bf16 .type=b16|b32|b64", "false", "9.7.7.1"),
    *_set(f"{_FLOATING} {{}} .ftz? .to=f16x2|u32|s32 .type=f16x2", "{ftz}", "9.7.7.1", _PAIR),
    *_set(f"{_FLOATING} {{}} .to=bf16x2|u32|s32 .type=bf16x2", "false", "9.7.7.1", _PAIR),
    *_set_predicate(f"{_FLOATING} {{}} .ftz? .type=f16", _COMPARED.replace("{flush}", "{ftz}"), "9.7.7.2"),
    *_set_predicate(f"{_FLOATING} {{}} .type=bf16", _COMPARED.replace("{flush}", "false"), "9.7.7.2"),
    *_set_predicate_pair(f"{_FLOATING} {{}} .ftz? .type=f16x2", "{ftz}"),
    *_set_predicate_pair(f"{_FLOATING} {{}} .type=bf16x2", "false"),
)  # fmt: skip
