"""Miscellaneous instructions: PTX ISA 9.7.19."""

from __future__ import annotations

from emulator.ptx.rule import Rule

__all__ = ["RULES"]

RULES = (
    Rule("brkpt", "9.7.19.1", "breakpoint", effect='emu_fail(T, {L}, "brkpt: a breakpoint without a debugger")'),
    Rule("nanosleep.u32", "9.7.19.2", "sleep", "", "a:u32", effect="(void){a}; emu_yield(T)"),
    Rule("pmevent", "9.7.19.3", "performance monitor event", ".mask?", "a:u32", effect="(void)0"),
    Rule("trap", "9.7.19.4", "abort", effect='emu_fail(T, {L}, "trap")'),
    Rule("setmaxnreg", "9.7.19.5", "more or fewer registers", ".direction=inc|dec .sync .aligned .u32", "a:u32",
         effect="emu_setmaxnreg(T, {direction:inc}, {a}, {L})"),
)  # fmt: skip
