"""Control flow: PTX ISA 9.7.12. Every thread is a call of a C++ function; labels are its labels."""

from __future__ import annotations

from emulator.ptx.rule import Rule, Writer
from emulator.ptx.syntax import Instruction

__all__ = ["RULES"]


def _branch(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    del modifiers
    return f"goto {writer.label(instruction.operands[0])};"


def _branch_indexed(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    del modifiers
    index, targets = instruction.operands
    cases = " ".join(f"case {i}: goto {label};" for i, label in enumerate(writer.targets(targets)))
    wrong = f'default: emu_fail(T, {instruction.location}, "brx.idx: the index is beyond the list of targets");'
    return f"switch ({writer.read(index, 'u32')}) {{ {cases} {wrong} }}"


def _call(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    del modifiers
    return writer.call(instruction)


def _exit(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    del instruction, modifiers
    return writer.leave()


RULES = (
    Rule("bra", "9.7.12.3", "branch", ".uni?", build=_branch),
    Rule("brx.idx", "9.7.12.4", "branch by an index", ".uni?", build=_branch_indexed),
    Rule("call", "9.7.12.5", "call", ".uni?", build=_call),
    Rule("ret", "9.7.12.6", "return", ".uni?", effect="return"),
    Rule("exit", "9.7.12.7", "end of the thread", build=_exit),
)
