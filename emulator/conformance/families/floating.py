"""Correctly rounded arithmetic of f32 and f64: PTX ISA 9.7.3, against exact numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.conformance import exact
from emulator.conformance.checks import Family
from emulator.conformance.exact import FORMATS, Number
from emulator.conformance.scalar import Op, Table

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDINGS = (exact.NEAREST, exact.ZERO, exact.DOWN, exact.UP)


def lift(
    kind: str, rule: Callable[..., Number], rounding: str = exact.NEAREST, flush: bool = False, clamp: bool = False
) -> Callable[..., int]:
    """A rule of numbers as one of bit patterns of a format."""
    form = FORMATS[kind]

    def evaluate(*words: int) -> int:
        result = rule(*(form.decode(word, flush) for word in words))
        return form.encode(exact.saturate(result) if clamp else result, rounding, flush)

    return evaluate


def add(rounding: str) -> Callable[..., Number]:
    """a + b."""
    return lambda a, b: exact.add(a, b, rounding)


def subtract(rounding: str) -> Callable[..., Number]:
    """a - b."""
    return lambda a, b: exact.add(a, exact.negate(b), rounding)


def multiply(_rounding: str) -> Callable[..., Number]:
    """a * b."""
    return exact.multiply


def fused(rounding: str) -> Callable[..., Number]:
    """a * b + c."""
    return lambda a, b, c: exact.fused(a, b, c, rounding)


def divide(_rounding: str) -> Callable[..., Number]:
    """a / b."""
    return exact.divide


def reciprocal(_rounding: str) -> Callable[..., Number]:
    """1 / a."""
    return lambda a: exact.divide(FORMATS["f32"].decode(0x3F800000), a)


def root(_rounding: str) -> Callable[..., Number]:
    """The square root."""
    return exact.root


BINARY = (("add", 2, add), ("sub", 2, subtract), ("mul", 2, multiply), ("fma", 3, fused))
DIVISIONS = (("div", 2, divide), ("rcp", 1, reciprocal), ("sqrt", 1, root))


def _rounded(table: Table) -> None:
    for rounding in ROUNDINGS:
        for flush in (False, True):
            for clamp in (False, True):
                modifiers = f"{'.ftz' if flush else ''}{'.sat' if clamp else ''}"
                for text, count, rule in BINARY:
                    oracle = lift("f32", rule(rounding), rounding, flush, clamp)
                    table.add(Op(f"{text}.{rounding}{modifiers}.f32", "f32", ("f32",) * count, oracle))
            for text, count, rule in DIVISIONS:
                oracle = lift("f32", rule(rounding), rounding, flush)
                table.add(Op(f"{text}.{rounding}{'.ftz' if flush else ''}.f32", "f32", ("f32",) * count, oracle))
        for text, count, rule in (*BINARY, *DIVISIONS):
            oracle = lift("f64", rule(rounding), rounding)
            table.add(Op(f"{text}.{rounding}.f64", "f64", ("f64",) * count, oracle))
    for kind in ("f32", "f64"):
        for text, count, rule in BINARY[:3]:
            # Without .rn the assembler may fuse; alone in a kernel there is nothing to fuse with.
            table.add(Op(f"{text}.{kind}", kind, (kind,) * count, lift(kind, rule(exact.NEAREST))))
        table.add(Op(f"mad.rn.{kind}", kind, (kind,) * 3, lift(kind, fused(exact.NEAREST))))


def _signs(table: Table) -> None:
    def no_nan(rule: Callable[..., int], kind: str, flush: bool) -> Callable[..., int]:
        # What happens to a NaN is compared as "a NaN".
        def evaluate(a: int, *rest: int) -> int:
            number = FORMATS[kind].decode(a, flush)
            return FORMATS[kind].nan if number.nan else rule(FORMATS[kind].encode(number), *rest)

        return evaluate

    for kind in ("f32", "f64"):
        width = FORMATS[kind].width
        top = 1 << (width - 1)
        for flush in (False, True) if kind == "f32" else (False,):
            ftz = ".ftz" if flush else ""
            negative = no_nan(lambda a, top=top: a ^ top, kind, flush)
            positive = no_nan(lambda a, top=top: a & ~top, kind, flush)
            table.add(Op(f"neg{ftz}.{kind}", kind, (kind,), negative))
            table.add(Op(f"abs{ftz}.{kind}", kind, (kind,), positive))
        copied = lambda a, b, top=top: b & ~top | a & top  # noqa: E731
        table.add(Op(f"copysign.{kind}", kind, (kind, kind), copied))
        for which, holds in _TESTS.items():
            code = f"testp.{which}.{kind} p, $a; selp.u32 $d, 1, 0, p;"
            rule = lambda a, kind=kind, holds=holds: int(holds(kind, a))  # noqa: E731
            table.add(Op(code, "u32", (kind,), rule, name=f"testp.{which}.{kind}"))


def _subnormal(kind: str, a: int) -> bool:
    form = FORMATS[kind]
    return 0 < a & ((1 << (form.width - 1)) - 1) < 1 << form.mantissa


def _normal(kind: str, a: int) -> bool:
    # Zeros count as normal (PTX ISA 9.7.3.2, testp).
    number = FORMATS[kind].decode(a)
    return not number.nan and not number.infinite and not _subnormal(kind, a)


_TESTS: dict[str, Callable[[str, int], bool]] = {
    "finite": lambda kind, a: not FORMATS[kind].decode(a).nan and not FORMATS[kind].decode(a).infinite,
    "infinite": lambda kind, a: FORMATS[kind].decode(a).infinite,
    "number": lambda kind, a: not FORMATS[kind].decode(a).nan,
    "notanumber": lambda kind, a: FORMATS[kind].decode(a).nan,
    "normal": _normal,
    "subnormal": _subnormal,
}


def extremes(table: Table, kind: str, flushes: tuple[bool, ...], nans: tuple[bool, ...], xorsign: bool) -> None:
    """min and max of a format with their modifiers."""
    for largest, text in ((False, "min"), (True, "max")):
        for flush in flushes:
            for nan in nans:
                modifiers = f"{'.ftz' if flush else ''}{'.NaN' if nan else ''}"
                rule = lambda a, b, nan=nan, largest=largest: exact.smallest(a, b, nan, largest)  # noqa: E731
                table.add(Op(f"{text}{modifiers}.{kind}", kind, (kind, kind), lift(kind, rule, flush=flush)))
                if xorsign:
                    signed = _xorsign(kind, nan, largest, flush)
                    table.add(Op(f"{text}{modifiers}.xorsign.abs.{kind}", kind, (kind, kind), signed))


def _xorsign(kind: str, nan: bool, largest: bool, flush: bool) -> Callable[[int, int], int]:
    form = FORMATS[kind]
    top = 1 << (form.width - 1)

    def evaluate(a: int, b: int) -> int:
        x, y = (form.decode(word & ~top, flush) for word in (a, b))
        result = exact.smallest(x, y, nan, largest)
        return form.nan if result.nan else form.encode(result) & ~top | (a ^ b) & top

    return evaluate


def family() -> Family:
    """The checks."""
    made = Family("floating")
    table = Table(made)
    _rounded(table)
    _signs(table)
    extremes(table, "f32", (False, True), (False, True), xorsign=True)
    extremes(table, "f64", (False,), (False,), xorsign=False)
    return made
