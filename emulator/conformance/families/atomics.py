"""atom and red of every operation, type, space, order and scope: PTX ISA 9.7.13."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import values
from emulator.conformance.checks import Check, Family
from emulator.conformance.exact import smallest
from emulator.conformance.families.floating import add as add_numbers
from emulator.conformance.families.floating import lift
from emulator.conformance.families.half import pairwise
from emulator.conformance.families.integer import number
from emulator.conformance.scalar import BLOCK, COUNT, register, show
from emulator.conformance.sources import Library, ptx_library
from emulator.conformance.values import WIDTHS, WORDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.bench import Bench
    from emulator.conformance.values import Array


@dataclass(frozen=True)
class Operation:
    """What an atomic does to the old value with one or two operands."""

    text: str  # "add", "add.noftz"
    kind: str
    rule: Callable[..., int]
    operands: int = 1
    reduces: bool = True  # red has it too


def _integer_rules() -> list[Operation]:
    found = [Operation("add", kind, lambda old, b: old + b) for kind in ("u32", "s32", "u64")]
    for kind in ("u32", "s32", "u64", "s64"):
        for text, choose in (("min", min), ("max", max)):

            def extreme(old: int, b: int, kind: str = kind, choose: Callable[..., int] = choose) -> int:
                return choose(number(kind, old), number(kind, b))

            found.append(Operation(text, kind, extreme))
    found.append(Operation("inc", "u32", lambda old, b: 0 if old >= b else old + 1))
    found.append(Operation("dec", "u32", lambda old, b: b if old == 0 or old > b else old - 1))
    for kind in ("b32", "b64"):
        found.append(Operation("and", kind, lambda old, b: old & b))
        found.append(Operation("or", kind, lambda old, b: old | b))
        found.append(Operation("xor", kind, lambda old, b: old ^ b))
        found.append(Operation("exch", kind, lambda _old, b: b, reduces=False))
    swap = lambda old, b, c: c if old == b else old  # noqa: E731
    return found + [Operation("cas", kind, swap, 2, reduces=False) for kind in ("b16", "b32", "b64")]


def _float_rules(space: str) -> list[Operation]:
    # PTX ISA 9.7.13.5: atom.add.f32 flushes subnormals in global memory, and does not in shared memory.
    plain = add_numbers("rn")
    found = [
        Operation("add", "f32", lift("f32", plain, flush="shared" not in space)),
        Operation("add", "f64", lift("f64", plain)),
    ]
    for kind in ("f16", "bf16"):
        found.append(Operation("add.noftz", kind, lift(kind, plain)))
        found.append(Operation("add.noftz", f"{kind}x2", pairwise(lift(kind, plain))))
    return found


def entry(name: str, instruction: str, operation: Operation, shared: bool, returns: bool) -> str:
    """Every thread has a cell of its own: out gets the value before (with atom) and after."""
    kind, size = operation.kind, WIDTHS[operation.kind] // 8
    typed = register(kind)
    memory = kind if kind in ("f32", "f64") else f"b{size * 8}"
    operands = ", ".join(("b", "c")[: operation.operands])
    cell = "cell" if shared else "old_at"
    declare = f".shared .align 16 .b8 cells[{BLOCK * 8}];" if shared else ""
    setup = ""
    if shared:
        setup = f"mov.u32 cell32, cells; mad.lo.u32 cell32, block, {size}, cell32; st.shared.{memory} [cell32], old;\n"
        if ".shared" in instruction:
            cell = "cell32"
        else:
            setup += "  cvt.u64.u32 cell, cell32; cvta.shared.u64 cell, cell;\n"
    load = f"ld.shared.{memory} new, [cell32];" if shared else f"ld.global.{memory} new, [old_at];"
    return f"""
