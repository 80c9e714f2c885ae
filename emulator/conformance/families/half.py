"""Arithmetic of f16, bf16 and their pairs: PTX ISA 9.7.4, against exact numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from emulator.conformance import exact
from emulator.conformance.checks import Family
from emulator.conformance.exact import FORMATS
from emulator.conformance.families.floating import BINARY, extremes, lift
from emulator.conformance.scalar import Op, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.exact import Number


def pairwise(oracle: Callable[..., int]) -> Callable[..., int]:
    """A rule of 16 bits on both halves of a word."""
    return lambda *words: oracle(*(word & 0xFFFF for word in words)) | oracle(*(word >> 16 for word in words)) << 16


def relu(rule: Callable[..., Number]) -> Callable[..., Number]:
    """Negative results to 0; NaN stays."""

    def evaluate(*numbers: Number) -> Number:
        result = rule(*numbers)
        return exact.Number(False, Fraction(0)) if result.negative and not result.nan else result

    return evaluate


def _both(table: Table, text: str, kind: str, count: int, oracle: Callable[..., int]) -> None:
    table.add(Op(f"{text}.{kind}", kind, (kind,) * count, oracle))
    table.add(Op(f"{text}.{kind}x2", f"{kind}x2", (f"{kind}x2",) * count, pairwise(oracle)))


def family() -> Family:
    """The checks."""
    made = Family("half")
    table = Table(made)
    for text, count, rule in BINARY:
        exactly = rule(exact.NEAREST)
        for modifiers, flush, clamp in (("", 0, 0), (".ftz", 1, 0), (".sat", 0, 1), (".ftz.sat", 1, 1)):
            oracle = lift("f16", exactly, flush=bool(flush), clamp=bool(clamp))
            _both(table, f"{text}.rn{modifiers}", "f16", count, oracle)
        _both(table, f"{text}.rn", "bf16", count, lift("bf16", exactly))
        if count == 2:
            _both(table, text, "f16", count, lift("f16", exactly))
            _both(table, text, "bf16", count, lift("bf16", exactly))
        else:
            for kind in ("f16", "bf16"):
                _both(table, f"{text}.rn.relu", kind, count, lift(kind, relu(exactly)))
    for kind in ("f16", "bf16"):
        form = FORMATS[kind]

        def sign(a: int, keep: int, flip: int, form: exact.Format = form) -> int:
            return form.nan if form.decode(a).nan else a & keep ^ flip

        _both(table, "neg", kind, 1, lambda a, sign=sign: sign(a, 0xFFFF, 0x8000))
        _both(table, "abs", kind, 1, lambda a, sign=sign: sign(a, 0x7FFF, 0))
        flushes = (False, True) if kind == "f16" else (False,)
        extremes(table, kind, flushes, (False, True), xorsign=True)
        for largest, text in ((False, "min"), (True, "max")):
            for nan in (False, True):
                extreme = lambda a, b, nan=nan, largest=largest: exact.smallest(a, b, nan, largest)  # noqa: E731
                modifiers = ".NaN" if nan else ""
                pair = (f"{kind}x2",) * 2
                table.add(Op(f"{text}{modifiers}.{kind}x2", f"{kind}x2", pair, pairwise(lift(kind, extreme))))
    return made
