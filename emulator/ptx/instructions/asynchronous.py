"""Asynchronous and bulk copies: PTX ISA 9.7.9.25.3, 9.7.9.25.4, 9.7.9.25.6. Tensors have a file of their own."""

from __future__ import annotations

from emulator.ptx.errors import PtxError
from emulator.ptx.rule import Rule, Writer
from emulator.ptx.syntax import Instruction, Integer

__all__ = ["RULES"]

_COMPLETES = ".mbarrier::complete_tx::bytes"
_HINT = ".L2::cache_hint?"


def _copy(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    """cp.async; the fourth operand is a number of bytes to read, or a predicate that says to read none."""
    to, source, size, *rest = instruction.operands
    if modifiers["L2_cache_hint"] == "true":
        rest.pop()
    sizes = (16,) if modifiers["cache"] == "cg" else (4, 8, 16)
    if not isinstance(size, Integer) or size.value not in sizes or len(rest) > 1:
        raise PtxError(f"{instruction.opcode}: unexpected operands")
    source_bytes = str(size.value)
    if rest:
        ignore = writer.kind_of(rest[0]) == "pred"
        source_bytes = f"{writer.read(rest[0], 'pred')} ? 0 : {size.value}" if ignore else writer.read(rest[0], "u32")
    return (
        f"emu_cp_async(T, {writer.shared(to, 'shared')}, {writer.pointer(source, 'global')}, {size.value}, {source_bytes}, "
        f"{instruction.location});"
    )


def _store(operations: str, types: str, noftz: str = "") -> Rule:
    """Reduction of a bulk into global memory."""
    return Rule(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group", "9.7.9.25.4.2", "bulk reduction into global memory",
        f"{_HINT} .op={operations} {noftz} .type={types}", "[to:global] [s:shared#] n:u32 policy:b64?L2_cache_hint",
        effect="emu_bulk_store(T, {to}, {s}, {n}, EMU_{OP}, EMU_{TYPE}, {L})",
    )  # fmt: skip


RULES = (
    Rule("cp.async", "9.7.9.25.3.1", "asynchronous copy to shared memory",
         f".cache=ca|cg .space=shared|shared::cta .global {_HINT} .prefetch?=L2::64B|L2::128B|L2::256B", build=_copy),
    Rule("cp.async.commit_group", "9.7.9.25.3.2", "end of a group", effect="emu_cp_async_commit(T, {L})"),
    Rule("cp.async.wait_group", "9.7.9.25.3.3", "wait for groups", "", "n:u32", effect="emu_cp_async_wait(T, {n}, {L})"),
    Rule("cp.async.wait_all", "9.7.9.25.3.3", "wait for all", effect="emu_cp_async_wait_all(T, {L})"),
    Rule("cp.async.bulk", "9.7.9.25.4.1", "bulk copy from global to shared memory",
         f".space=shared::cluster|shared::cta .global {_COMPLETES} .multicast::cluster? {_HINT}",
         "[to:space#] [s:global] n:u32 [m:shared#] mask:u16?multicast_cluster=0 policy:b64?L2_cache_hint",
         effect="emu_bulk_load(T, {to}, {s}, {n}, {m}, {mask}, {L})"),
    Rule("cp.async.bulk", "9.7.9.25.4.1", "bulk copy to another block's shared memory",
         f".shared::cluster .shared::cta {_COMPLETES}", "[to:shared::cluster#] [s:shared#] n:u32 [m:shared::cluster#]",
         effect="emu_bulk_copy_shared(T, {to}, {s}, {n}, {m}, {L})"),
    Rule("cp.async.bulk", "9.7.9.25.4.1", "bulk copy from shared to global memory",
         f".global .shared::cta .bulk_group {_HINT}", "[to:global] [s:shared#] n:u32 policy:b64?L2_cache_hint",
         effect="emu_bulk_store(T, {to}, {s}, {n}, EMU_NONE, EMU_B8, {L})"),
    Rule("cp.reduce.async.bulk", "9.7.9.25.4.2", "bulk reduction into another block's shared memory",
         f".shared::cluster .shared::cta {_COMPLETES} .op=add|min|max|inc|dec|and|or|xor .type=u32|s32|u64|b32",
         "[to:shared::cluster#] [s:shared#] n:u32 [m:shared::cluster#]",
         effect="emu_bulk_reduce_shared(T, {to}, {s}, {n}, EMU_{OP}, EMU_{TYPE}, {m}, {L})"),
    _store("add", "u32|s32|u64|f32|f64"),
    _store("min|max", "u32|s32|u64|s64"),
    _store("inc|dec", "u32"),
    _store("and|or|xor", "b32|b64"),
    _store("add", "f16|bf16", ".noftz"),
    _store("min|max", "f16|bf16"),
    Rule("cp.async.bulk.prefetch.L2.global", "9.7.9.25.4.3", "bulk prefetch", _HINT,
         "[s:global] n:u32 policy:b64?L2_cache_hint", effect="(void)0"),
    Rule("cp.async.bulk.commit_group", "9.7.9.25.6.1", "end of a group of bulk stores", effect="emu_bulk_commit(T, {L})"),
    Rule("cp.async.bulk.wait_group", "9.7.9.25.6.2", "wait for groups of bulk stores", ".read?", "n:u32",
         effect="emu_bulk_wait(T, {n}, {read}, {L})"),
)  # fmt: skip