.visible .entry {name}(.param .u64 pold, .param .u64 pb, .param .u64 pc, .param .u64 pout)
{{
  .reg .b32 index, block, cell32; .reg .b64 old_at, at, cell; .reg .{typed} old, b, c, new; {declare}
  mov.u32 index, %ctaid.x; mov.u32 block, %tid.x; mad.lo.u32 index, index, {BLOCK}, block;
  ld.param.u64 old_at, [pold]; mad.wide.u32 old_at, index, {size}, old_at; ld.global.{memory} old, [old_at];
  ld.param.u64 at, [pb]; mad.wide.u32 at, index, {size}, at; ld.global.{memory} b, [at];
  ld.param.u64 at, [pc]; mad.wide.u32 at, index, {size}, at; ld.global.{memory} c, [at];
  {setup}  {instruction} {"old, " if returns else ""}[{cell}], {operands};
  {load}
  ld.param.u64 at, [pout]; mad.wide.u32 at, index, {2 * size}, at;
  st.global.{memory} [at], old; st.global.{memory} [at + {size}], new;
  ret;
}}
"""


class Atomics:
    """Checks of single atomics."""

    def __init__(self, made: Family) -> None:
        self.family = made
        self.library: Library = ptx_library()

    def add(self, instruction: str, operation: Operation, shared: bool, returns: bool, title: str = "") -> None:
        """One instruction on cells of its own."""
        title = title or instruction
        name = "at_" + re.sub(r"\W+", "_", title)
        self.library.add(name, entry(name, instruction, operation, shared, returns))
        kind = operation.kind

        def inputs() -> list[Array]:
            old, b, c = values.operands(operation.text + kind, (kind, kind, kind), COUNT)
            if operation.text == "cas":
                b[::2] = old[::2]
            return [old, b, c]

        def run(bench: Bench) -> Array:
            word = WORDS[WIDTHS[kind]]
            out = bench.output(2 * COUNT, word)
            bench.launch(self.library, name, COUNT // BLOCK, BLOCK, [*(bench.upload(x) for x in inputs()), out])
            return bench.read(out, word)

        def expected() -> Array:
            mask = (1 << WIDTHS[kind]) - 1
            found = []
            for old, b, c in zip(*(x.tolist() for x in inputs()), strict=True):
                found += [old, _apply(operation, old, b, c) & mask]
            return np.array(found, dtype=WORDS[WIDTHS[kind]])

        def describe(index: int) -> str:
            old, b, c = (int(x[index // 2]) for x in inputs())
            return f"old={show(kind, old)} b={show(kind, b)}" + (
                f" c={show(kind, c)}" if operation.operands == 2 else ""
            )

        self.family.checks.append(Check(title, (instruction,), run, kind, expected, inputs=describe))


def _apply(operation: Operation, old: int, b: int, c: int) -> int:
    return operation.rule(old, b, c) if operation.operands == 2 else operation.rule(old, b)


def _contended(made: Family) -> None:
    """All threads on four cells: the sum of what they add, and how often each ticket was drawn."""
    library = ptx_library()
    for space in ("global", "shared"):
        tile = ".shared .align 16 .b32 cells[4];" if space == "shared" else ""
        base = "mov.u32 at32, cells; mad.lo.u32 at32, slot, 4, at32;" if space == "shared" else ""
        where = "at32" if space == "shared" else "at"
        clear = "setp.lt.u32 p, tid, 4; @p st.shared.b32 [at32], 0; bar.sync 0;" if space == "shared" else ""
        keep = "bar.sync 0; ld.shared.u32 value, [at32]; @p st.global.u32 [at], value;" if space == "shared" else ""
        library.add(
            f"contended_{space}",
            f"""
.visible .entry contended_{space}(.param .u64 cells_at, .param .u64 tickets)
{{
  .reg .b32 tid, slot, at32, value; .reg .b64 at, ticket; .reg .pred p; {tile}
  mov.u32 tid, %tid.x; and.b32 slot, tid, 3; {base}
  ld.param.u64 at, [cells_at]; mad.wide.u32 at, slot, 4, at;
  {clear}
  atom.{space}.add.u32 value, [{where}], 1;
  shl.b32 value, value, 2; or.b32 value, value, slot;
  ld.param.u64 ticket, [tickets]; mad.wide.u32 ticket, value, 4, ticket; red.global.add.u32 [ticket], 1;
  {keep}
  ret;
}}
""",
        )

        def run(bench: Bench, space: str = space) -> Array:
            cells, tickets = (bench.upload(np.zeros(count, np.uint32)) for count in (4, COUNT))
            bench.launch(library, f"contended_{space}", 1, COUNT, [cells, tickets])
            return np.concatenate([bench.read(cells), bench.read(tickets)])

        expected = lambda: np.array([COUNT // 4] * 4 + [1] * COUNT, np.uint32)  # noqa: E731
        made.add(f"contended {space}", f"atom.{space}.add.u32 red.global.add.u32", run, "u32", expected)


def _vectors(atomics: Atomics) -> None:
    """atom and red of vectors in global memory (PTX ISA 9.7.13.5 and 6), on cells that no other thread uses."""
    rows = [("add", "f32", count) for count in (2, 4)]
    rows += [("add.noftz", "f16", 2), ("max.noftz", "f16", 8), ("min.noftz", "bf16", 4), ("add.noftz", "f16x2", 4)]
    rows += [("add.noftz", "bf16x2", 2)]
    for operation, kind, count in rows:
        for opcode in ("atom", "red"):
            _vector(atomics, f"{opcode}.global.{operation}.v{count}.{kind}", kind, count)
    # The other order of the modifiers, which the manual's examples use.
    for opcode in ("atom", "red"):
        _vector(atomics, f"{opcode}.global.v2.f32.add", "f32", 2)
        _vector(atomics, f"{opcode}.global.v2.f16x2.add.noftz", "f16x2", 2)


def _vector(atomics: Atomics, instruction: str, kind: str, count: int) -> None:
    size, name = WIDTHS[kind] // 8, "vector_" + re.sub(r"\W+", "_", instruction)
    typed, memory = register(kind), "f32" if kind == "f32" else f"b{WIDTHS[kind]}"
    new, old = ("{" + ", ".join(f"{letter}{i}" for i in range(count)) + "}" for letter in "no")
    loads = " ".join(f"ld.global.{memory} n{i}, [from + {size * i}];" for i in range(count))
    returned = " ".join(f"st.global.{memory} [to + {size * i}], o{i};" for i in range(count))
    returns = instruction.startswith("atom")
    atomics.library.add(
        name,
        f"""
