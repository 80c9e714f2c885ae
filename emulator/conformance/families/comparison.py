"""Comparisons: setp and set, PTX ISA 9.7.5 to 9.7.7, against exact numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emulator.conformance import exact
from emulator.conformance.checks import Family
from emulator.conformance.exact import FORMATS
from emulator.conformance.families.integer import number
from emulator.conformance.scalar import Op, Table

if TYPE_CHECKING:
    from collections.abc import Callable

_ORDER: dict[str, Callable[[int], bool]] = {
    "eq": lambda sign: sign == 0,
    "ne": lambda sign: sign != 0,
    "lt": lambda sign: sign < 0,
    "le": lambda sign: sign <= 0,
    "gt": lambda sign: sign > 0,
    "ge": lambda sign: sign >= 0,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_FLOATING = (*_ORDER, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def holds(kind: str, comparison: str, a: int, b: int, flush: bool = False) -> bool:
    """Whether a comparison holds for two bit patterns."""
    if kind not in FORMATS:
        x, y = number(kind, a), number(kind, b)
        return _ORDER[_UNSIGNED.get(comparison, comparison)]((x > y) - (x < y))
    x, y = (FORMATS[kind].decode(word, flush) for word in (a, b))  # type: ignore[assignment]
    unordered = x.nan or y.nan  # type: ignore[attr-defined]
    if comparison in ("num", "nan"):
        return bool(unordered) == (comparison == "nan")
    if unordered:
        return comparison.endswith("u")
    keys = exact.order(x), exact.order(y)  # type: ignore[arg-type]
    return _ORDER[comparison.removesuffix("u")]((keys[0] > keys[1]) - (keys[0] < keys[1]))


def _setp(table: Table) -> None:
    rows = [(f"{sign}{width}", tuple(_ORDER)) for sign in "su" for width in (16, 32, 64)]
    rows += [(f"b{width}", ("eq", "ne")) for width in (16, 32, 64)]
    rows += [(f"u{width}", tuple(_UNSIGNED)) for width in (16, 32, 64)]
    rows += [(kind, _FLOATING) for kind in ("f32", "f64", "f16", "bf16")]
    for kind, comparisons in rows:
        for comparison in comparisons:
            text = f"setp.{comparison}.{kind}"
            rule = lambda a, b, kind=kind, comparison=comparison: int(holds(kind, comparison, a, b))  # noqa: E731
            table.add(Op(f"{text} p, $a, $b; selp.u32 $d, 1, 0, p;", "u32", (kind, kind), rule, name=text))
    for kind, comparisons in (("f32", _FLOATING), ("f16", ("lt", "geu"))):
        for comparison in comparisons:
            text = f"setp.{comparison}.ftz.{kind}"
            rule = lambda a, b, kind=kind, comparison=comparison: int(holds(kind, comparison, a, b, True))  # noqa: E731
            table.add(Op(f"{text} p, $a, $b; selp.u32 $d, 1, 0, p;", "u32", (kind, kind), rule, name=text))


_BOOLEAN: dict[str, Callable[[bool, bool], bool]] = {
    "and": lambda x, y: x and y,
    "or": lambda x, y: x or y,
    "xor": lambda x, y: x != y,
}


def _combined(table: Table) -> None:
    for operation, combine in _BOOLEAN.items():
        for kind in ("s32", "f32", "u64"):
            text = f"setp.lt.{operation}.{kind}"
            code = f"{text} p|q, $a, $b, $c; selp.u32 t0, 1, 0, p; selp.u32 t1, 2, 0, q; or.b32 $d, t0, t1;"

            def rule(a: int, b: int, c: int, kind: str = kind, combine: Callable[[bool, bool], bool] = combine) -> int:
                less = holds(kind, "lt", a, b)
                return int(combine(less, bool(c))) | int(combine(not less, bool(c))) << 1

            table.add(Op(code, "u32", (kind, kind, "pred"), rule, name=text))
            code = f"setp.ge.{operation}.{kind} p, $a, $b, !$c; selp.u32 $d, 1, 0, p;"

            def inverted(
                a: int, b: int, c: int, kind: str = kind, combine: Callable[[bool, bool], bool] = combine
            ) -> int:
                return int(combine(holds(kind, "ge", a, b), not c))

            table.add(Op(code, "u32", (kind, kind, "pred"), inverted, name=f"setp.ge.{operation}.{kind} !c"))
    _rotated(table)
    # Both predicates of an unordered comparison.
    code = "setp.lt.f32 p|q, $a, $b; selp.u32 t0, 1, 0, p; selp.u32 t1, 2, 0, q; or.b32 $d, t0, t1;"
    either = lambda a, b: 1 if holds("f32", "lt", a, b) else 2  # noqa: E731
    table.add(Op(code, "u32", ("f32", "f32"), either, name="setp.lt.f32 p|q"))


def _rotated(table: Table) -> None:
    """Every comparison with some combination, every type with every combination."""
    rows = [(kind, tuple(_ORDER)) for kind in ("s16", "u32", "s64")]
    rows += [("u64", tuple(_UNSIGNED)), ("b16", ("eq", "ne")), ("b64", ("ne", "eq"))]
    rows += [(kind, _FLOATING) for kind in ("f64", "f16", "bf16")]
    done = {check.name for check in table.family.checks}
    for kind, comparisons in rows:
        for number_of_row, comparison in enumerate(comparisons):
            operation = tuple(_BOOLEAN)[number_of_row % 3]
            text = f"setp.{comparison}.{operation}.{kind}"
            if text not in done:

                def rule(a: int, b: int, c: int, kind: str = kind, text: str = text) -> int:
                    _, comparison, operation, _ = text.split(".")
                    return int(_BOOLEAN[operation](holds(kind, comparison, a, b), bool(c)))

                code = f"{text} p, $a, $b, $c; selp.u32 $d, 1, 0, p;"
                table.add(Op(code, "u32", (kind, kind, "pred"), rule, name=text))


def _set(table: Table) -> None:
    true = {"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}
    _set_combined(table, true)
    for kind in ("s32", "u32", "f32", "u16", "s64", "f64", "f16", "bf16"):
        for result, bits in true.items():
            if kind in ("f16", "bf16") and result in ("f32", "f16", "bf16"):
                continue
            text = f"set.le.{result}.{kind}"
            rule = lambda a, b, kind=kind, bits=bits: bits if holds(kind, "le", a, b) else 0  # noqa: E731
            table.add(Op(text, result, (kind, kind), rule))
    text = "set.gt.and.u32.f32"
    rule3 = lambda a, b, c: 0xFFFFFFFF if holds("f32", "gt", a, b) and c else 0  # noqa: E731
    table.add(Op(f"{text} $d, $a, $b, $c;", "u32", ("f32", "f32", "pred"), rule3, name=text))
    text = "set.neu.ftz.f32.f32"
    flushed = lambda a, b: 0x3F800000 if holds("f32", "neu", a, b, True) else 0  # noqa: E731
    table.add(Op(text, "f32", ("f32", "f32"), flushed))


def _set_combined(table: Table, true: dict[str, int]) -> None:
    for kind in ("s16", "u32", "b32", "b64", "u64", "f32", "f64", "f16", "bf16"):
        comparison = "eq" if kind[0] == "b" and kind != "bf16" else "gt"
        for number_of_row, (result, bits) in enumerate(true.items()):
            if kind in ("f16", "bf16") and result in ("f32", "f16", "bf16"):
                continue
            operation = tuple(_BOOLEAN)[number_of_row % 3]

            def rule(
                a: int,
                b: int,
                c: int,
                kind: str = kind,
                bits: int = bits,
                operation: str = operation,
                which: str = comparison,
            ) -> int:
                return bits if _BOOLEAN[operation](holds(kind, which, a, b), bool(c)) else 0

            text = f"set.{comparison}.{operation}.{result}.{kind}"
            if text != "set.gt.and.u32.f32":
                table.add(Op(f"{text} $d, $a, $b, $c;", result, (kind, kind, "pred"), rule, name=text))
            if kind[0] == "b" and kind != "bf16":
                plain = lambda a, b, bits=bits: bits if a != b else 0  # noqa: E731
                table.add(Op(f"set.ne.{result}.{kind}", result, (kind, kind), plain))


def _pairs(table: Table) -> None:
    ones = {"f16": 0x3C00, "bf16": 0x3F80}
    for kind, one in ones.items():
        pair = (f"{kind}x2",) * 2
        for comparison in ("eq", "lt", "geu", "nan"):

            def halves(a: int, b: int, kind: str = kind, comparison: str = comparison) -> tuple[bool, bool]:
                return (
                    holds(kind, comparison, a & 0xFFFF, b & 0xFFFF),
                    holds(kind, comparison, a >> 16, b >> 16),
                )

            text = f"set.{comparison}.{kind}x2.{kind}x2"
            made = lambda a, b, one=one, halves=halves: sum(  # noqa: E731
                one << (16 * i) for i, yes in enumerate(halves(a, b)) if yes
            )
            table.add(Op(text, "b32", pair, made))
            text = f"set.{comparison}.u32.{kind}x2"
            masks = lambda a, b, halves=halves: sum(  # noqa: E731
                0xFFFF << (16 * i) for i, yes in enumerate(halves(a, b)) if yes
            )
            table.add(Op(text, "b32", pair, masks))
            text = f"setp.{comparison}.{kind}x2"
            code = f"{text} p|q, $a, $b; selp.u32 t0, 1, 0, p; selp.u32 t1, 2, 0, q; or.b32 $d, t0, t1;"
            both = lambda a, b, halves=halves: sum(1 << i for i, yes in enumerate(halves(a, b)) if yes)  # noqa: E731
            table.add(Op(code, "u32", pair, both, name=text))
        _pairs_combined(table, kind, one)
        text = f"set.lt.{kind}.{kind}"
        rule = lambda a, b, kind=kind, one=one: one if holds(kind, "lt", a, b) else 0  # noqa: E731
        table.add(Op(text, kind, (kind, kind), rule))


def _pairs_combined(table: Table, kind: str, one: int) -> None:
    kinds = (f"{kind}x2", f"{kind}x2", "pred")

    def halves(a: int, b: int, c: int) -> tuple[bool, bool]:
        low, high = holds(kind, "le", a & 0xFFFF, b & 0xFFFF), holds(kind, "le", a >> 16, b >> 16)
        return low and bool(c), high and bool(c)

    text = f"setp.le.and.{kind}x2"
    code = f"{text} p|q, $a, $b, $c; selp.u32 t0, 1, 0, p; selp.u32 t1, 2, 0, q; or.b32 $d, t0, t1;"
    rule = lambda a, b, c: sum(1 << i for i, yes in enumerate(halves(a, b, c)) if yes)  # noqa: E731
    table.add(Op(code, "u32", kinds, rule, name=text))
    for result, true in ((f"{kind}x2", one), ("u32", 0xFFFF)):
        text = f"set.le.and.{result}.{kind}x2"
        made = lambda a, b, c, true=true: sum(true << (16 * i) for i, yes in enumerate(halves(a, b, c)) if yes)  # noqa: E731
        table.add(Op(f"{text} $d, $a, $b, $c;", "b32", kinds, made, name=text))
    text = f"set.le.and.{kind}.{kind}"
    rule = lambda a, b, c: one if holds(kind, "le", a, b) and c else 0  # noqa: E731
    table.add(Op(f"{text} $d, $a, $b, $c;", kind, (kind, kind, "pred"), rule, name=text))


def family() -> Family:
    """The checks."""
    made = Family("comparison")
    table = Table(made)
    _setp(table)
    _combined(table)
    _set(table)
    _pairs(table)
    return made
