"""Clusters: mapa, getctarank and st.async (PTX ISA 9.7.9), barrier.cluster and red.async (9.7.13)."""

from __future__ import annotations

from emulator.ptx.rule import Rule, Writer
from emulator.ptx.syntax import Instruction, Vector
from emulator.ptx.types import bytes_of

__all__ = ["RULES"]

_COMPLETES = ".mbarrier::complete_tx::bytes"


def _store_async(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    address, source, mbarrier = instruction.operands
    kind = modifiers["type"]
    items = source.items if isinstance(source, Vector) else (source,)
    values = ", ".join(writer.read(item, kind) for item in items)
    to, barrier = (writer.shared(operand, modifiers["space"]) for operand in (address, mbarrier))
    size = bytes_of(kind) * len(items)
    call = f"emu_store_async(T, {to}, values, {size}, {barrier}, {instruction.location});"
    return f"{{ const {kind} values[] = {{{values}}}; {call} }}"


_REDUCE = "emu_reduce_async(T, {a}, EMU_{OP}, EMU_{TYPE}, u64({b}), {m}, {L})"
_ASYNC = f".order?=relaxed .scope?=cluster .space?=shared::cluster {_COMPLETES}"

RULES = (
    Rule("mapa", "9.7.9.23", "address in another block's shared memory", ".shared::cluster .type=u32|u64", "d a b:u32",
         "emu_mapa(T, u32({a}), {b}, {L})"),
    Rule("mapa", "9.7.9.23", "generic address in another block's shared memory", ".type=u64", "d a b:u32",
         "u64(shared_pointer(T, emu_mapa(T, shared_address(T, pointer({a})), {b}, {L})))"),
    Rule("getctarank", "9.7.9.24", "block that an address belongs to", ".shared::cluster .type=u32|u64", "d:u32 a",
         "emu_ctarank(T, u32({a}), {L})"),
    Rule("getctarank", "9.7.9.24", "block that a generic address belongs to", ".type=u64", "d:u32 a",
         "emu_ctarank(T, shared_address(T, pointer({a})), {L})"),
    Rule("st.async", "9.7.9.12", "store that completes on an mbarrier",
         f".weak? .space?=shared::cluster {_COMPLETES} .vector?=v2|v4 .type=b32|b64|u32|u64|s32|s64|f32|f64",
         build=_store_async),
    Rule("barrier.cluster.arrive", "9.7.13.3", "arrival at the cluster's barrier", ".order?release=release|relaxed .aligned?",
         effect="emu_cluster_arrive(T, order::{order}, {aligned}, {L})"),
    Rule("barrier.cluster.wait", "9.7.13.3", "wait for the cluster", ".acquire? .aligned?",
         effect="emu_cluster_wait(T, {aligned}, {L})"),
    Rule("red.async", "9.7.13.7", "reduction that completes on an mbarrier", f"{_ASYNC} .op=inc|dec .type=u32",
         "[a:space#] b [m:space#]", effect=_REDUCE),
    Rule("red.async", "9.7.13.7", "reduction that completes on an mbarrier", f"{_ASYNC} .op=min|max .type=u32|s32",
         "[a:space#] b [m:space#]", effect=_REDUCE),
    Rule("red.async", "9.7.13.7", "reduction that completes on an mbarrier", f"{_ASYNC} .op=add .type=u32|s32|u64",
         "[a:space#] b [m:space#]", effect=_REDUCE),
    Rule("red.async", "9.7.13.7", "reduction that completes on an mbarrier", f"{_ASYNC} .op=and|or|xor .type=b32",
         "[a:space#] b [m:space#]", effect=_REDUCE),
)  # fmt: skip
