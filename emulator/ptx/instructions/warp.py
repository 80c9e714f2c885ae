"""Warp collectives: shuffles (PTX ISA 9.7.9.6), votes, matches, reductions and elections (9.7.13.9 to 9.7.13.14)."""

from __future__ import annotations

from emulator.ptx.rule import Rule

__all__ = ["RULES"]

RULES = (
    Rule("shfl.sync", "9.7.9.6", "value of another lane", ".mode=up|down|bfly|idx .b32",
         "d:b32|p? a:b32 b:u32 c:u32 mask:u32",
         effect="d = emu_shfl(T, EMU_{MODE}, {a}, {b}, {c}, {mask}, &p, {L})"),
    Rule("vote.sync", "9.7.13.9", "vote", ".mode=all|any|uni .pred", "p a:pred mask:u32",
         effect="p = emu_vote(T, EMU_VOTE_{MODE}, {a}, {mask}, {L})"),
    Rule("vote.sync.ballot", "9.7.13.9", "mask of the lanes that say yes", ".b32", "d:b32 a:pred mask:u32",
         "emu_vote(T, EMU_VOTE_BALLOT, {a}, {mask}, {L})"),
    Rule("match.any.sync", "9.7.13.10", "lanes with the same value", ".type=b32|b64", "d:b32 a mask:u32",
         effect="bool same; d = emu_match(T, false, {a}, {mask}, &same, {L})"),
    Rule("match.all.sync", "9.7.13.10", "whether all lanes have the same value", ".type=b32|b64", "d:b32|p? a mask:u32",
         effect="d = emu_match(T, true, {a}, {mask}, &p, {L})"),
    Rule("activemask", "9.7.13.11", "lanes that run", ".b32", "d:b32", "emu_activemask(T)"),
    Rule("redux.sync", "9.7.13.12", "reduction of integers", ".op=add|min|max .type=u32|s32", "d a mask:u32",
         "emu_redux(T, EMU_{OP}, EMU_{TYPE}, u32({a}), {mask}, {L})"),
    Rule("redux.sync", "9.7.13.12", "reduction of bits", ".op=and|or|xor .type=b32", "d a mask:u32",
         "emu_redux(T, EMU_{OP}, EMU_B32, {a}, {mask}, {L})"),
    Rule("elect.sync", "9.7.13.14", "one lane of many", "", "d:b32|p mask:u32",
         effect="d = emu_elect(T, {mask}, &p, {L})"),
)  # fmt: skip
