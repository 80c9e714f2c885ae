"""Matrices of a warpgroup: PTX ISA 9.7.15."""

from __future__ import annotations

import re

from emulator.ptx.errors import PtxError
from emulator.ptx.instructions.matrix import items_of
from emulator.ptx.rule import Rule, Writer
from emulator.ptx.syntax import Instruction, Integer, Operand, Vector

__all__ = ["RULES"]


def _constant(instruction: Instruction, operand: Operand) -> int:
    if not isinstance(operand, Integer):
        raise PtxError(f"{instruction.opcode}: an immediate operand is not a number")
    return operand.value


def _multiply(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    to, a, b, scale, *rest = instruction.operands
    immediates = [_constant(instruction, operand) for operand in rest]
    n, k = re.findall(r"\d+", modifiers["shape"])[1:]
    in_registers = isinstance(a, Vector)
    scales, transposed = ([*immediates[:2], 1, 1][:2], [0, 0]) if immediates else ([1, 1], [0, 0])
    if len(immediates) > 2:
        flags = immediates[2:]
        transposed = [0, *flags] if in_registers else flags
        if len(transposed) != 2:
            raise PtxError(f"{instruction.opcode}: {len(instruction.operands)} operands")
    types = ", ".join(f"EMU_{modifiers[name].upper()}" for name in "dab")
    flags_text = ", ".join("true" if flag else "false" for flag in transposed)
    saturate = modifiers.get("satfinite", "false")
    registers = items_of(to)
    expected = int(n) // (4 if modifiers["d"] == "f16" else 2)
    if len(registers) != expected:
        raise PtxError(f"{instruction.opcode}: {len(registers)} accumulators, not {expected}")
    fragment = (
        f"const u32 a[] = {{{', '.join(writer.read(item, 'b32') for item in items_of(a))}}}; " if in_registers else ""
    )
    return (
        f"{{ static constexpr EmuWgmma kind{{{n}, {k}, {types}, {scales[0]}, {scales[1]}, {flags_text}, {saturate}}}; "
        f"u32* const d[] = {{{', '.join(writer.reference(item) for item in registers)}}}; {fragment}"
        f"emu_wgmma(T, &kind, d, {'a' if in_registers else 'nullptr'}, {'0' if in_registers else writer.read(a, 'b64')}, "
        f"{writer.read(b, 'b64')}, {writer.read(scale, 'pred')}, {instruction.location}); }}"
    )


def _shapes(k: int, widths: tuple[int, ...]) -> str:
    return ".shape=" + "|".join(f"m64n{n}k{k}" for n in widths)


_WIDTHS = tuple(range(8, 257, 8))
_INTEGER_WIDTHS = (8, 16, 24, *range(32, 257, 16))


def _wgmma(modifiers: str) -> Rule:
    return Rule(
        "wgmma.mma_async.sync.aligned", "9.7.15.5.2", "matrix product of a warpgroup", modifiers, build=_multiply
    )


RULES = (
    _wgmma(f"{_shapes(16, _WIDTHS)} .d=f16|f32 .a=f16 .b=f16"),
    _wgmma(f"{_shapes(16, _WIDTHS)} .d=f32 .a=bf16 .b=bf16"),
    _wgmma(f"{_shapes(8, _WIDTHS)} .d=f32 .a=tf32 .b=tf32"),
    _wgmma(f"{_shapes(32, _WIDTHS)} .d=f16|f32 .a=e4m3|e5m2 .b=e4m3|e5m2"),
    _wgmma(f"{_shapes(32, _INTEGER_WIDTHS)} .satfinite? .d=s32 .a=s8|u8 .b=s8|u8"),
    _wgmma(f"{_shapes(32, _INTEGER_WIDTHS)} .d=s32 .a=s8|u8 .b=s8|u8 .satfinite"),
    Rule("wgmma.fence.sync.aligned", "9.7.15.7.1", "order of registers and wgmma", effect="emu_wgmma_fence(T, {L})"),
    Rule("wgmma.commit_group.sync.aligned", "9.7.15.7.2", "end of a group", effect="emu_wgmma_commit(T, {L})"),
    Rule("wgmma.wait_group.sync.aligned", "9.7.15.7.3", "wait for groups", "", "n:u32",
         effect="emu_wgmma_wait(T, {n}, {L})"),
)  # fmt: skip
