"""Integer arithmetic with a carry: PTX ISA 9.7.2. CC.CF is the local variable `carry` of the C++ function."""

from __future__ import annotations

from emulator.ptx.rule import Rule

__all__ = ["RULES"]

_TYPE = ".type=u32|s32|u64|s64"
_IN_OUT = "{cc} ? &carry : nullptr"

RULES = (
    Rule("add.cc", "9.7.2.1", "addition, carry out", _TYPE, "d a b", "add_carry({a}, {b}, false, &carry)"),
    Rule("addc", "9.7.2.2", "addition with carry", f".cc? {_TYPE}", "d a b", f"add_carry({{a}}, {{b}}, carry, {_IN_OUT})"),
    Rule("sub.cc", "9.7.2.3", "subtraction, borrow out", _TYPE, "d a b", "sub_borrow({a}, {b}, false, &carry)"),
    Rule("subc", "9.7.2.4", "subtraction with borrow", f".cc? {_TYPE}", "d a b",
         f"sub_borrow({{a}}, {{b}}, carry, {_IN_OUT})"),
    Rule("mad", "9.7.2.5", "multiplication and addition, carry out", f".half=lo|hi .cc {_TYPE}", "d a b c",
         "add_carry(mul_{half}({a}, {b}), {c}, false, &carry)"),
    Rule("madc", "9.7.2.6", "multiplication and addition with carry", f".half=lo|hi .cc? {_TYPE}", "d a b c",
         f"add_carry(mul_{{half}}({{a}}, {{b}}), {{c}}, carry, {_IN_OUT})"),
)  # fmt: skip
