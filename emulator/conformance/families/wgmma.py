"""wgmma: PTX ISA 9.7.15. Every type, both sources of A, every layout of shared memory, many widths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import values
from emulator.conformance.checks import BITS, Family
from emulator.conformance.families.matrix import tolerance
from emulator.conformance.matrices import WIDTHS, WORD, Layout, a_fragments, c_fragments, encode, fractions, whole
from emulator.conformance.sources import Library, ptx_library
from emulator.conformance.tensors import DECLARATIONS

if TYPE_CHECKING:
    from emulator.conformance.bench import Bench
    from emulator.conformance.values import Array

THREADS = 128
ROWS = 64
WIDEST = Layout(3)


@dataclass(frozen=True)
class Wgmma:
    """A check: D = ±A * ±B (+ C), `steps` instructions along k."""

    d: str
    a: str
    b: str
    n: int
    steps: int = 1
    a_layout: Layout | None = WIDEST  # None: in registers
    b_layout: Layout = WIDEST
    scale_d: bool = False
    scale_a: int = 1
    scale_b: int = 1
    saturate: bool = False
    mixed: bool = False

    @property
    def k(self) -> int:
        """Of one instruction: 32 bytes."""
        return 256 // WIDTHS[self.a]

    @property
    def opcode(self) -> str:
        """With all modifiers."""
        finite = ".satfinite" if self.saturate else ""
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}.{self.d}.{self.a}.{self.b}{finite}"

    @property
    def title(self) -> str:
        """The check's name."""
        parts = [self.opcode.replace("wgmma.mma_async.sync.aligned.", "wgmma ")]
        parts.append(f"A {self.a_layout.title if self.a_layout else 'registers'} B {self.b_layout.title}")
        parts += [f"x{self.steps}"] if self.steps > 1 else []
        parts += ["+C"] if self.scale_d else []
        parts += [f"scale {self.scale_a} {self.scale_b}"] if (self.scale_a, self.scale_b) != (1, 1) else []
        parts += ["fractions"] if self.mixed else []
        return " ".join(parts)

    def operands(self) -> tuple[Array, Array, Array]:
        """A [64, k], B [k, n] and C."""
        depth = self.k * self.steps
        make = fractions if self.mixed else whole
        a, b = make(self.title + "a", self.a, (ROWS, depth)), make(self.title + "b", self.b, (depth, self.n))
        c = make(self.title + "c", self.d, (ROWS, self.n))
        if self.saturate:
            c = (
                values.integers(self.title + "c", -(2**31), 2**31 - 1, ROWS * self.n)
                .astype(np.float64)
                .reshape(c.shape)
            )
        return a, b, c

    def expected(self) -> Array:
        """D in fragments."""
        a, b, c = self.operands()
        result = self.scale_a * self.scale_b * (a @ b) + (c if self.scale_d else 0)
        if self.d == "s32":
            result = np.clip(result, -(2**31), 2**31 - 1) if self.saturate else (result + 2**31) % 2**32 - 2**31
        return group_fragments(encode(self.d, result))

    def images(self) -> tuple[Array, Array]:
        """Shared memory of A (empty if it is in registers) and of B."""
        a, b, _ = self.operands()
        first = self.a_layout.image(encode(self.a, a)).view(np.uint8) if self.a_layout else np.zeros(0, np.uint8)
        return first, self.b_layout.image(encode(self.b, np.ascontiguousarray(b.T))).view(np.uint8)

    def registers(self) -> Array:
        """A as [step, thread, 4] registers."""
        a = encode(self.a, self.operands()[0])
        parts = []
        for step in range(self.steps):
            part = np.ascontiguousarray(a[:, step * self.k : (step + 1) * self.k])
            parts.append(np.concatenate([a_fragments(part[16 * warp : 16 * warp + 16]) for warp in range(4)]))
        return np.stack(parts)


def group_fragments(matrix: Array) -> Array:
    """Accumulators of the warpgroup: each warp has 16 rows."""
    return np.concatenate([c_fragments(matrix[16 * warp : 16 * warp + 16]) for warp in range(4)])


