"""Matrices of a warp: mma.sync, ldmatrix, stmatrix and movmatrix, PTX ISA 9.7.14."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import values
from emulator.conformance.checks import BITS, Comparison, Family
from emulator.conformance.matrices import WIDTHS, WORD, a_fragments, b_fragments, c_fragments, encode, fractions, whole
from emulator.conformance.scalar import opcodes
from emulator.conformance.sources import Library, ptx_library

if TYPE_CHECKING:
    from emulator.conformance.bench import Bench
    from emulator.conformance.values import Array


@dataclass(frozen=True)
class Mma:
    """A shape and its types."""

    shape: tuple[int, int, int]
    d: str
    a: str
    b: str
    c: str
    saturate: bool = False

    @property
    def text(self) -> str:
        """The instruction."""
        m, n, k = self.shape
        finite = ".satfinite" if self.saturate else ""
        return f"mma.sync.aligned.m{m}n{n}k{k}.row.col{finite}.{self.d}.{self.a}.{self.b}.{self.c}"


def table() -> list[Mma]:
    """Every dense shape and type of sm_90, but for m8n8k4 of f16, which it runs for old programs only."""
    found = []
    for k in (8, 16):
        found += [Mma((16, 8, k), acc, "f16", "f16", acc) for acc in ("f32", "f16")]
        found.append(Mma((16, 8, k), "f32", "bf16", "bf16", "f32"))
    found += [Mma((16, 8, k), "f32", "tf32", "tf32", "f32") for k in (4, 8)]
    found += [Mma(shape, "f64", "f64", "f64", "f64") for shape in ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16))]
    for shape in ((8, 8, 16), (16, 8, 16), (16, 8, 32)):
        for a in ("s8", "u8"):
            for b in ("s8", "u8"):
                found += [Mma(shape, "s32", a, b, "s32", saturate) for saturate in (False, True)]
    for k in (16, 32):
        for a in ("e4m3", "e5m2"):
            for b in ("e4m3", "e5m2"):
                found += [Mma((16, 8, k), acc, a, b, acc) for acc in ("f32", "f16")]
    return found


def _register(kind: str) -> str:
    return kind if kind in ("f32", "f64") else "b32"


def _entry(name: str, mma: Mma, counts: list[int]) -> str:
    kinds = [mma.a, mma.b, mma.c, mma.d]
    declare, loads, groups = [], [], []
    for letter, kind, count in zip("abcd", kinds, counts, strict=True):
        typed = _register(kind)
        declare.append(f".reg .{typed} {letter}<{count}>;")
        groups.append("{" + ", ".join(f"{letter}{i}" for i in range(count)) + "}")
        if letter != "d":
            size = 8 if typed == "f64" else 4
            loads.append(f"  ld.param.u64 at, [p{letter}]; mad.wide.u32 at, lane, {size * count}, at;")
            loads += [f"  ld.global.{typed} {letter}{i}, [at + {size * i}];" for i in range(count)]
    typed = _register(mma.d)
    size = 8 if typed == "f64" else 4
    stores = "\n".join(f"  st.global.{typed} [at + {size * i}], d{i};" for i in range(counts[3]))
    code = chr(10).join(loads)
    return f"""
