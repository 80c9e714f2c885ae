"""Instructions of a whole warp: shuffles, votes, matches, reductions (PTX ISA 9.7.9.6, 9.7.13.10 to 9.7.13.16)."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import values
from emulator.conformance.checks import Family
from emulator.conformance.families.integer import number
from emulator.conformance.scalar import COUNT, Op, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.values import Array

WARP = range(32)
ALL = "0xffffffff"


def source_lane(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """Where a lane reads, and whether that lies in its segment."""
    segment, b, clamp = c >> 8 & 31, b & 31, c & 31
    lowest = lane & segment
    highest = lowest | clamp & ~segment
    at = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": lowest | b & ~segment}[mode]
    inside = at >= highest if mode == "up" else at <= highest
    return (at if inside else lane), inside


def _shuffles(table: Table) -> None:
    def lanes(name: str) -> list[Array]:
        return [values.bits(name, "b32", COUNT), values.integers(name + "b", 0, 40, COUNT).astype(np.uint32)]

    mark = "selp.u32 t0, 0x80000000, 0, p; xor.b32 $d, $d, t0;"
    for mode, c in (("up", 0), ("down", 31), ("bfly", 31), ("idx", 31)):
        for segment in (32, 16, 4):
            control = (32 - segment) << 8 | c
            for b in ("$b", "1", "3", "17"):
                if b == "$b" and mode in ("up", "down") and segment == 4:
                    continue

                def rule(
                    a: list[int], each: list[int], mode: str = mode, b: str = b, control: int = control
                ) -> list[int]:
                    found = []
                    for lane in WARP:
                        at, inside = source_lane(mode, lane, each[lane] if b == "$b" else int(b), control)
                        found.append(a[at] ^ inside << 31)
                    return found

                code = f"shfl.sync.{mode}.b32 $d|p, $a, {b}, {control}, {ALL}; {mark}"
                name = f"shfl.sync.{mode}.b32 b={b.strip('$')} c={control:#x}"
                table.add(Op(code, "b32", ("b32", "u32"), rule, name=name, warp=True, inputs=lanes))
    code = "setp.lt.u32 p, $b, 16; @p shfl.sync.bfly.b32 $d, $a, 5, 31, 0xffff; @!p shfl.sync.bfly.b32 $d, $a, 6, 31, 0xffff0000;"

    def halves(a: list[int], _b: list[int]) -> list[int]:
        return [a[lane ^ 5] if lane < 16 else a[lane ^ 6] for lane in WARP]

    table.add(Op(code, "b32", ("b32", "u32"), halves, name="shfl.sync of halves", warp=True, inputs=_with_lane))


def _with_lane(name: str) -> list[Array]:
    return [values.bits(name, "b32", COUNT), np.arange(COUNT, dtype=np.uint32) % 32]


def _predicates(name: str) -> list[Array]:
    made = values.bits(name, "pred", COUNT)
    made[:32], made[32:64] = 1, 0
    made[64:96] = np.arange(32) == 17
    made[96:128] = np.arange(32) != 3
    return [made]


def _votes(table: Table) -> None:
    rules: dict[str, Callable[[list[int]], int]] = {
        "all": lambda p: int(all(p)),
        "any": lambda p: int(any(p)),
        "uni": lambda p: int(len(set(p)) == 1),
    }
    for which, holds in rules.items():
        rule = lambda p, holds=holds: [holds(p)] * 32  # noqa: E731
        code = f"vote.sync.{which}.pred p, $a, {ALL}; selp.u32 $d, 1, 0, p;"
        table.add(Op(code, "u32", ("pred",), rule, name=f"vote.sync.{which}", warp=True, inputs=_predicates))
    ballot = lambda p: [sum(bit << lane for lane, bit in enumerate(p))] * 32  # noqa: E731
    code = f"vote.sync.ballot.b32 $d, $a, {ALL};"
    table.add(Op(code, "b32", ("pred",), ballot, name="vote.sync.ballot", warp=True, inputs=_predicates))
    inverse = lambda p: [sum((1 - bit) << lane for lane, bit in enumerate(p))] * 32  # noqa: E731
    code = f"vote.sync.ballot.b32 $d, !$a, {ALL};"
    table.add(Op(code, "b32", ("pred",), inverse, name="vote.sync.ballot !a", warp=True, inputs=_predicates))


def _matches(table: Table) -> None:
    def few(width: int) -> Callable[[str], list[Array]]:
        def make(name: str) -> list[Array]:
            kinds = values.integers(name, 0, 4, COUNT).astype(values.WORDS[width])
            kinds[:32] = 7
            return [kinds * values.WORDS[width](0x01000193) << values.WORDS[width](width - 32)]

        return make

    def same(a: list[int]) -> list[int]:
        return [sum(int(a[other] == a[lane]) << other for other in WARP) for lane in WARP]

    for width in (32, 64):
        kind = f"b{width}"
        code = f"match.any.sync.{kind} $d, $a, {ALL};"
        table.add(Op(code, "b32", (kind,), same, name=f"match.any.sync.{kind}", warp=True, inputs=few(width)))
        code = f"match.all.sync.{kind} $d|p, $a, {ALL}; selp.u32 t0, 1, 0, p; xor.b32 $d, $d, t0;"
        every = lambda a: [0xFFFFFFFE if len(set(a)) == 1 else 0] * 32  # noqa: E731
        table.add(Op(code, "b32", (kind,), every, name=f"match.all.sync.{kind}", warp=True, inputs=few(width)))


def _reductions(table: Table) -> None:
    for kind in ("u32", "s32"):
        for text, rule in (("add", lambda x, y: x + y), ("min", min), ("max", max)):

            def combined(a: list[int], kind: str = kind, rule: Callable[[int, int], int] = rule) -> list[int]:
                return [reduce(rule, (number(kind, x) for x in a))] * 32

            code = f"redux.sync.{text}.{kind} $d, $a, {ALL};"
            table.add(Op(code, kind, (kind,), combined, name=f"redux.sync.{text}.{kind}", warp=True))
    for text, rule in (("and", lambda x, y: x & y), ("or", lambda x, y: x | y), ("xor", lambda x, y: x ^ y)):
        bitwise = lambda a, rule=rule: [reduce(rule, a)] * 32  # noqa: E731
        code = f"redux.sync.{text}.b32 $d, $a, {ALL};"
        inputs = lambda name: [values.bits(name, "b32", COUNT) | np.uint32(0xFF0000)]  # noqa: E731
        table.add(Op(code, "b32", ("b32",), bitwise, name=f"redux.sync.{text}.b32", warp=True, inputs=inputs))
    code = "setp.lt.u32 p, $b, 20; @p redux.sync.add.u32 $d, $a, 0xfffff; @!p redux.sync.max.u32 $d, $a, 0xfff00000;"

    def parts(a: list[int], _b: list[int]) -> list[int]:
        return [sum(a[:20]) if lane < 20 else max(a[20:]) for lane in WARP]

    table.add(Op(code, "b32", ("b32", "u32"), parts, name="redux.sync of parts", warp=True, inputs=_with_lane))


def _others(table: Table) -> None:
    code = f"elect.sync $d|p, {ALL}; selp.u32 t0, 256, 0, p; or.b32 $d, $d, t0;"
    # Which thread is elected is the machine's choice; it has always been the first of the mask.
    first = lambda _a: [256 if lane == 0 else 0 for lane in WARP]  # noqa: E731
    table.add(Op(code, "u32", ("u32",), first, name="elect.sync", warp=True))
    code = "setp.ge.u32 p, $b, 9; mov.u32 $d, 77; @p elect.sync $d|q, 0xfffffe00; selp.u32 t0, 256, 0, q; @p or.b32 $d, $d, t0;"
    part = lambda _a, _b: [77 if lane < 9 else 9 | (lane == 9) << 8 for lane in WARP]  # noqa: E731
    table.add(Op(code, "u32", ("b32", "u32"), part, name="elect.sync of a part", warp=True, inputs=_with_lane))
    everyone = lambda _a: [0xFFFFFFFF] * 32  # noqa: E731
    table.add(Op("activemask.b32 $d;", "b32", ("u32",), everyone, name="activemask", warp=True))
    code = f"bar.warp.sync {ALL}; mov.u32 $d, $a;"
    table.add(Op(code, "u32", ("u32",), lambda a: a, name="bar.warp.sync", warp=True))
    masks: dict[str, Callable[[int], int]] = {
        "eq": lambda lane: 1 << lane,
        "lt": lambda lane: (1 << lane) - 1,
        "le": lambda lane: (2 << lane) - 1,
        "gt": lambda lane: 0xFFFFFFFF & ~((2 << lane) - 1),
        "ge": lambda lane: 0xFFFFFFFF & ~((1 << lane) - 1),
    }
    for which, mask in masks.items():
        rule = lambda _a, mask=mask: [mask(lane) for lane in WARP]  # noqa: E731
        code = f"mov.u32 $d, %lanemask_{which};"
        table.add(Op(code, "b32", ("u32",), rule, name=f"%lanemask_{which}", warp=True))
    code = "mov.u32 $d, %laneid; mov.u32 t0, %warpid; mad.lo.u32 $d, t0, 32, $d;"
    index = lambda _a: list(WARP)  # noqa: E731
    table.add(Op(f"{code} and.b32 $d, $d, 31;", "u32", ("u32",), index, name="%laneid", warp=True))


def family() -> Family:
    """The checks."""
    made = Family("warp")
    table = Table(made)
    _shuffles(table)
    _votes(table)
    _matches(table)
    _reductions(table)
    _others(table)
    return made
