"""Bulk copies and reductions: PTX ISA 9.7.9.25.4."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import exact, values
from emulator.conformance.checks import Family
from emulator.conformance.families.atomics import Operation
from emulator.conformance.families.barriers import simple
from emulator.conformance.families.floating import add as add_numbers
from emulator.conformance.families.floating import lift
from emulator.conformance.families.integer import number
from emulator.conformance.sources import ptx_library
from emulator.conformance.values import WIDTHS, WORDS

if TYPE_CHECKING:
    from emulator.conformance.bench import Bench
    from emulator.conformance.values import Array

SOURCE = values.bits("bulk", "u32", 1024)
ELEMENTS = 128


def operations() -> list[Operation]:
    """What cp.reduce.async.bulk does to global memory (PTX ISA 9.7.9.25.4.2)."""
    found = []
    for kind in ("u32", "s32", "u64", "s64"):
        if kind != "s64":
            found.append(Operation("add", kind, lambda old, b: old + b))
        found.append(Operation("min", kind, lambda old, b, k=kind: min(number(k, old), number(k, b))))
        found.append(Operation("max", kind, lambda old, b, k=kind: max(number(k, old), number(k, b))))
    found.append(Operation("inc", "u32", lambda old, b: 0 if old >= b else old + 1))
    found.append(Operation("dec", "u32", lambda old, b: b if old == 0 or old > b else old - 1))
    for kind in ("b32", "b64"):
        found.append(Operation("and", kind, lambda old, b: old & b))
        found.append(Operation("or", kind, lambda old, b: old | b))
        found.append(Operation("xor", kind, lambda old, b: old ^ b))
    plain = add_numbers("rn")
    found.append(Operation("add", "f32", lift("f32", plain, flush=True)))
    found.append(Operation("add", "f64", lift("f64", plain)))
    for kind in ("f16", "bf16"):
        found.append(Operation("add.noftz", kind, lift(kind, plain)))
        for text in ("min", "max"):
            rule = lambda a, b, text=text: exact.smallest(a, b, largest=text == "max")  # noqa: E731
            found.append(Operation(text, kind, lift(kind, rule)))
    return found


def _reductions(made: Family) -> None:
    library = ptx_library()
    for operation in operations():
        kind, size = operation.kind, WIDTHS[operation.kind] // 8
        title = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation.text}.{kind}"
        name = re.sub(r"\W+", "_", f"reduce_{operation.text}_{kind}")
        library.add(
            name,
            f"""
.visible .entry {name}(.param .u64 values, .param .u64 cells)
{{
  .shared .align 128 .b8 tile[{ELEMENTS * size}];
  .reg .b32 t, slot; .reg .b64 from, to; .reg .b{size * 8} word; .reg .pred p;
  mov.u32 t, %tid.x; ld.param.u64 from, [values]; mad.wide.u32 from, t, {size}, from;
  mov.u32 slot, tile; mad.lo.u32 slot, t, {size}, slot;
  ld.global.b{size * 8} word, [from]; st.shared.b{size * 8} [slot], word;
  fence.proxy.async.shared::cta; bar.sync 0;
  setp.ne.u32 p, t, 0; @p bra DONE;
  ld.param.u64 to, [cells];
  {title} [to], [slot], {ELEMENTS * size};
  cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
DONE: ret;
}}
""",
        )

        def inputs(kind: str = kind, operation: Operation = operation) -> list[Array]:
            return values.operands(operation.text + kind + "bulk", (kind, kind), ELEMENTS)

        def run(bench: Bench, name: str = name, inputs: object = inputs, kind: str = kind) -> Array:
            old, more = inputs()  # type: ignore[operator]
            cells = bench.upload(old)
            bench.launch(library, name, 1, ELEMENTS, [bench.upload(more), cells])
            return bench.read(cells, WORDS[WIDTHS[kind]])

        def expected(inputs: object = inputs, kind: str = kind, operation: Operation = operation) -> Array:
            mask = (1 << WIDTHS[kind]) - 1
            rows = zip(*(x.tolist() for x in inputs()), strict=True)  # type: ignore[operator]
            return np.array([operation.rule(*row) & mask for row in rows], dtype=WORDS[WIDTHS[kind]])

        made.add(title, (title,), run, kind, expected)


def _reduce_shared(source: Array) -> Array:
    found = []
    for rank in range(2):
        value = source.reshape(2, 64)[rank ^ 1]
        cells = (np.uint32(0x40000000) + np.arange(576, dtype=np.uint32)).reshape(9, 64)
        cells[0] += value
        cells[1] += value
        cells[2] = np.minimum(cells[2], value)
        cells[3] = np.maximum(cells[3].view(np.int32), value.view(np.int32)).view(np.uint32)
        cells[4] = np.where(cells[4] >= value, 0, cells[4] + 1)
        cells[5] = np.where((cells[5] == 0) | (cells[5] > value), value, cells[5] - 1)
        cells[6] &= value
        cells[7] |= value
        cells[8] ^= value
        wide = (value[:32].astype(np.uint64) << np.uint64(8)) + np.uint64(0xFFFFFFF0) + np.arange(32, dtype=np.uint64)
        found += [cells.reshape(-1), wide.view(np.uint32)]
    return np.concatenate(found)


def family() -> Family:
    """The checks."""
    made = Family("bulk")

    def add(name: str, covers: str, outputs: int, expected: object, cluster: int | None = None) -> None:
        simple(made, "bulk", name, covers, SOURCE, outputs, expected, 64, cluster or 1, "u32", cluster)  # type: ignore[arg-type]

    load = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    store = "cp.async.bulk.global.shared::cta.bulk_group cp.async.bulk.commit_group cp.async.bulk.wait_group"
    add("load", load, 1024, lambda: SOURCE[::-1].copy())
    add(
        "load_cta",
        "cp.async.bulk.prefetch.L2 cp.async.bulk.shared::cta.global createpolicy",
        1024,
        lambda: SOURCE + np.uint32(1),
    )
    add(
        "store",
        f"{store} cp.async.bulk.wait_group.read",
        1024,
        lambda: SOURCE ^ np.repeat([0, 1], 512).astype(np.uint32),
    )
    add("groups", store, 1024, lambda: SOURCE.reshape(4, 256)[::-1] * np.uint32(3))
    add("to_neighbour", "cp.async.bulk.shared::cluster.shared::cta", 1024, lambda: SOURCE[::-1].copy(), 2)
    both = lambda: np.concatenate([SOURCE[:512], SOURCE[:512] + np.uint32(1)])  # noqa: E731
    add("multicast", f"{load}.multicast::cluster", 1024, both, 2)
    covers = "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    add("reduce_shared", covers, 1280, lambda: _reduce_shared(SOURCE[:128]), 2)
    _reductions(made)
    return made