.visible .entry {name}(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)
{{
  .reg .b32 lane; .reg .b64 at; {" ".join(declare)}
  mov.u32 lane, %tid.x;
{code}
  {mma.text} {groups[3]}, {groups[0]}, {groups[1]}, {groups[2]};
  ld.param.u64 at, [pd]; mad.wide.u32 at, lane, {size * counts[3]}, at;
{stores}
  ret;
}}
"""


def tolerance(d: str, a: str) -> Comparison:
    """For sums of products below 1, at most 16 of them of full size."""
    if d == "f16":
        return Comparison(absolute=2**-5, reason="an accumulator of 11 bits, sums below 16")
    if a in ("e4m3", "e5m2"):
        return Comparison(absolute=2**-7, reason="tensor cores keep about 14 bits of a sum of fp8 products")
    if d == "f64":
        return Comparison(absolute=2**-46, reason="rounded after each product or after the sum")
    return Comparison(absolute=2**-16, reason="tensor cores align products to the largest and cut the rest")


def _mma(made: Family, library: Library, mma: Mma, mixed: bool) -> None:
    m, n, k = mma.shape
    make = fractions if mixed else whole
    a, b = make(mma.text + "a", mma.a, (m, k)), make(mma.text + "b", mma.b, (k, n))
    c = make(mma.text + "c", mma.c, (m, n))
    if mma.c == "s32":
        c = values.integers(mma.text + "c", -(2**31), 2**31 - 1, m * n).astype(np.float64).reshape(m, n)
    fragments = [a_fragments(encode(mma.a, a)), b_fragments(encode(mma.b, b)), c_fragments(encode(mma.c, c))]
    counts = [fragment.shape[1] for fragment in fragments]
    counts.append(c_fragments(np.zeros((m, n), WORD[WIDTHS[mma.d]])).shape[1])
    name = re.sub(r"\W+", "_", mma.text)
    if name not in library.names:
        library.add(name, _entry(name, mma, counts))
    word = np.uint64 if mma.d == "f64" else np.uint32

    def run(bench: Bench) -> Array:
        out = bench.output(32 * counts[3], word)
        bench.launch(library, name, 1, 32, [*(bench.upload(x) for x in fragments), out])
        return bench.read(out, word).view(WORD[WIDTHS[mma.d]])

    def expected() -> Array:
        result = a @ b + c
        if mma.d == "s32":
            result = np.clip(result, -(2**31), 2**31 - 1) if mma.saturate else (result + 2**31) % 2**32 - 2**31
        return c_fragments(encode(mma.d, result))

    comparison = tolerance(mma.d, mma.a) if mixed else BITS
    made.add(mma.text + (" fractions" if mixed else ""), (mma.text,), run, mma.d, expected, comparison)


def _moves(made: Family) -> None:
    """ldmatrix and stmatrix through rows in any order, and movmatrix."""
    library = ptx_library()
    tile = values.bits("matrices", "b16", 32 * 8).reshape(32, 8)
    lanes = np.arange(32)
    rows = (lanes * 5 + 3) % 32
    for count in (1, 2, 4):
        for transposed in (False, True):
            suffix = f"x{count}{'.trans' if transposed else ''}.shared.b16"
            registers = "{" + ", ".join(f"r{i}" for i in range(count)) + "}"
            load, store = f"ldmatrix.sync.aligned.m8n8.{suffix}", f"stmatrix.sync.aligned.m8n8.{suffix}"
            for text, code in (
                (load, f"{load} {registers}, [row];"),
                (store, f"{store} [row], {registers};"),
            ):
                name = re.sub(r"\W+", "_", text)
                library.add(name, _move_entry(name, code, count, text == store))

            picked = tile[rows].reshape(4, 8, 8)[:count]
            oriented = picked.transpose(0, 2, 1) if transposed else picked
            loaded = np.stack([a_fragments(np.ascontiguousarray(matrix))[:, 0] for matrix in oriented], axis=1)

            def run_load(bench: Bench, load: str = load, count: int = count) -> Array:
                out = bench.output(32 * count)
                bench.launch(library, re.sub(r"\W+", "_", load), 1, 32, [bench.upload(tile), out])
                return bench.read(out)

            made.add(load, (load,), run_load, "b32", lambda loaded=loaded: loaded)  # type: ignore[misc]

            # Storing what was loaded puts the picked rows back; the other rows keep zeros.
            kept = np.zeros((32, 8), np.uint16)
            kept[rows[: 8 * count]] = tile[rows[: 8 * count]]

            def run_store(bench: Bench, store: str = store, loaded: Array = loaded) -> Array:
                out = bench.output(128)
                bench.launch(library, re.sub(r"\W+", "_", store), 1, 32, [bench.upload(loaded), out])
                return bench.read(out)

            made.add(store, (store,), run_store, "b32", lambda kept=kept: kept)  # type: ignore[misc]
    text = "movmatrix.sync.aligned.m8n8.trans.b16"
    library.add(
        "movmatrix",
        f"""
.visible .entry movmatrix(.param .u64 in, .param .u64 out)
{{
  .reg .b32 lane, value; .reg .b64 at;
  mov.u32 lane, %tid.x; ld.param.u64 at, [in]; mad.wide.u32 at, lane, 4, at; ld.global.b32 value, [at];
  {text} value, value;
  ld.param.u64 at, [out]; mad.wide.u32 at, lane, 4, at; st.global.b32 [at], value; ret;
}}
""",
    )

    def run(bench: Bench) -> Array:
        out = bench.output(32)
        bench.launch(library, "movmatrix", 1, 32, [bench.upload(tile[:8]), out])
        return bench.read(out)

    made.add(text, opcodes(f"{text} value, value;"), run, "b32", lambda: np.ascontiguousarray(tile[:8].T))


def _move_entry(name: str, code: str, count: int, store: bool) -> str:
    before = "ld.global.b32 r7, [at]; st.shared.b32 [slot], r7;"
    words = "\n".join(
        f"  mad.lo.u32 slot, lane, 4, base; add.u32 slot, slot, {128 * i}; mad.wide.u32 at, lane, 4, {'to' if store else 'from'};"
        f" add.s64 at, at, {128 * i}; {'ld.shared.b32 r7, [slot]; st.global.b32 [at], r7;' if store else before}"
        for i in range(4)
    )
    zeros = "\n".join(
        f"  mad.lo.u32 slot, lane, 4, base; add.u32 slot, slot, {128 * i}; st.shared.b32 [slot], 0;" for i in range(4)
    )
    each = f"  mad.wide.u32 at, lane, {4 * count}, {'from' if store else 'to'};\n" + "\n".join(
        f"  ld.global.b32 r{i}, [at + {4 * i}];" if store else f"  st.global.b32 [at + {4 * i}], r{i};"
        for i in range(count)
    )
    steps = (
        [zeros, each, "  bar.sync 0;", code, "  bar.sync 0;", words] if store else [words, "  bar.sync 0;", code, each]
    )
    body = "\n".join(steps)
    return f"""
.visible .entry {name}(.param .u64 in, .param .u64 out)
{{
  .shared .align 128 .b8 tile[512];
  .reg .b32 lane, base, slot, row, r<8>; .reg .b64 from, to, at;
  mov.u32 lane, %tid.x; mov.u32 base, tile; ld.param.u64 from, [in]; ld.param.u64 to, [out];
  mad.lo.u32 row, lane, 5, 3; and.b32 row, row, 31; mad.lo.u32 row, row, 16, base;
{body}
  ret;
}}
"""


def family() -> Family:
    """The checks."""
    made = Family("matrix")
    library = ptx_library()
    for mma in table():
        _mma(made, library, mma, mixed=False)
        if mma.d != "s32" and mma.shape[2] >= 8:
            _mma(made, library, mma, mixed=True)
    _moves(made)
    return made
