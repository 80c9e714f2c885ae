"""Tensor copies: PTX ISA 9.7.9.25.5."""

from __future__ import annotations

from emulator.ptx.errors import PtxError
from emulator.ptx.rule import Rule, Writer
from emulator.ptx.syntax import Address, Instruction, Operand, Vector

__all__ = ["RULES"]

_COMPLETES = ".mbarrier::complete_tx::bytes"
_HINT = ".L2::cache_hint?"
_RANK = ".rank=1d|2d|3d|4d|5d"


def _tensor(writer: Writer, instruction: Instruction, modifiers: dict[str, str], operand: Operand) -> tuple[str, str]:
    """The C++ declarations of a tensor operand's constants and coordinates, and its map."""
    rank = int(modifiers["rank"][0])
    if not isinstance(operand, Address) or operand.coordinates is None or len(operand.coordinates) != rank:
        raise PtxError(f"{instruction.opcode}: the tensor operand needs {rank} coordinates")
    im2col = "true" if modifiers["mode"].startswith("im2col") else "false"
    operation = f"EMU_{modifiers['op'].upper()}" if "op" in modifiers else "EMU_NONE"
    coordinates = ", ".join(writer.read(item, "s32") for item in operand.coordinates)
    declarations = f"static constexpr EmuTensor kind{{{rank}, {im2col}, {operation}}}; const s32 coordinates[] = {{{coordinates}}};"
    return declarations, writer.pointer(Address(operand.base, operand.offset), "")


def _load(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    to, tensor, mbarrier, *rest = instruction.operands
    declarations, tensor_map = _tensor(writer, instruction, modifiers, tensor)
    offsets = "nullptr"
    if modifiers["mode"] == "im2col":
        if not rest or not isinstance(rest[0], Vector):
            raise PtxError(f"{instruction.opcode}: offsets are missing")
        values = ", ".join(writer.read(item, "u16") for item in rest.pop(0).items)  # type: ignore[union-attr]
        declarations += f" const u16 offsets[] = {{{values}}};"
        offsets = "offsets"
    mask = writer.read(rest.pop(0), "u16") if modifiers["multicast_cluster"] == "true" else "0"
    if len(rest) != (modifiers["L2_cache_hint"] == "true"):
        raise PtxError(f"{instruction.opcode}: unexpected operands")
    return (
        f"{{ {declarations} emu_tensor_load(T, &kind, {writer.shared(to, 'shared')}, {tensor_map}, coordinates, {offsets}, "
        f"{writer.shared(mbarrier, 'shared')}, {mask}, {instruction.location}); }}"
    )


def _store(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    tensor, source, *_ = instruction.operands
    declarations, tensor_map = _tensor(writer, instruction, modifiers, tensor)
    call = f"emu_tensor_store(T, &kind, {tensor_map}, coordinates, {writer.shared(source, 'shared')}, {instruction.location});"
    return f"{{ {declarations} {call} }}"


def _prefetch(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    declarations, tensor_map = _tensor(writer, instruction, modifiers, instruction.operands[0])
    return f"{{ {declarations} emu_tensor_prefetch(T, &kind, {tensor_map}, coordinates, {instruction.location}); }}"


RULES = (
    Rule("cp.async.bulk.tensor", "9.7.9.25.5.2", "tile of a tensor to shared memory",
         f"{_RANK} .space=shared::cluster|shared::cta .global .mode?tile=tile|im2col {_COMPLETES} .multicast::cluster? {_HINT}",
         build=_load),
    Rule("cp.async.bulk.tensor", "9.7.9.25.5.2", "tile of a tensor from shared memory",
         f"{_RANK} .global .shared::cta .mode?tile=tile|im2col_no_offs .bulk_group {_HINT}", build=_store),
    Rule("cp.reduce.async.bulk.tensor", "9.7.9.25.5.3", "reduction into a tile of a tensor",
         f"{_RANK} .global .shared::cta .op=add|min|max|inc|dec|and|or|xor .mode?tile=tile|im2col_no_offs .bulk_group {_HINT}",
         build=_store),
    Rule("cp.async.bulk.prefetch.tensor", "9.7.9.25.5.4", "prefetch of a tile",
         f"{_RANK} .L2 .global .mode?tile=tile|im2col {_HINT}", build=_prefetch),
)  # fmt: skip
