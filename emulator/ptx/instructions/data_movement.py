"""Data movement: PTX ISA 9.7.9.3 to 9.7.9.18. Shuffles are in `warp`, conversions in `conversion`."""

from __future__ import annotations

from emulator.ptx.errors import PtxError
from emulator.ptx.memory import CACHE_MODIFIERS, LOAD_CACHE, access, scope_of
from emulator.ptx.rule import Rule, Writer
from emulator.ptx.syntax import Instruction, Name, Operand, Vector
from emulator.ptx.types import MEMORY, SCALARS, bytes_of

__all__ = ["RULES"]

_STRONG = ("volatile", "relaxed", "acquire", "release")


def _move(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    to, source = instruction.operands
    kind = modifiers["type"]
    if isinstance(source, Vector):
        return _pack(writer, to, source, kind)
    if isinstance(to, Vector):
        return _unpack(writer, to, source, kind)
    return writer.write(to, kind, writer.read(source, kind))


def _pack(writer: Writer, to: Operand, source: Vector, kind: str) -> str:
    width = 8 * bytes_of(kind) // len(source.items)
    parts = (
        f"{kind}({writer.read(item, f'b{width}')}) << {i * width}"
        for i, item in enumerate(source.items)
        if item != Name("_")
    )
    return writer.write(to, kind, f"{kind}({' | '.join(parts)})")


def _unpack(writer: Writer, to: Vector, source: Operand, kind: str) -> str:
    width = 8 * bytes_of(kind) // len(to.items)
    parts = " ".join(
        writer.write(item, f"b{width}", f"b{width}(whole >> {i * width})") for i, item in enumerate(to.items)
    )
    return f"{{ const {kind} whole = {writer.read(source, kind)}; {parts} }}"


def _elements(operand: Operand, modifiers: dict[str, str], opcode: str) -> tuple[Operand, ...]:
    """The registers of a load or store."""
    expected = int(modifiers["vector"][1:] or 1) if modifiers["vector"] else 1
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != expected:
        raise PtxError(f"{opcode}: {len(items)} registers")
    return items


def _at(offset: int) -> str:
    return f"at + {offset}" if offset else "at"


def _cell(kind: str, address: str) -> str:
    """C++ for what stands at an address, to be read or written. As calls of functions they would take g++ twice as long."""
    return f"*({kind}*)({address})"


def _load(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    to, address, *_ = instruction.operands
    kind, space = modifiers["type"], modifiers["space"]
    size = bytes_of(kind)
    items = _elements(to, modifiers, instruction.opcode)
    strong = modifiers.get("order") in _STRONG
    how = "EMU_READ | EMU_STRONG" if strong else "EMU_READ"
    announce = access("at", size * len(items), how, space, instruction.location)
    if not announce and len(items) == 1 and not strong:
        return writer.write(to, kind, _cell(kind, writer.pointer(address, space)))
    reads = " ".join(
        writer.write(item, kind, f"load_strong<{kind}>({_at(i * size)})" if strong else _cell(kind, _at(i * size)))
        for i, item in enumerate(items)
    )
    after = ""
    if strong:
        order = "acquire" if modifiers["order"] == "acquire" else "relaxed"
        after = f" acquire(T, at, {scope_of(modifiers)}, order::{order}); emu_yield(T);"
    return f"{{ const char* at = {writer.pointer(address, space)}; {announce} {reads}{after} }}"


def _store(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
    address, source, *_ = instruction.operands
    kind, space = modifiers["type"], modifiers["space"]
    size = bytes_of(kind)
    items = _elements(source, modifiers, instruction.opcode)
    strong = modifiers.get("order") in _STRONG
    how = "EMU_WRITE | EMU_STRONG" if strong else "EMU_WRITE"
    announce = access("at", size * len(items), how, space, instruction.location)
    if strong:
        order = "release" if modifiers["order"] == "release" else "relaxed"
        announce += f" release(T, at, {scope_of(modifiers)}, order::{order});"
    writes = " ".join(
        f"store_strong<{kind}>({_at(i * size)}, {writer.read(item, kind)});"
        if strong
        else f"{_cell(kind, _at(i * size))} = {writer.read(item, kind)};"
        for i, item in enumerate(items)
    )
    return f"{{ char* at = {writer.pointer(address, space)}; {announce} {writes} }}"


_SPACE = ".space?=const|global|local|param|param::entry|param::func|shared|shared::cta|shared::cluster"
_ORDER = ".order?={} .scope?=cta|cluster|gpu|sys"
_TYPE = f".vector?=v2|v4|v8 .type={MEMORY}"
_NOTHING = "(void)0"

RULES = (
    Rule("mov", "9.7.9.3", "copy, or packing and unpacking (9.7.9.4)", f".type=pred|b128|{SCALARS}", build=_move),
    Rule("prmt.b32", "9.7.9.7", "four bytes of eight", ".mode?index=f4e|b4e|rc8|ecl|ecr|rc16", "d:b32 a:b32 b:b32 c:b32",
         "prmt<Permute::{mode}>({a}, {b}, {c})"),
    Rule("ld", "9.7.9.8", "load",
         f"{_ORDER.format('weak|volatile|relaxed|acquire')} {_SPACE} .cache?=ca|cg|cs|lu|cv {LOAD_CACHE} {_TYPE}",
         build=_load),
    Rule("ld", "9.7.9.9", "load of what does not change", f".space=global .cache?=ca|cg|cs .nc {LOAD_CACHE} {_TYPE}",
         build=_load),
    Rule("ldu", "9.7.9.10", "load of the same by all lanes", f".space?=global {_TYPE}", build=_load),
    Rule("st", "9.7.9.11", "store",
         f"{_ORDER.format('weak|volatile|relaxed|release')} {_SPACE} .cache?=wb|cg|cs|wt {CACHE_MODIFIERS} {_TYPE}",
         build=_store),
    Rule("prefetch", "9.7.9.15", "prefetch into a cache", ".space?=global|local .level=L1|L2", "[a:space]", effect=_NOTHING),
    Rule("prefetch.global", "9.7.9.15", "prefetch with a priority", ".level=L2::evict_last|L2::evict_normal", "[a:global]",
         effect=_NOTHING),
    Rule("prefetch", "9.7.9.15", "prefetch of a tensor map", ".space?=const|param .tensormap", "[a:space]", effect=_NOTHING),
    Rule("prefetchu.L1", "9.7.9.15", "prefetch into the uniform cache", "", "[a:]", effect=_NOTHING),
    Rule("applypriority", "9.7.9.16", "cache priority", ".global? .L2::evict_normal", "[a:global] size:u32", effect=_NOTHING),
    Rule("discard", "9.7.9.17", "discard of cached data", ".global? .L2", "[a:global] size:u32", effect=_NOTHING),
    Rule("createpolicy.fractional", "9.7.9.18", "cache policy",
         ".first=L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged "
         ".second?=L2::evict_first|L2::evict_unchanged .b64", "d:b64 fraction:f32?", "b64(0)"),
    Rule("createpolicy.range", "9.7.9.18", "cache policy of a range",
         ".global? .first=L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged "
         ".second?=L2::evict_first|L2::evict_unchanged .b64", "d:b64 [a:global] first_size:u32 size:u32", "b64(0)"),
    Rule("createpolicy.cvt.L2", "9.7.9.18", "cache policy of an access property", ".b64", "d:b64 a:b64", "b64(0)"),
)  # fmt: skip
