"""Conversions: cvt, cvt.pack and cvta, PTX ISA 9.7.9, against exact numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import exact
from emulator.conformance.checks import Family
from emulator.conformance.exact import FORMATS, Number
from emulator.conformance.families.floating import ROUNDINGS
from emulator.conformance.families.half import relu
from emulator.conformance.families.integer import clamp, number
from emulator.conformance.scalar import COUNT, Op, Table
from emulator.conformance.values import WIDTHS, bits, integers

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.values import Array

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")
TO_INTEGER = {"rni": exact.NEAREST, "rzi": exact.ZERO, "rmi": exact.DOWN, "rpi": exact.UP}


def _integers(table: Table) -> None:
    for source in INTEGERS:
        for result in INTEGERS:
            if source != result:
                table.add(Op(f"cvt.{result}.{source}", result, (source,), lambda a, s=source: number(s, a)))
            if (WIDTHS[result] <= WIDTHS[source] and result != source) or (source[0] == "s" and result[0] == "u"):
                rule = lambda a, s=source, r=result: clamp(r, number(s, a))  # noqa: E731
                table.add(Op(f"cvt.sat.{result}.{source}", result, (source,), rule))


def _float_to_integer(table: Table) -> None:
    for source in FLOATS:
        for result in INTEGERS:
            if source == "bf16" and WIDTHS[result] == 8:
                continue  # sm_90 has no such conversion
            for modifier, rounding in TO_INTEGER.items():
                wide = source == "f64" or WIDTHS[result] == 64

                def rule(
                    a: int, source: str = source, result: str = result, rounding: str = rounding, wide: bool = wide
                ) -> int:
                    decoded = FORMATS[source].decode(a)
                    return exact.truncated(WIDTHS[result], result[0] == "s", decoded, rounding, wide)

                table.add(Op(f"cvt.{modifier}.{result}.{source}", result, (source,), rule))
    for result in ("s32", "u32", "s64", "u16"):
        wide = WIDTHS[result] == 64
        flushed = lambda a, r=result, wide=wide: exact.truncated(  # noqa: E731
            WIDTHS[r], r[0] == "s", FORMATS["f32"].decode(a, flush=True), exact.UP, wide
        )
        table.add(Op(f"cvt.rpi.ftz.{result}.f32", result, ("f32",), flushed))


def _integer_to_float(table: Table) -> None:
    for result in FLOATS:
        for source in INTEGERS:
            if result == "bf16" and WIDTHS[source] == 8:
                continue
            for rounding in ROUNDINGS:

                def rule(a: int, source: str = source, result: str = result, rounding: str = rounding) -> int:
                    value = number(source, a)
                    return FORMATS[result].encode(Number(value < 0, Fraction(abs(value))), rounding)

                table.add(Op(f"cvt.{rounding}.{result}.{source}", result, (source,), rule))


def _convert(
    source: str,
    result: str,
    rounding: str = exact.NEAREST,
    flush: bool = False,
    sat: bool = False,
    positive: bool = False,
) -> Callable[[int], int]:
    def rule(a: int) -> int:
        x = FORMATS[source].decode(a, flush)
        x = exact.saturate(x) if sat else x
        x = relu(lambda y: y)(x) if positive else x
        return FORMATS[result].encode(x, rounding, flush and result == "f32")

    return rule


def _floats(table: Table) -> None:
    def add(text: str, source: str, result: str, rule: Callable[[int], int]) -> None:
        table.add(Op(f"cvt.{text}{'.' if text else ''}{result}.{source}", result, (source,), rule))

    for rounding in ROUNDINGS:
        add(rounding, "f64", "f32", _convert("f64", "f32", rounding))
        add(f"{rounding}.ftz", "f64", "f32", _convert("f64", "f32", rounding, flush=True))
        add(f"{rounding}.sat", "f64", "f32", _convert("f64", "f32", rounding, sat=True))
        add(rounding, "f64", "f16", _convert("f64", "f16", rounding))
        add(rounding, "f32", "f16", _convert("f32", "f16", rounding))
        add(f"{rounding}.sat", "f32", "f16", _convert("f32", "f16", rounding, sat=True))
        # No instruction of sm_90 flushes on the way to f16, whatever its PTX says; to bf16 one does.
        add(f"{rounding}.ftz", "f32", "f16", _convert("f32", "f16", rounding))
        add(f"{rounding}.ftz", "f32", "bf16", _convert("f32", "bf16", rounding, flush=True))
        add(rounding, "f32", "bf16", _convert("f32", "bf16", rounding))
    for rounding in (exact.NEAREST, exact.ZERO):
        for result in ("f16", "bf16"):
            add(f"{rounding}.relu", "f32", result, _convert("f32", result, rounding, positive=True))
    for source, result in (("f16", "f32"), ("f16", "f64"), ("f32", "f64"), ("bf16", "f32"), ("bf16", "f64")):
        add("", source, result, _convert(source, result))
    add("ftz", "f32", "f64", _convert("f32", "f64", flush=True))
    add("sat", "f16", "f32", _convert("f16", "f32", sat=True))
    add("ftz", "f16", "f32", _convert("f16", "f32"))
    add("rn", "f16", "bf16", _convert("f16", "bf16"))
    add("rn", "bf16", "f16", _convert("bf16", "f16"))
    for kind in FLOATS:
        for modifier, rounding in TO_INTEGER.items():
            form = FORMATS[kind]
            whole = lambda a, form=form, r=rounding: form.encode(exact.rounded(form.decode(a), r))  # noqa: E731
            add(modifier, kind, kind, whole)
    for modifier in ("sat", "ftz", "ftz.sat"):
        flush, sat = "ftz" in modifier, "sat" in modifier
        add(modifier, "f32", "f32", _convert("f32", "f32", flush=flush, sat=sat))


def _pairs(table: Table) -> None:
    # The first operand goes to the upper half.
    for result in ("f16", "bf16"):
        for rounding in (exact.NEAREST, exact.ZERO):
            for positive in (False, True):
                single = _convert("f32", result, rounding, positive=positive)
                both = lambda a, b, single=single: single(a) << 16 | single(b)  # noqa: E731
                text = f"cvt.{rounding}{'.relu' if positive else ''}.{result}x2.f32"
                table.add(Op(text, f"{result}x2", ("f32", "f32"), both))


def _finite(table: Table) -> None:
    """`.satfinite`: what is too large becomes the largest number."""
    for result in ("f16", "bf16"):
        for rounding in (exact.NEAREST, exact.ZERO):
            for positive in (False, True):

                def single(a: int, result: str = result, rounding: str = rounding, positive: bool = positive) -> int:
                    x = FORMATS["f32"].decode(a)
                    x = relu(lambda y: y)(x) if positive else x
                    return FORMATS[result].encode(x, rounding, finite=True)

                both = lambda a, b, single=single: single(a) << 16 | single(b)  # noqa: E731
                modifiers = f"{rounding}{'.relu' if positive else ''}.satfinite"
                table.add(Op(f"cvt.{modifiers}.{result}.f32", result, ("f32",), single))
                table.add(Op(f"cvt.{modifiers}.{result}x2.f32", f"{result}x2", ("f32", "f32"), both))
                if positive:  # the modifiers may stand in either order
                    text = f"cvt.{rounding}.satfinite.relu.{result}x2.f32"
                    table.add(Op(text, f"{result}x2", ("f32", "f32"), both))


def _tf32(table: Table) -> None:
    def rule(a: int, rounding: str, positive: bool = False, finite: bool = False) -> int:
        x = FORMATS["f32"].decode(a)
        x = relu(lambda y: y)(x) if positive else x
        return 0x7FFFFFFF if x.nan else FORMATS["tf32"].encode(x, rounding, finite=finite) << 13

    text = "cvt.rna.satfinite.tf32.f32"
    code = f"{text} $d, $a; and.b32 $d, $d, 0xffffe000;"
    table.add(Op(code, "tf32", ("f32",), lambda a: rule(a, exact.AWAY, finite=True), name=text))

    # The 13 bits below a tf32 are not defined: masked, except for a NaN, whose payload is not compared.
    for modifiers, rounding in (("rna", exact.AWAY), ("rn", exact.NEAREST), ("rz", exact.ZERO)):
        for positive in (False, True) if modifiers != "rna" else (False,):
            text = f"cvt.{modifiers}{'.relu' if positive else ''}.tf32.f32"
            code = f"{text} $d, $a; and.b32 $d, $d, 0xffffe000;"
            made = lambda a, r=rounding, positive=positive: rule(a, r, positive)  # noqa: E731
            table.add(Op(code, "tf32", ("f32",), made, name=text))


def _fp8(table: Table) -> None:
    for kind in ("e4m3", "e5m2"):
        form = FORMATS[kind]
        for positive in (False, True):
            modifiers = "rn.satfinite" + (".relu" if positive else "")

            def narrow(a: int, source: str, form: exact.Format = form, positive: bool = positive) -> int:
                x = FORMATS[source].decode(a)
                x = relu(lambda y: y)(x) if positive else x
                return form.encode(x, finite=True)

            both = lambda a, b, narrow=narrow: narrow(a, "f32") << 8 | narrow(b, "f32")  # noqa: E731
            table.add(Op(f"cvt.{modifiers}.{kind}x2.f32", f"{kind}x2", ("f32", "f32"), both))
            halves = lambda a, narrow=narrow: narrow(a & 0xFFFF, "f16") | narrow(a >> 16, "f16") << 8  # noqa: E731
            table.add(Op(f"cvt.{modifiers}.{kind}x2.f16x2", f"{kind}x2", ("f16x2",), halves))

            def widen(a: int, form: exact.Format = form, positive: bool = positive) -> int:
                made = 0
                for i in range(2):
                    x = form.decode(a >> (8 * i) & 255)
                    x = relu(lambda y: y)(x) if positive else x
                    made |= FORMATS["f16"].encode(x) << (16 * i)
                return made

            text = f"cvt.rn{'.relu' if positive else ''}.f16x2.{kind}x2"
            table.add(Op(text, "f16x2", (f"{kind}x2",), widen, inputs=_every_byte))


def _every_byte(_name: str) -> list[Array]:
    index = np.arange(COUNT, dtype=np.uint16)
    return [(index * np.uint16(0x0101)) ^ np.uint16(0xFF00)]


def _packed(table: Table) -> None:
    # d = {saturated a, saturated b}, a above b; with a third operand its low 16 bits above them (PTX ISA 9.7.9.22).
    for result in ("u16", "s16", "u8", "s8"):
        width = WIDTHS[result]
        mask = (1 << width) - 1

        def two(a: int, b: int, result: str = result, width: int = width, mask: int = mask) -> int:
            return (clamp(result, number("s32", a)) & mask) << width | clamp(result, number("s32", b)) & mask

        if width == 16:
            table.add(Op(f"cvt.pack.sat.{result}.s32", "b32", ("s32", "s32"), two))
        else:
            three = lambda a, b, c, two=two: (two(a, b) | c << 16) & 0xFFFFFFFF  # noqa: E731
            table.add(Op(f"cvt.pack.sat.{result}.s32.b32", "b32", ("s32", "s32", "b32"), three))


def _narrow_packed(table: Table) -> None:
    for result, low, high, width in (("u4", 0, 15, 4), ("s4", -8, 7, 4), ("u2", 0, 3, 2), ("s2", -2, 1, 2)):

        def rule(a: int, b: int, c: int, low: int = low, high: int = high, width: int = width) -> int:
            mask = (1 << width) - 1
            first, second = (max(low, min(high, number("s32", x))) & mask for x in (a, b))
            return c << 2 * width | first << width | second

        def near(name: str) -> list[Array]:
            small = [integers(name + letter, -20, 20, COUNT).astype(np.int32).view(np.uint32) for letter in "ab"]
            return [*small, bits(name, "b32", COUNT)]

        table.add(Op(f"cvt.pack.sat.{result}.s32.b32", "b32", ("s32", "s32", "b32"), rule, inputs=near))


def family() -> Family:
    """The checks."""
    made = Family("conversion")
    table = Table(made)
    _integers(table)
    _float_to_integer(table)
    _integer_to_float(table)
    _floats(table)
    _pairs(table)
    _finite(table)
    _tf32(table)
    _fp8(table)
    _packed(table)
    _narrow_packed(table)
    return made
