"""Loads and stores of every space, width and cache operator: PTX ISA 9.7.9. A kernel copies; what comes out went in."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import values
from emulator.conformance.checks import Family
from emulator.conformance.scalar import BLOCK, COUNT, opcodes
from emulator.conformance.sources import Library, ptx_library

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.bench import Bench
    from emulator.conformance.values import Array

TYPES = ("u8", "s8", "u16", "s16", "b16", "u32", "s32", "b32", "u64", "s64", "b64", "f32", "f64")
SLOT = 32  # bytes of a thread in the shared, local and constant arrays
_LETTERS = {8: "h", 16: "h", 32: "r", 64: "d"}
_KIND = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}


@dataclass(frozen=True)
class Operand:
    """A scalar or vector of a type, with the registers that hold it."""

    type: str
    count: int = 1

    @property
    def suffix(self) -> str:
        """`v2.f32`."""
        return (f"v{self.count}." if self.count > 1 else "") + self.type

    @property
    def registers(self) -> str:
        """`{f0, f1}`."""
        letter = {"f32": "f", "f64": "g"}.get(self.type, _LETTERS[values.WIDTHS[self.type]])
        names = ", ".join(f"{letter}{i}" for i in range(self.count))
        return f"{{{names}}}" if self.count > 1 else names

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.count * values.WIDTHS[self.type] // 8

    @property
    def title(self) -> str:
        """For a check's name."""
        return self.suffix


OPERANDS = [
    Operand(kind, count) for kind in TYPES for count in (1, 2, 4) if count * values.WIDTHS[kind] <= 128
]  # fmt: skip


def kernel(name: str, code: str, size_in: int, size_out: int, declarations: str = "") -> str:
    """A kernel around a few statements: gi and go address the thread's input and output, slot its shared memory."""
    spaces = ""
    if "slot" in code:
        spaces += f"  .shared .align 16 .b8 tile[{BLOCK * SLOT}]; .reg .b32 slot; .reg .b64 gs;\n"
        spaces += f"  mov.u32 slot, tile; mad.lo.u32 slot, block, {SLOT}, slot;\n"
    if "scratch" in code:
        spaces += f"  .local .align 16 .b8 scratch[{SLOT}];\n"
    return f"""{declarations}
.visible .entry {name}(.param .u64 in, .param .u64 out)
{{
  .reg .b32 index, block, r<8>; .reg .b64 gi, go, w, policy, d<8>; .reg .b16 h<8>; .reg .f32 f<8>; .reg .f64 g<8>; .reg .pred p;
  mov.u32 index, %ctaid.x;
  mov.u32 block, %tid.x;
  mad.lo.u32 index, index, {BLOCK}, block;
  ld.param.u64 gi, [in];
  ld.param.u64 go, [out];
  mad.wide.u32 gi, index, {size_in}, gi;
  mad.wide.u32 go, index, {size_out}, go;
{spaces}  {code}
  ret;
}}
"""