.visible .entry {name}(.param .u64 cells, .param .u64 more, .param .u64 out)
{{
  .reg .b32 tid; .reg .b64 at, from, to; .reg .{typed} n<{count}>, o<{count}>;
  mov.u32 tid, %tid.x; ld.param.u64 at, [cells]; mad.wide.u32 at, tid, {size * count}, at;
  ld.param.u64 from, [more]; mad.wide.u32 from, tid, {size * count}, from;
  ld.param.u64 to, [out]; mad.wide.u32 to, tid, {size * count}, to;
  {loads}
  {instruction} {old + ", " if returns else ""}[at], {new};
  {returned if returns else ""}
  ret;
}}
""",
    )
    before, more = (values.moderate(name + part, kind, 32 * count) for part in ("old", "new"))
    format_, choose = kind.removesuffix("x2"), re.search("min|max", instruction)
    extreme = lambda a, b: smallest(a, b, largest=choose is not None and choose[0] == "max")  # noqa: E731
    rule = lift(format_, extreme if choose else add_numbers("rn"))
    rule = pairwise(rule) if kind.endswith("x2") else rule

    def run(bench: Bench) -> Array:
        cells, out = bench.upload(before), bench.upload(np.zeros_like(before))
        bench.launch(atomics.library, name, 1, 32, [cells, bench.upload(more), out])
        word = WORDS[WIDTHS[kind]]
        return np.concatenate([bench.read(cells, word), bench.read(out, word)])

    def expected() -> Array:
        after = np.array([rule(a, b) for a, b in zip(before.tolist(), more.tolist(), strict=True)], before.dtype)
        return np.concatenate([after, before if returns else np.zeros_like(before)])

    atomics.family.add(instruction, (instruction,), run, kind, expected)


def family() -> Family:
    """The checks."""
    made = Family("atomics")
    atomics = Atomics(made)
    for space in ("global", "shared", "", "shared::cluster"):
        dot = f".{space}" if space else ""
        for operation in _integer_rules() + _float_rules(space):
            if space in ("", "shared::cluster") and operation.text not in ("add", "cas", "max", "exch"):
                continue
            for opcode in ("atom", "red") if operation.reduces else ("atom",):
                instruction = f"{opcode}{dot}.{operation.text}.{operation.kind}"
                atomics.add(instruction, operation, space.startswith("shared"), opcode == "atom")
    integers = {(operation.text, operation.kind): operation for operation in _integer_rules()}
    plus, swap = integers["add", "u32"], integers["cas", "b64"]
    atomics.add("atom.add.u32", plus, True, True, "atom.add.u32 of shared memory")
    atomics.add("atom.cas.b64", swap, True, True, "atom.cas.b64 of shared memory")
    for order in ("relaxed", "acquire", "release", "acq_rel"):
        for scope in ("cta", "cluster", "gpu", "sys"):
            atomics.add(f"atom.{order}.{scope}.global.add.u32", plus, False, True)
            if order in ("relaxed", "release"):
                atomics.add(f"red.{order}.{scope}.global.add.u32", plus, False, False)
        atomics.add(f"atom.{order}.cta.shared.cas.b64", swap, True, True)
    atomics.add("atom.gpu.global.add.u32", plus, False, True)
    _contended(made)
    _vectors(atomics)
    return made
