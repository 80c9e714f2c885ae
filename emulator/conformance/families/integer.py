"""Integer arithmetic: PTX ISA 9.7.1 and 9.7.2, against Python's integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import values
from emulator.conformance.checks import Family
from emulator.conformance.scalar import COUNT, Op, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.values import Array

TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")


def signed(x: int, width: int) -> int:
    """A bit pattern as a two's complement number."""
    x &= (1 << width) - 1
    return x - (1 << width) if x >> (width - 1) else x


def number(kind: str, x: int) -> int:
    """A bit pattern as the number of its type."""
    return signed(x, values.WIDTHS[kind]) if kind[0] == "s" else x


def quotient(a: int, b: int) -> int:
    """a / b rounded to zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def clamp(kind: str, x: int) -> int:
    """x in the range of a type."""
    width = values.WIDTHS[kind]
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if kind[0] == "s" else (0, (1 << width) - 1)
    return max(low, min(high, x))


def by_numbers(kinds: tuple[str, ...], rule: Callable[..., int]) -> Callable[..., int]:
    """A rule of numbers as one of bit patterns."""
    return lambda *words: rule(*(number(kind, word) for kind, word in zip(kinds, words, strict=True)))


def divisors(kind: str) -> Callable[[str], list[Array]]:
    """Operands of which the second is never 0: PTX leaves the quotient open then."""

    def make(name: str) -> list[Array]:
        a, b = values.operands(name, (kind, kind), COUNT)
        b[b == 0] = 3
        return [a, b]

    return make


def fields(kind: str) -> Callable[[str], list[Array]]:
    """A value, a position and a length, of which some lie outside (bfe)."""

    def make(name: str) -> list[Array]:
        (a,) = values.operands(name, (kind,), COUNT)
        width = values.WIDTHS[kind] if kind != "u32" else 32
        position = values.integers(name + "p", 0, width + 6, COUNT).astype(np.uint32)
        length = values.integers(name + "l", 0, width + 6, COUNT).astype(np.uint32)
        return [a, position, length]

    return make


def _arithmetic(table: Table) -> None:
    for kind in TYPES:
        pair = (kind, kind)

        def add(text: str, rule: Callable[..., int], kinds: tuple[str, ...] = pair, result: str = kind) -> None:
            table.add(Op(text, result, kinds, by_numbers(kinds, rule)))

        add(f"add.{kind}", lambda a, b: a + b)
        add(f"sub.{kind}", lambda a, b: a - b)
        add(f"min.{kind}", min)
        add(f"max.{kind}", max)
        width = values.WIDTHS[kind]
        add(f"mul.lo.{kind}", lambda a, b: a * b)
        add(f"mul.hi.{kind}", lambda a, b, width=width: (a * b) >> width)
        add(f"mad.lo.{kind}", lambda a, b, c: a * b + c, (kind,) * 3)
        add(f"mad.hi.{kind}", lambda a, b, c, width=width: ((a * b) >> width) + c, (kind,) * 3)
        if width < 64:
            wide = f"{kind[0]}{width * 2}"
            add(f"mul.wide.{kind}", lambda a, b: a * b, pair, wide)
            add(f"mad.wide.{kind}", lambda a, b, c: a * b + c, (kind, kind, wide), wide)
        for text, rule in (("div", quotient), ("rem", lambda a, b: a - b * quotient(a, b))):
            table.add(Op(f"{text}.{kind}", kind, pair, by_numbers(pair, rule), inputs=divisors(kind)))
        if kind[0] == "s":
            add(f"abs.{kind}", abs, (kind,))
            add(f"neg.{kind}", lambda a: -a, (kind,))
    for text, rule in (("add", lambda a, b: a + b), ("sub", lambda a, b: a - b)):
        kinds = ("s32", "s32")
        saturated = by_numbers(kinds, lambda a, b, rule=rule: clamp("s32", rule(a, b)))
        table.add(Op(f"{text}.sat.s32", "s32", kinds, saturated))
    three = ("s32",) * 3
    table.add(Op("mad.hi.sat.s32", "s32", three, by_numbers(three, lambda a, b, c: clamp("s32", ((a * b) >> 32) + c))))
    for kind in ("u32", "s32"):
        triple = (kind, kind, "u32")
        table.add(Op(f"sad.{kind}", kind, triple, by_numbers(triple, lambda a, b, c: abs(a - b) + c)))
        _mul24(table, kind)


def _mul24(table: Table, kind: str) -> None:
    def low(a: int) -> int:
        return signed(a, 24) if kind == "s32" else a & 0xFFFFFF

    table.add(Op(f"mul24.lo.{kind}", kind, (kind, kind), lambda a, b: low(a) * low(b)))
    table.add(Op(f"mul24.hi.{kind}", kind, (kind, kind), lambda a, b: (low(a) * low(b)) >> 16))
    if kind == "s32":
        saturated = lambda a, b, c: clamp("s32", ((low(a) * low(b)) >> 16) + signed(c, 32))  # noqa: E731
        table.add(Op("mad24.hi.sat.s32", kind, (kind,) * 3, saturated))
    table.add(Op(f"mad24.lo.{kind}", kind, (kind,) * 3, lambda a, b, c: low(a) * low(b) + c))
    table.add(Op(f"mad24.hi.{kind}", kind, (kind,) * 3, lambda a, b, c: ((low(a) * low(b)) >> 16) + c))


def _halves(table: Table) -> None:
    def each(kind: str, rule: Callable[[int, int], int]) -> Callable[[int, int], int]:
        def both(a: int, b: int) -> int:
            low = rule(number(kind, a & 0xFFFF), number(kind, b & 0xFFFF)) & 0xFFFF
            return low | (rule(number(kind, a >> 16), number(kind, b >> 16)) & 0xFFFF) << 16

        return both

    for kind in ("u16", "s16"):
        for text, rule in (("add", lambda a, b: a + b), ("min", min), ("max", max)):
            table.add(Op(f"{text}.{kind}x2", "b32", ("b32", "b32"), each(kind, rule)))
    for text, choose in (("min", min), ("max", max)):

        def positive(a: int, b: int, choose: Callable[[int, int], int] = choose) -> int:
            return max(0, choose(a, b))

        table.add(Op(f"{text}.relu.s16x2", "b32", ("b32", "b32"), each("s16", positive)))
        table.add(Op(f"{text}.relu.s32", "s32", ("s32", "s32"), by_numbers(("s32", "s32"), positive)))


def _carries(table: Table) -> None:
    pair, triple = ("u32", "u32"), ("u32", "u32", "u32")
    high = "mov.b64 $d, {t0, t1};"
    code = f"add.cc.u32 t0, $a, $b; addc.u32 t1, 0, 0; {high}"
    table.add(Op(code, "u64", pair, lambda a, b: a + b, name="add.cc.u32"))
    code = f"add.cc.u32 t0, $a, $b; addc.cc.u32 t1, $a, $c; addc.u32 t1, t1, 0; {high}"
    rule = lambda a, b, c: _chain(a, b, c)  # noqa: E731 - a row of the table
    table.add(Op(code, "u64", triple, rule, name="addc.cc.u32"))
    code = f"sub.cc.u32 t0, $a, $b; subc.cc.u32 t1, $a, $c; subc.u32 t2, 0, 0; xor.b32 t1, t1, t2; {high}"
    table.add(Op(code, "u64", triple, _borrow, name="sub.cc.u32"))
    code = f"mad.lo.cc.u32 t0, $a, $b, $c; madc.hi.u32 t1, $a, $b, 0; {high}"
    table.add(Op(code, "u64", triple, lambda a, b, c: a * b + c, name="mad.lo.cc.u32"))
    code = f"mad.lo.cc.u32 t0, $a, $b, $c; madc.hi.cc.u32 t1, $a, $b, $c; addc.u32 t2, 0, 0; xor.b32 t0, t0, t2; {high}"
    table.add(Op(code, "u64", triple, _mad_chain, name="madc.hi.cc.u32"))
    code = f"mad.hi.cc.u32 t0, $a, $b, $c; madc.lo.u32 t1, $a, $b, $c; {high}"
    table.add(Op(code, "u64", triple, _mad_hi, name="mad.hi.cc.u32"))
    code = "add.cc.u64 w0, $a, $b; addc.u64 $d, w0, $a;"
    sum64 = lambda a, b: (a + b) % 2**64 + a + ((a + b) >> 64)  # noqa: E731
    table.add(Op(code, "u64", ("u64", "u64"), sum64, name="add.cc.u64"))
    code = "sub.cc.u64 w0, $a, $b; subc.u64 $d, w0, $a;"
    table.add(Op(code, "u64", ("u64", "u64"), lambda a, b: (a - b) % 2**64 - a - (a < b), name="sub.cc.u64"))


def _chain(a: int, b: int, c: int) -> int:
    second = a + c + ((a + b) >> 32)
    return (a + b) % 2**32 | ((second + (second >> 32)) % 2**32) << 32


def _borrow(a: int, b: int, c: int) -> int:
    second = a - c - (a < b)
    return (a - b) % 2**32 | (second % 2**32 ^ (0xFFFFFFFF if second < 0 else 0)) << 32


def _mad_chain(a: int, b: int, c: int) -> int:
    low = (a * b) % 2**32 + c
    high = (a * b >> 32) + c + (low >> 32)
    return (low % 2**32 ^ high >> 32) | (high % 2**32) << 32


def _mad_hi(a: int, b: int, c: int) -> int:
    low = (a * b >> 32) + c
    return low % 2**32 | (((a * b) % 2**32 + c + (low >> 32)) % 2**32) << 32


def _dots(table: Table) -> None:
    def parts(kind: str, word: int, width: int, count: int) -> list[int]:
        found = [word >> (width * i) & ((1 << width) - 1) for i in range(count)]
        return [signed(x, width) if kind == "s32" else x for x in found]

    for first in ("u32", "s32"):
        for second in ("u32", "s32"):
            result = "s32" if "s32" in (first, second) else "u32"
            kinds = (first, second, result)

            def four(a: int, b: int, c: int, first: str = first, second: str = second) -> int:
                return c + sum(x * y for x, y in zip(parts(first, a, 8, 4), parts(second, b, 8, 4), strict=True))

            table.add(Op(f"dp4a.{first}.{second}", result, kinds, four))
            for half in ("lo", "hi"):

                def two(a: int, b: int, c: int, first: str = first, second: str = second, half: str = half) -> int:
                    chosen = parts(second, b, 8, 4)[0 if half == "lo" else 2 :][:2]
                    return c + sum(x * y for x, y in zip(parts(first, a, 16, 2), chosen, strict=True))

                table.add(Op(f"dp2a.{half}.{first}.{second}", result, kinds, two))


def _bits(table: Table) -> None:
    for width in (32, 64):
        kind = f"b{width}"
        top = width - 1
        table.add(Op(f"popc.{kind}", "u32", (kind,), lambda a: a.bit_count()))
        table.add(Op(f"clz.{kind}", "u32", (kind,), lambda a, width=width: width - a.bit_length()))
        reverse = lambda a, width=width: int(f"{a:0{width}b}"[::-1], 2)  # noqa: E731
        table.add(Op(f"brev.{kind}", kind, (kind,), reverse))
        for sign in "us":
            typed = f"{sign}{width}"

            def highest(a: int, typed: str = typed, width: int = width) -> int:
                found = number(typed, a)
                return (~found if found < 0 else found).bit_length() - 1 if width else 0

            table.add(Op(f"bfind.{typed}", "u32", (typed,), highest))
            shift = lambda a, highest=highest, top=top: top - highest(a) if highest(a) >= 0 else -1  # noqa: E731
            table.add(Op(f"bfind.shiftamt.{typed}", "u32", (typed,), shift))

            def extract(a: int, position: int, length: int, typed: str = typed, width: int = width) -> int:
                position, length = position & 255, length & 255
                sign_at = min(position + length - 1, width - 1)
                fill = typed[0] == "s" and length > 0 and bool(a >> sign_at & 1)
                kept = [a >> (position + i) & 1 if i < length and position + i < width else fill for i in range(width)]
                return sum(int(bit) << i for i, bit in enumerate(kept))

            table.add(Op(f"bfe.{typed}", typed, (typed, "u32", "u32"), extract, inputs=fields(typed)))
        for position, length in ((0, 8), (5, 20), (width - 4, 9), (3, 0), (width, 4)):

            def insert(a: int, b: int, position: int = position, length: int = length, width: int = width) -> int:
                mask = ((1 << length) - 1) << position & ((1 << width) - 1)
                return b & ~mask | a << position & mask

            code = f"bfi.{kind} $d, $a, $b, {position}, {length};"
            table.add(Op(code, kind, (kind, kind), insert, name=f"bfi.{kind} {position} {length}"))
    _masks(table)


def _masks(table: Table) -> None:
    def positions(name: str) -> list[Array]:
        return [values.integers(name + letter, 0, 37, COUNT).astype(np.uint32) for letter in "ab"]

    def mask(a: int, b: int, wrap: bool) -> int:
        a, b = (a & 31, b & 31) if wrap else (a, b)
        return ((1 << b) - 1) << a

    def extend(kind: str, a: int, b: int, wrap: bool) -> int:
        b = b & 31 if wrap else b
        if b >= 32:
            return a
        if b == 0:
            return 0
        return signed(a, b) if kind == "s32" else a & ((1 << b) - 1)

    def value_and_size(name: str) -> list[Array]:
        return [values.bits(name, "u32", COUNT), values.integers(name, 0, 37, COUNT).astype(np.uint32)]

    for mode in ("clamp", "wrap"):
        wrap = mode == "wrap"
        rule = lambda a, b, wrap=wrap: mask(a, b, wrap)  # noqa: E731
        table.add(Op(f"bmsk.{mode}.b32", "b32", ("u32", "u32"), rule, inputs=positions))
        for kind in ("u32", "s32"):
            extended = lambda a, b, kind=kind, wrap=wrap: extend(kind, a, b, wrap)  # noqa: E731
            table.add(Op(f"szext.{mode}.{kind}", kind, (kind, "u32"), extended, inputs=value_and_size))

    def nth(name: str) -> list[Array]:
        base = values.integers(name + "b", 0, 31, COUNT).astype(np.uint32)
        offset = values.integers(name + "o", -12, 12, COUNT).astype(np.int32).view(np.uint32)
        return [values.bits(name, "b32", COUNT), base, offset]

    def find(word: int, base: int, offset: int) -> int:
        steps = signed(offset, 32)
        if steps == 0:
            return base if word >> base & 1 else 0xFFFFFFFF
        direction = 1 if steps > 0 else -1
        at, left = base, abs(steps)
        while 0 <= at < 32:
            left -= word >> at & 1
            if left == 0:
                return at
            at += direction
        return 0xFFFFFFFF

    table.add(Op("fns.b32", "b32", ("b32", "u32", "s32"), find, inputs=nth))


def family() -> Family:
    """The checks."""
    made = Family("integer")
    table = Table(made)
    _arithmetic(table)
    _halves(table)
    _carries(table)
    _dots(table)
    _bits(table)
    return made
