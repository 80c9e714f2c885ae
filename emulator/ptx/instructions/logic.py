"""Logic and shifts: PTX ISA 9.7.8."""

from __future__ import annotations

from emulator.ptx.errors import PtxError
from emulator.ptx.rule import Builder, Rule, Writer
from emulator.ptx.syntax import Instruction, Integer
from emulator.ptx.types import BITS, bytes_of

__all__ = ["RULES"]


def _shift(sign: str, function: str) -> Builder:
    """C++'s own operator where the count is known to be within the width, as most are; else the function that clamps it."""

    def build(writer: Writer, instruction: Instruction, modifiers: dict[str, str]) -> str:
        kind = modifiers["type"]
        to, *operands = instruction.operands
        if len(operands) != 2:
            raise PtxError(f"{instruction.opcode}: {len(operands)} operands")
        value, count = writer.read(operands[0], kind), operands[1]
        if isinstance(count, Integer) and 0 <= count.value < 8 * bytes_of(kind):
            return writer.write(to, kind, f"{kind}({value} {sign} {count.value})")
        return writer.write(to, kind, f"{function}({value}, {writer.read(count, 'u32')})")

    return build


RULES = (
    Rule("and", "9.7.8.1", "and", f".type=pred|{BITS}", "d a b", "{type}({a} & {b})"),
    Rule("or", "9.7.8.2", "or", f".type=pred|{BITS}", "d a b", "{type}({a} | {b})"),
    Rule("xor", "9.7.8.3", "exclusive or", f".type=pred|{BITS}", "d a b", "{type}({a} ^ {b})"),
    Rule("not", "9.7.8.4", "negation", ".type=pred", "d a", "!{a}"),
    Rule("not", "9.7.8.4", "complement", f".type={BITS}", "d a", "{type}(~{a})"),
    Rule("cnot", "9.7.8.5", "one for zero, else zero", f".type={BITS}", "d a", "cnot({a})"),
    Rule("lop3.b32", "9.7.8.6", "any function of three bits", "", "d:b32 a:b32 b:b32 c:b32 table:u32",
         "lop3({a}, {b}, {c}, {table})"),
    Rule("lop3", "9.7.8.6", "any function of three bits, and whether it is not zero", ".combine=or|and .b32",
         "d:b32|p a:b32 b:b32 c:b32 table:u32 with:pred",
         effect="d = lop3({a}, {b}, {c}, {table}); p = combine_{combine}(d != 0, {with})"),
    Rule("shf", "9.7.8.7", "funnel shift", ".direction=l|r .mode=clamp|wrap .b32", "d:b32 a:b32 b:b32 c:u32",
         "shf({direction:l}, {a}, {b}, {c}, {mode:wrap})"),
    Rule("shl", "9.7.8.8", "shift to the left", f".type={BITS}", build=_shift("<<", "shl")),
    Rule("shr", "9.7.8.9", "shift to the right", f".type={BITS}|u16|u32|u64|s16|s32|s64", build=_shift(">>", "shr")),
)  # fmt: skip
