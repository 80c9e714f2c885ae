"""Logic, shifts, permutations and moves: PTX ISA 9.7.8 and 9.7.9, against Python's integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import values
from emulator.conformance.checks import Family
from emulator.conformance.families.integer import number
from emulator.conformance.scalar import COUNT, Op, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.values import Array


def _amounts(kind: str, highest: int) -> Callable[[str], list[Array]]:
    def make(name: str) -> list[Array]:
        (a,) = values.operands(name, (kind,), COUNT)
        b = values.integers(name + "amount", 0, highest, COUNT).astype(np.uint32)
        b[:3] = 0xFFFFFFFF, 0x80000000, 256
        return [a, b]

    return make


def _logic(table: Table) -> None:
    for width in (16, 32, 64):
        kind = f"b{width}"
        pair = (kind, kind)
        table.add(Op(f"and.{kind}", kind, pair, lambda a, b: a & b))
        table.add(Op(f"or.{kind}", kind, pair, lambda a, b: a | b))
        table.add(Op(f"xor.{kind}", kind, pair, lambda a, b: a ^ b))
        table.add(Op(f"not.{kind}", kind, (kind,), lambda a: ~a))
        table.add(Op(f"cnot.{kind}", kind, (kind,), lambda a: int(a == 0)))
        left = lambda a, b, width=width: a << b if b < width else 0  # noqa: E731
        table.add(Op(f"shl.{kind}", kind, (kind, "u32"), left, inputs=_amounts(kind, width + 8)))
        for sign in "usb":
            typed = f"{sign}{width}"
            right = lambda a, b, typed=typed: number(typed, a) >> min(b, 64)  # noqa: E731
            table.add(Op(f"shr.{typed}", typed, (typed, "u32"), right, inputs=_amounts(typed, width + 8)))
    pair = ("pred", "pred")
    for text, rule in (("and", lambda a, b: a & b), ("or", lambda a, b: a | b), ("xor", lambda a, b: a ^ b)):
        table.add(Op(f"{text}.pred p, $a, $b; selp.u32 $d, 1, 0, p;", "u32", pair, rule))
    table.add(Op("not.pred p, $a; selp.u32 $d, 1, 0, p;", "u32", ("pred",), lambda a: 1 - a))


def _three_inputs(table: Table) -> None:
    def lookup(lut: int) -> Callable[[int, int, int], int]:
        def rule(a: int, b: int, c: int) -> int:
            found = 0
            for row in range(8):
                if lut >> row & 1:
                    found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
            return found

        return rule

    for lut in (0x00, 0x1A, 0x80, 0xB8, 0xE8, 0xFE, 0x96, 0xFF):
        code = f"lop3.b32 $d, $a, $b, $c, 0x{lut:02x};"
        table.add(Op(code, "b32", ("b32",) * 3, lookup(lut), name=f"lop3.b32 {lut:#04x}"))
    code = "setp.ne.u32 q, $c, 0; lop3.or.b32 t0|p, $a, $b, $c, 0x80, q; selp.u32 t1, 1, 0, p; xor.b32 $d, t0, t1;"
    rule = lambda a, b, c: (a & b & c) ^ int(c != 0)  # noqa: E731 - a result or q that is not zero
    table.add(Op(code, "b32", ("b32",) * 3, rule, name="lop3.or.b32"))
    code = "setp.ne.u32 q, $c, 0; lop3.and.b32 t0|p, $a, $b, $c, 0x3c, q; selp.u32 t1, 1, 0, p; xor.b32 $d, t0, t1;"
    rule = lambda a, b, c: (a ^ b) ^ int(a != b and c != 0)  # noqa: E731
    table.add(Op(code, "b32", ("b32",) * 3, rule, name="lop3.and.b32"))


def permuted(a: int, b: int, selector: int, mode: str) -> int:
    """PTX ISA 9.7.9.7, prmt."""
    data = [(b << 32 | a) >> (8 * i) & 255 for i in range(8)]
    low = selector & 3
    if not mode:
        made = []
        for i in range(4):
            nibble = selector >> (4 * i) & 15
            byte = data[nibble & 7]
            made.append((255 if byte & 128 else 0) if nibble & 8 else byte)
    else:
        made = [
            {
                "f4e": data[(low + i) & 7],
                "b4e": data[(low - i) & 7],
                "rc8": data[low],
                "ecl": data[max(i, low)],
                "ecr": data[min(i, low)],
                "rc16": data[(selector & 1) * 2 + i % 2],
            }[mode]
            for i in range(4)
        ]
    return sum(byte << (8 * i) for i, byte in enumerate(made))


def _bytes(table: Table) -> None:
    for mode in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        rule = lambda a, b, c, mode=mode: permuted(a, b, c, mode)  # noqa: E731
        table.add(Op("prmt.b32" + (f".{mode}" if mode else ""), "b32", ("b32", "b32", "u32"), rule))

    def shifts(name: str) -> list[Array]:
        a, b = values.operands(name, ("b32", "b32"), COUNT)
        return [a, b, values.integers(name, 0, 70, COUNT).astype(np.uint32)]

    for mode in ("clamp", "wrap"):

        def by(c: int, mode: str = mode) -> int:
            return min(c, 32) if mode == "clamp" else c & 31

        left = lambda a, b, c, by=by: ((b << 32 | a) << by(c)) >> 32  # noqa: E731
        right = lambda a, b, c, by=by: (b << 32 | a) >> by(c)  # noqa: E731
        table.add(Op(f"shf.l.{mode}.b32", "b32", ("b32", "b32", "u32"), left, inputs=shifts))
        table.add(Op(f"shf.r.{mode}.b32", "b32", ("b32", "b32", "u32"), right, inputs=shifts))


def _selection(table: Table) -> None:
    for kind in ("b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"):
        table.add(Op(f"selp.{kind}", kind, (kind, kind, "pred"), lambda a, b, c: a if c else b))
        rule = lambda a, b, c: a if number("s32", c) >= 0 else b  # noqa: E731
        table.add(Op(f"slct.{kind}.s32", kind, (kind, kind, "s32"), rule))

    def sign(a: int, b: int, c: int) -> int:
        nan = c & 0x7FFFFFFF > 0x7F800000
        return b if nan or (c >> 31 and c & 0x7FFFFFFF) else a

    def flushed(a: int, b: int, c: int) -> int:
        return a if not c & 0x7F800000 else sign(a, b, c)

    table.add(Op("slct.b32.f32", "b32", ("b32", "b32", "f32"), sign))
    table.add(Op("slct.ftz.u32.f32", "u32", ("u32", "u32", "f32"), flushed))


def _moves(table: Table) -> None:
    for kind in ("b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"):
        table.add(Op(f"mov.{kind}", kind, (kind,), lambda a: a))
    table.add(Op("mov.pred p, $a; selp.u32 $d, 1, 0, p;", "u32", ("pred",), lambda a: a, name="mov.pred"))
    table.add(Op("mov.b64 $d, {$a, $b};", "b64", ("b32", "b32"), lambda a, b: b << 32 | a, name="mov.b64 pack b32"))
    table.add(Op("mov.b32 $d, {$a, $b};", "b32", ("b16", "b16"), lambda a, b: b << 16 | a, name="mov.b32 pack b16"))
    code = "mov.b64 {t0, t1}, $a; mov.b64 $d, {t1, t0};"
    table.add(Op(code, "b64", ("b64",), lambda a: (a << 32 | a >> 32) % 2**64, name="mov.b64 unpack"))
    code = "{ .reg .b16 x, y, z, w; mov.b64 {x, y, z, w}, $a; mov.b64 $d, {w, z, y, x}; }"
    rule = lambda a: sum((a >> (16 * i) & 0xFFFF) << (48 - 16 * i) for i in range(4))  # noqa: E731
    table.add(Op(code, "b64", ("b64",), rule, name="mov.b64 unpack b16"))
    code = "{ .reg .b16 x; mov.b32 {_, x}, $a; mov.b32 $d, {x, x}; }"
    table.add(Op(code, "b32", ("b32",), lambda a: (a >> 16) * 0x10001, name="mov.b32 unpack sink"))
    # The space of an address: all of the grid's arrays are global memory.
    for space in ("global", "shared", "local", "shared::cluster"):
        answer = int(space == "global")
        code = f"ld.param.u64 w0, [p1]; isspacep.{space} p, w0; selp.u32 $d, 1, 0, p;"
        inside = lambda _a, answer=answer: answer  # noqa: E731
        table.add(Op(code, "u32", ("u32",), inside, name=f"isspacep.{space} of global"))


def _control(table: Table) -> None:
    code = """{ .reg .u32 i; mov.u32 i, 0; mov.u32 $d, 0;
  REPEAT: setp.ge.u32 p, i, $b; @p bra DONE; add.u32 $d, $d, $a; add.u32 i, i, 1; bra.uni REPEAT; DONE: }"""

    def few(name: str) -> list[Array]:
        return [values.bits(name, "u32", COUNT), values.integers(name, 0, 9, COUNT).astype(np.uint32)]

    table.add(Op(code, "u32", ("u32", "u32"), lambda a, b: a * b, name="bra", inputs=few))
    code = """{ .reg .u32 i; min.u32 i, $b, 3; WAYS: .branchtargets W0, W1, W2, W3; brx.idx i, WAYS;
  W0: add.u32 $d, $a, 1; bra OUT; W1: sub.u32 $d, $a, 2; bra OUT; W2: xor.b32 $d, $a, 3; bra OUT; W3: shl.b32 $d, $a, 4; OUT: }"""

    def way(a: int, b: int) -> int:
        return (a + 1, a - 2, a ^ 3, a << 4)[min(b, 3)]

    table.add(Op(code, "u32", ("u32", "u32"), way, name="brx.idx", inputs=few))
    code = "@$b add.u32 $d, $a, 5; @!$b mul.lo.u32 $d, $a, 7;"
    table.add(Op(code, "u32", ("u32", "pred"), lambda a, b: a + 5 if b else a * 7, name="predicates"))


def family() -> Family:
    """The checks."""
    made = Family("logic")
    table = Table(made)
    _logic(table)
    _three_inputs(table)
    _bytes(table)
    _selection(table)
    _moves(table)
    _control(table)
    return made
