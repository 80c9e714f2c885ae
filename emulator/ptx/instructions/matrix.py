"""Matrices of a warp: mma, ldmatrix, stmatrix, movmatrix, PTX ISA 9.7.14.5."""

from __future__ import annotations

import re

from emulator.ptx.errors import PtxError
from emulator.ptx.rule import Rule, Writer
from emulator.ptx.syntax import Instruction, Operand, Vector

__all__ = ["RULES", "items_of"]


def items_of(operand: Operand) -> tuple[Operand, ...]:
    """The registers of a fragment."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def _fragment(writer: Writer, name: str, operand: Operand, double: bool) -> str:
    """A C++ array with the words of a fragment; f64 has two words an element."""
    if not double:
        return f"const u32 {name}[] = {{{', '.join(writer.read(item, 'b32') for item in items_of(operand))}}};"
    words = (f"u32({bits}), u32({bits} >> 32)" for bits in (writer.read(item, "b64") for item in items_of(operand)))
    return f"const u32 {name}[] = {{{', '.join(words)}}};"


def _results(writer: Writer, operand: Operand, double: bool) -> str:
    if not double:
        return " ".join(writer.write(item, "b32", f"d[{i}]") for i, item in enumerate(items_of(operand)))
    return " ".join(
        writer.write(item, "b64", f"u64(d[{2 * i + 1}]) << 32 | d[{2 * i}]") for i, item in enumerate(items_of(operand))
    )


def _multiply(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    if len(instruction.operands) != 4:
        raise PtxError(f"{instruction.opcode}: {len(instruction.operands)} operands")
    to = instruction.operands[0]
    shape = re.findall(r"\d+", modifiers["shape"])
    double = modifiers["a"] == "f64"
    types = ", ".join(f"EMU_{modifiers[name].upper()}" for name in "dabc")
    saturate = modifiers.get("satfinite", "false")
    fragments = " ".join(
        _fragment(writer, name, operand, double) for name, operand in zip("abc", instruction.operands[1:], strict=True)
    )
    words = len(items_of(to)) * (2 if double else 1)
    return (
        f"{{ static constexpr EmuMma kind{{{', '.join(shape)}, {types}, {saturate}}}; {fragments} u32 d[{words}]; "
        f"emu_mma(T, &kind, d, a, b, c, {instruction.location}); {_results(writer, to, double)} }}"
    )


def _matrix(instruction: Instruction, modifiers: dict[str, str], registers: tuple[Operand, ...]) -> str:
    number = int(modifiers["number"][1:])
    if len(registers) != number:
        raise PtxError(f"{instruction.opcode}: {len(registers)} registers")
    return f"static constexpr EmuMatrix kind{{{number}, {modifiers['trans']}}};"


def _load_matrix(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    to, address = instruction.operands
    kind = _matrix(instruction, modifiers, items_of(to))
    call = f"emu_ldmatrix(T, &kind, d, {writer.shared(address, modifiers['space'])}, {instruction.location});"
    return f"{{ {kind} u32 d[{len(items_of(to))}]; {call} {_results(writer, to, double=False)} }}"


def _store_matrix(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    address, source = instruction.operands
    kind = _matrix(instruction, modifiers, items_of(source))
    call = f"emu_stmatrix(T, &kind, {writer.shared(address, modifiers['space'])}, s, {instruction.location});"
    return f"{{ {kind} {_fragment(writer, 's', source, double=False)} {call} }}"


def _mma(shapes: str, types: str, satfinite: str = "") -> Rule:
    return Rule("mma.sync.aligned", "9.7.14.5.14", "matrix product of a warp", f".shape={shapes} .row .col {satfinite} {types}",
                build=_multiply)  # fmt: skip


_BYTES = ".a=s8|u8 .b=s8|u8"
_FP8 = ".a=e4m3|e5m2 .b=e4m3|e5m2"
_TILES = ".number=x1|x2|x4 .trans? .space?=shared|shared::cta .b16"

RULES = (
    _mma("m16n8k8|m16n8k16", ".d=f16|f32 .a=f16 .b=f16 .c=f16|f32"),
    _mma("m16n8k8|m16n8k16", ".d=f32 .a=bf16 .b=bf16 .c=f32"),
    _mma("m16n8k4|m16n8k8", ".d=f32 .a=tf32 .b=tf32 .c=f32"),
    _mma("m8n8k4|m16n8k4|m16n8k8|m16n8k16", ".d=f64 .a=f64 .b=f64 .c=f64"),
    _mma("m8n8k16|m16n8k16|m16n8k32", f".d=s32 {_BYTES} .c=s32", ".satfinite?"),
    _mma("m16n8k16|m16n8k32", f".d=f16|f32 {_FP8} .c=f16|f32"),
    Rule("ldmatrix.sync.aligned.m8n8", "9.7.14.5.15", "matrices from shared memory", _TILES, build=_load_matrix),
    Rule("stmatrix.sync.aligned.m8n8", "9.7.14.5.16", "matrices to shared memory", _TILES, build=_store_matrix),
    Rule("movmatrix.sync.aligned.m8n8.trans.b16", "9.7.14.5.17", "transposed matrix", "", "d:b32 a:b32",
         "emu_movmatrix(T, {a}, {L})"),
)  # fmt: skip