def entry(name: str, case: Wgmma) -> str:
    """The kernel: shared memory from an image, accumulators from C, out to D."""
    size, wide = WIDTHS[case.a] // 8, WIDTHS[case.d]
    count = case.n * wide // 64
    typed = "f32" if case.d == "f32" else "b32"
    accumulators = "{" + ", ".join(f"d{i}" for i in range(count)) + "}"
    code = []
    for step in range(case.steps):
        b_bytes = case.b_layout.step(case.n, size) * step
        code.append(f"  add.u64 db, base_b, {b_bytes >> 4};")
        if case.a_layout:
            code.append(f"  add.u64 da, base_a, {case.a_layout.step(ROWS, size) * step >> 4};")
            source = "da"
        else:
            source = "{" + ", ".join(f"a{4 * step + i}" for i in range(4)) + "}"
        scales = "" if case.d == "s32" else f", {case.scale_a}, {case.scale_b}"
        if WIDTHS[case.a] == 16:
            scales += f", {int(case.a_layout.mn_major)}" if case.a_layout else ""
            scales += f", {int(case.b_layout.mn_major)}"
        code.append(f"  {case.opcode} {accumulators}, {source}, db, {'p' if step == 0 else 'one'}{scales};")
    a_size = case.a_layout.bytes(ROWS, case.k * case.steps, size) if case.a_layout else 0
    base_a = case.a_layout.descriptor(ROWS, size) if case.a_layout else 0
    loads = "\n".join(f"  ld.global.{typed} d{i}, [at + {4 * i}];" for i in range(count))
    stores = "\n".join(f"  st.global.{typed} [at + {4 * i}], d{i};" for i in range(count))
    registers = ""
    if not case.a_layout:
        for step in range(case.steps):
            registers += (
                f"  ld.param.u64 at, [pa]; mad.wide.u32 at, t, 16, at; add.s64 at, at, {step * 16 * THREADS};\n"
            )
            registers += "".join(f"  ld.global.b32 a{4 * step + i}, [at + {4 * i}];\n" for i in range(4))
    instructions = "\n".join(code)
    return f"""
.visible .entry {name}(.param .u64 image, .param .u32 bytes, .param .u64 pa, .param .u64 pc, .param .u64 pd)
.maxntid {THREADS}, 1, 1
{{
  .reg .b32 t, i, slot, word, size, tile, a<{4 * case.steps}>; .reg .b64 at, to, da, db, base_a, base_b; .reg .pred p, one;
  .reg .{typed} d<{count}>;
  mov.u32 t, %tid.x; mov.u32 tile, dynamic; add.u32 tile, tile, 1023; and.b32 tile, tile, -1024;
  ld.param.u32 size, [bytes]; ld.param.u64 at, [image]; shl.b32 i, t, 2;
NEXT: setp.ge.u32 p, i, size; @p bra FILLED;
  add.u32 slot, tile, i; cvt.u64.u32 to, i; add.s64 to, at, to; ld.global.b32 word, [to]; st.shared.b32 [slot], word;
  add.u32 i, i, {4 * THREADS}; bra NEXT;
FILLED:
{registers}  ld.param.u64 at, [pc]; mad.wide.u32 at, t, {4 * count}, at;
{loads}
  shr.u32 slot, tile, 4; cvt.u64.u32 base_a, slot; add.u64 base_b, base_a, {a_size >> 4};
  or.b64 base_a, base_a, {base_a}; or.b64 base_b, base_b, {case.b_layout.descriptor(case.n, size)};
  setp.ne.u32 one, size, 0; setp.{"ne" if case.scale_d else "eq"}.u32 p, size, 0;
  fence.proxy.async.shared::cta; bar.sync 0;
  wgmma.fence.sync.aligned;
{instructions}
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  ld.param.u64 at, [pd]; mad.wide.u32 at, t, {4 * count}, at;
{stores}
  ret;
}}
"""