class Copies:
    """Checks that copy."""

    def __init__(self, made: Family) -> None:
        self.family = made
        self.library: Library = ptx_library()

    def add(
        self,
        title: str,
        code: str,
        size_in: int,
        size_out: int | None = None,
        expected: Callable[[Array], Array] | None = None,
        declarations: str = "",
    ) -> None:
        """A copy of `size_in` bytes per thread; `expected` of the input bytes gives other output bytes."""
        size_out = size_out or size_in
        name = "copy_" + re.sub(r"\W+", "_", title)
        self.library.add(name, kernel(name, code, size_in, size_out, declarations))
        source = values.bits(title, "b8", COUNT * size_in)
        kind = _KIND.get(size_out & -size_out, "b64")

        def run(bench: Bench) -> Array:
            out = bench.output(COUNT * size_out, np.uint8)
            bench.launch(self.library, name, COUNT // BLOCK, BLOCK, [bench.upload(source), out])
            return bench.read(out, np.uint8)

        self.family.add(
            title, opcodes(f"{declarations}\n{code}"), run, kind, lambda: expected(source) if expected else source
        )


def _copy(operand: Operand, load: str = "ld.global", store: str = "st.global") -> str:
    return f"{load}.{operand.suffix} {operand.registers}, [gi]; {store}.{operand.suffix} [go], {operand.registers};"


def _through(operand: Operand, space: str, address: str) -> str:
    """Copies by way of another space."""
    suffix, registers = operand.suffix, operand.registers
    other = operand.registers.replace("0", "4").replace("1", "5").replace("2", "6").replace("3", "7")
    dot = f".{space}" if space else ""
    return (
        f"ld.global.{suffix} {registers}, [gi]; st{dot}.{suffix} [{address}], {registers}; "
        f"ld{dot}.{suffix} {other}, [{address}]; st.global.{suffix} [go], {other};"
    )


def _widths(copies: Copies) -> None:
    for operand in OPERANDS:
        copies.add(f"global {operand.title}", _copy(operand), operand.bytes)
        copies.add(f"shared {operand.title}", _through(operand, "shared", "slot"), operand.bytes)
    for operand in (
        Operand("u8"),
        Operand("s16"),
        Operand("b32"),
        Operand("f32", 4),
        Operand("f64", 2),
        Operand("u64"),
    ):
        size, title = operand.bytes, operand.title
        copies.add(f"local {title}", _through(operand, "local", "scratch"), size)
        copies.add(f"generic global {title}", _copy(operand, "ld", "st"), size)
        code = f"cvt.u64.u32 gs, slot; cvta.shared.u64 gs, gs; {_through(operand, '', 'gs')}"
        copies.add(f"generic shared {title}", code, size)
        code = f"mov.u64 w, scratch; cvta.local.u64 w, w; {_through(operand, '', 'w')}"
        copies.add(f"generic local {title}", code, size)
        copies.add(f"shared::cta {title}", _through(operand, "shared::cta", "slot"), size)
        copies.add(f"shared::cluster {title}", _through(operand, "shared::cluster", "slot"), size)
    for source, target, letter, width in (
        ("s8", "s32", "r", 4),
        ("u8", "u32", "r", 4),
        ("s16", "s32", "r", 4),
        ("u16", "u64", "d", 8),
        ("s32", "s64", "d", 8),
        ("s8", "s64", "d", 8),
    ):
        code = f"ld.global.{source} {letter}0, [gi]; st.global.{target} [go], {letter}0;"
        size = values.WIDTHS[source] // 8
        signed = np.dtype(f"{'i' if source[0] == 's' else 'u'}{size}")
        wide = np.dtype(f"{'i' if source[0] == 's' else 'u'}{width}")
        rule = lambda data, signed=signed, wide=wide: data.view(signed).astype(wide).view(np.uint8)  # noqa: E731
        copies.add(f"{source} to {target}", code, size, width, rule)
    code = (
        "ld.global.v4.u32 {r0, r1, r2, r3}, [gi]; st.global.v2.u32 [go + 8], {r0, r1}; st.global.v2.u32 [go], {r2, r3};"
    )
    swap = lambda data: data.reshape(-1, 2, 8)[:, ::-1].reshape(-1)  # noqa: E731
    copies.add("offsets", code, 16, 16, swap)


def _operators(copies: Copies) -> None:
    word, quad = Operand("b32"), Operand("u32", 4)
    loads = [f"ld.global.{operator}" for operator in ("ca", "cg", "cs", "lu", "cv", "nc", "ca.nc", "cg.nc")]
    loads += ["ld.global.nc.L1::no_allocate", "ld.global.nc.L1::evict_last", "ld.global.L1::evict_first"]
    loads += ["ld.global.L1::evict_unchanged", "ld.global.L1::evict_normal", "ld.global.nc.L1::no_allocate.L2::128B"]
    loads += ["ld.global.L2::64B", "ld.global.L2::128B", "ld.global.nc.L2::256B", "ld.weak.global", "ldu.global"]
    loads += ["ld.volatile.global", "ld.volatile", "ld.relaxed.cta.global", "ld.acquire.cluster"]
    loads += [f"ld.{order}.{scope}.global" for order in ("relaxed", "acquire") for scope in ("cluster", "gpu", "sys")]
    for load in loads:
        copies.add(f"{load}.b32", _copy(word, load), 4)
        if not re.search("lu|cv", load):
            copies.add(f"{load}.v4.u32", _copy(quad, load), 16)
    stores = [f"st.global.{operator}" for operator in ("wb", "cg", "cs", "wt", "L1::no_allocate", "L1::evict_last")]
    stores += ["st.weak.global", "st.volatile.global", "st.volatile"]
    stores += [
        f"st.{order}.{scope}.global" for order in ("relaxed", "release") for scope in ("cta", "cluster", "gpu", "sys")
    ]
    for store in stores:
        copies.add(f"{store}.b32", _copy(word, "ld.global", store), 4)
        copies.add(f"{store}.v4.u32", _copy(quad, "ld.global", store), 16)
    for space in ("volatile.shared", "relaxed.cta.shared", "acquire.gpu.shared::cta"):
        load, store = f"ld.{space}", f"st.{space.replace('acquire', 'release')}"
        code = f"ld.global.b32 r0, [gi]; {store}.b32 [slot], r0; {load}.b32 r1, [slot]; st.global.b32 [go], r1;"
        copies.add(f"{load}.b32", code, 4)
    for policy in (
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;",
        "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 policy, 0.5;",
        "createpolicy.cvt.L2.b64 policy, 0x12f0000000000000;",  # cuda::access_property::streaming
        "createpolicy.range.global.L2::evict_last.L2::evict_first.b64 policy, [gi], 16, 32;",
    ):
        code = f"{policy} ld.global.L2::cache_hint.b32 r0, [gi], policy; st.global.L2::cache_hint.b32 [go], r0, policy;"
        copies.add(" ".join(policy.split(" ")[0].split(".")[:4]), code, 4)


def _ordering(copies: Copies) -> None:
    word = "ld.global.b32 r0, [gi]; st.shared.b32 [slot], r0; {} ld.shared.b32 r1, [slot]; st.global.b32 [go], r1;"
    fences = [f"membar.{scope}" for scope in ("cta", "gl", "sys")]
    fences += [
        f"fence{order}.{scope}" for order in ("", ".sc", ".acq_rel") for scope in ("cta", "cluster", "gpu", "sys")
    ]
    fences += ["fence.proxy.alias", "fence.proxy.async", "fence.proxy.async.global", "fence.proxy.async.shared::cta"]
    fences += ["fence.proxy.async.shared::cluster", "fence.mbarrier_init.release.cluster"]
    fences += ["membar.proxy.alias", "fence.acquire.sync_restrict::shared::cluster.cluster"]
    fences += ["fence.release.sync_restrict::shared::cta.cluster", "fence.proxy.tensormap::generic.release.gpu"]
    fences += ["fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster"]
    fences += ["fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster"]
    for fence in fences:
        copies.add(fence, word.format(fence + ";"), 4)
    tensormap = "and.b64 w, gi, -128; fence.proxy.tensormap::generic.acquire.gpu [w], 128;"
    copies.add("fence.proxy.tensormap::generic.acquire.gpu", f"{tensormap} {_copy(Operand('b32'))}", 4)
    # Discarding a line leaves it undefined: each thread has one of its own, and reads it before.
    first = lambda data: data.reshape(-1, 128)[:, :4].reshape(-1)  # noqa: E731
    code = "ld.global.b32 r0, [gi]; discard.global.L2 [gi], 128; st.global.b32 [go], r0;"
    copies.add("discard.global.L2", code, 128, 4, first)
    for hint in (
        "prefetch.global.L1 [gi];",
        "prefetch.global.L2 [gi];",
        "prefetch.global.L2::evict_last [gi];",
        "prefetch.global.L2::evict_normal [gi];",
        "prefetch.L1 [gi];",
        "prefetchu.L1 [gi];",
    ):
        copies.add(hint.split(" ")[0], f"{hint} {_copy(Operand('b32'))}", 4)
    copies.add(
        "applypriority",
        f"and.b64 w, gi, -128; applypriority.global.L2::evict_normal [w], 128; {_copy(Operand('b32'))}",
        4,
    )


def _constants(copies: Copies) -> None:
    data = values.bits("constants", "b32", 64)
    listed = ", ".join(str(int(word)) for word in data)
    mask = "and.b32 r7, index, 15; mul.wide.u32 w, r7, 16;"
    expected = lambda _source: np.tile(data.view(np.uint8), COUNT // 16)  # noqa: E731
    for space in ("const", "global"):
        declaration = f".visible .{space} .align 16 .b32 {space}_table[64] = {{{listed}}};"
        code = f"{mask} mov.u64 d0, {space}_table; add.s64 w, w, d0; "
        code += f"ld.{space}.v4.u32 {{r0, r1, r2, r3}}, [w]; st.global.v4.u32 [go], {{r0, r1, r2, r3}};"
        copies.add(f"{space} variable", code, 4, 16, expected, declaration)
        declaration = declaration.replace("_table", "_generic")
        code = f"{mask} mov.u64 d0, {space}_generic; cvta.{space}.u64 d0, d0; add.s64 w, w, d0; "
        code += "ld.v4.u32 {r0, r1, r2, r3}, [w]; st.global.v4.u32 [go], {r0, r1, r2, r3};"
        copies.add(f"generic {space} variable", code, 4, 16, expected, declaration)
    declaration = f".global .align 16 .b32 pointed[64] = {{{listed}}};\n"
    declaration += ".global .align 8 .u64 pointers[2] = {generic(pointed), generic(pointed) + 128};"
    code = "mov.u64 w, pointers; ld.global.u64 w, [w + 8]; ld.u32 r0, [w + 4]; st.global.b32 [go], r0;"
    copies.add("pointer variable", code, 4, 4, lambda _source: np.tile(data[33:34].view(np.uint8), COUNT), declaration)
    code = "cvta.to.global.u64 w, gi; ld.global.b32 r0, [w]; cvta.global.u64 d0, go; st.b32 [d0], r0;"
    copies.add("cvta.global", code, 4)
    code = "cvt.u64.u32 gs, slot; cvta.shared.u64 gs, gs; ld.global.b32 r0, [gi]; st.b32 [gs], r0; "
    code += "cvta.to.shared.u64 gs, gs; cvt.u32.u64 r1, gs; ld.shared.b32 r2, [r1]; st.global.b32 [go], r2;"
    copies.add("cvta.to.shared", code, 4)
    code = "cvt.u64.u32 gs, slot; cvta.shared.u64 gs, gs; isspacep.shared p, gs; selp.u32 r0, 1, 0, p; "
    code += "isspacep.global p, gs; selp.u32 r1, 2, 0, p; or.b32 r0, r0, r1; mov.u64 w, scratch; cvta.local.u64 w, w; "
    code += "isspacep.local p, w; selp.u32 r1, 4, 0, p; or.b32 r0, r0, r1; st.local.b32 [scratch], r0; st.global.b32 [go], r0;"
    answer = np.full(COUNT, 5, np.uint32).view(np.uint8)
    copies.add("isspacep", code, 4, 4, lambda _source: answer)
    _functions(copies)


def _functions(copies: Copies) -> None:
    declaration = """.func (.param .b32 result) twice(.param .b32 a, .param .b64 b) {
  .reg .b32 x; .reg .b64 y; ld.param.b32 x, [a]; ld.param.b64 y, [b]; cvt.u32.u64 x, y; st.param.b32 [result], x; ret; }"""
    code = """ld.global.b32 r0, [gi]; cvt.u64.u32 d0, r0;
  { .param .b32 a; .param .b64 b; .param .b32 c; st.param.b32 [a], r0; st.param.b64 [b], d0; call.uni (c), twice, (a, b);
  ld.param.b32 r1, [c]; } st.global.b32 [go], r1;"""
    copies.add("call", code, 4, 4, None, declaration)


def _aggregates(copies: Copies) -> None:
    name = "parameter_struct"
    text = """
.visible .entry parameter_struct(.param .align 16 .b8 data[48], .param .u8 byte, .param .u64 out)
{
  .reg .b32 r<5>; .reg .b64 go; .reg .b16 h0;
  ld.param.v4.u32 {r0, r1, r2, r3}, [data + 16]; ld.param.u8 h0, [byte]; cvt.u32.u16 r4, h0;
  ld.param.u64 go, [out]; st.global.v4.u32 [go], {r0, r1, r2, r3}; st.global.u32 [go + 16], r4;
  ret;
}
"""
    copies.library.add(name, text)
    data = values.bits(name, "b8", 48)

    def run(bench: Bench) -> Array:
        out = bench.output(5)
        block = (ctypes.c_ubyte * 48)(*data.tolist())
        bench.launch(copies.library, name, 1, 1, [block, ctypes.c_ubyte(77), out])
        return bench.read(out)

    expected = lambda: np.append(data[16:32].view(np.uint32), np.uint32(77))  # noqa: E731
    copies.family.add("ld.param of a struct", "ld.param.v4.u32 ld.param.u8", run, "u32", expected)


def family() -> Family:
    """The checks."""
    made = Family("memory")
    copies = Copies(made)
    _widths(copies)
    _operators(copies)
    _ordering(copies)
    _constants(copies)
    _aggregates(copies)
    return made