def cases() -> list[Wgmma]:
    """What is checked."""
    none, k32, k64, k128 = (Layout(swizzle) for swizzle in range(4))
    found = [Wgmma("f32", "f16", "f16", n, 4) for n in (8, 16, 24, 64, 96, 128, 248, 256)]
    found += [Wgmma("f16", "f16", "f16", n, 2, scale_d=True) for n in (8, 64, 96, 256)]
    found += [Wgmma("f32", "bf16", "bf16", n, 4, scale_d=True) for n in (8, 64, 128, 248)]
    found += [Wgmma("f32", "tf32", "tf32", n, 4, scale_d=n == 64) for n in (8, 64, 96, 256)]
    for a in ("e4m3", "e5m2"):
        for b in ("e4m3", "e5m2"):
            found += [Wgmma("f32", a, b, n, 4, scale_d=n == 64) for n in (16, 64)]
            found.append(Wgmma("f16", a, b, 32, 2, scale_d=True))
    for a in ("s8", "u8"):
        for b in ("s8", "u8"):
            found += [Wgmma("s32", a, b, n, 4, scale_d=n == 64) for n in (8, 64, 128)]
            found.append(Wgmma("s32", a, b, 16, 1, scale_d=True, saturate=True))
            found.append(Wgmma("s32", a, b, 24, 2, a_layout=None, scale_d=True))
    for kind, d in (("f16", "f32"), ("bf16", "f32"), ("tf32", "f32"), ("e4m3", "f32"), ("e5m2", "f16")):
        found += [Wgmma(d, kind, kind, n, 2, a_layout=None, scale_d=n == 64) for n in (8, 64, 128)]
        found += [Wgmma(d, kind, kind, 64, steps, layout, layout) for steps, layout in ((1, none), (1, k32), (2, k64))]
        found += [Wgmma(d, kind, kind, 32, 1, a_layout, b_layout) for a_layout, b_layout in ((none, k64), (k128, k32))]
        found.append(Wgmma(d, kind, kind, 32, 2, scale_d=True, scale_a=-1))
        found.append(Wgmma(d, kind, kind, 32, 2, scale_d=True, scale_b=-1))
        found.append(Wgmma(d, kind, kind, 16, 2, a_layout=None, scale_a=-1, scale_b=-1, scale_d=True))
        found.append(Wgmma(d, kind, kind, 32, 4, mixed=True, scale_d=True))
    found.append(Wgmma("f32", "f16", "f16", 32, 3, none, none))
    for swizzle in range(4):
        major = Layout(swizzle, mn_major=True)
        for kind in ("f16", "bf16"):
            found.append(Wgmma("f32", kind, kind, 64, 2, Layout(3), major))
            found.append(Wgmma("f32", kind, kind, 64, 2, major, Layout(3)))
            found.append(Wgmma("f32", kind, kind, 128, 4, major, major, scale_d=True))
        found.append(Wgmma("f16", "f16", "f16", 256, 2, None, major))
        found.append(Wgmma("f32", "f16", "f16", 192, 1, None, major, scale_a=-1))
    return found


def _add(made: Family, library: Library, case: Wgmma) -> None:
    name = re.sub(r"\W+", "_", case.title.replace("-1", "minus"))
    library.add(name, entry(name, case))

    def run(bench: Bench) -> Array:
        image = np.concatenate(case.images())
        c = group_fragments(encode(case.d, case.operands()[2]))
        out = bench.output(c.size)
        registers = case.registers() if case.a_layout is None else np.zeros(4, np.uint32)
        arguments = [bench.upload(image), len(image), bench.upload(registers), bench.upload(c), out]
        bench.launch(library, name, 1, THREADS, arguments, shared=len(image) + 1024)
        return bench.read(out).view(WORD[WIDTHS[case.d]])

    comparison = tolerance(case.d, case.a) if case.mixed else BITS
    covers = (
        case.opcode,
        "wgmma.fence.sync.aligned",
        "wgmma.commit_group.sync.aligned",
        "wgmma.wait_group.sync.aligned",
    )
    made.add(case.title, covers, run, case.d, case.expected, comparison)


def family() -> Family:
    """The checks."""
    made = Family("wgmma")
    library = ptx_library(DECLARATIONS)
    for case in cases():
        _add(made, library, case)
    return made
