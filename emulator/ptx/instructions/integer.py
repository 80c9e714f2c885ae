"""Integer arithmetic: PTX ISA 9.7.1."""

from __future__ import annotations

from emulator.ptx.rule import Rule
from emulator.ptx.types import INTEGERS

__all__ = ["RULES"]

_PACKED = "u16x2|s16x2"
_WORDS = "u32|u64|s32|s64"
_UNSIGNED = "d:unsigned a:unsigned b:unsigned"  # where signs make no difference, and C++ defines what overflows

RULES = (
    Rule("add", "9.7.1.1", "integer addition", f".type={INTEGERS}", _UNSIGNED, "{a} + {b}"),
    Rule("add", "9.7.1.1", "addition of halfwords", f".type={_PACKED}", "d a b", "integer_add({a}, {b})"),
    Rule("add.sat", "9.7.1.1", "addition, clamped", ".type=s32", "d a b", "saturate_s32(s64({a}) + {b})"),
    Rule("sub", "9.7.1.2", "integer subtraction", f".type={INTEGERS}", _UNSIGNED, "{a} - {b}"),
    Rule("sub.sat", "9.7.1.2", "subtraction, clamped", ".type=s32", "d a b", "saturate_s32(s64({a}) - {b})"),
    Rule("mul.lo", "9.7.1.3", "product's lower half", ".type=u16|s16", "d a b", "mul_lo({a}, {b})"),
    Rule("mul.lo", "9.7.1.3", "product's lower half", f".type={_WORDS}", _UNSIGNED, "{a} * {b}"),
    Rule("mul.hi", "9.7.1.3", "product's upper half", f".type={INTEGERS}", "d a b", "mul_hi({a}, {b})"),
    Rule("mul.wide", "9.7.1.3", "whole product", ".type=u16", "d:u32 a b", "u32({a}) * {b}"),
    Rule("mul.wide", "9.7.1.3", "whole product", ".type=s16", "d:s32 a b", "s32({a}) * {b}"),
    Rule("mul.wide", "9.7.1.3", "whole product", ".type=u32", "d:u64 a b", "u64({a}) * {b}"),
    Rule("mul.wide", "9.7.1.3", "whole product", ".type=s32", "d:s64 a b", "s64({a}) * {b}"),
    Rule("mad.lo", "9.7.1.4", "product's lower half, plus c", ".type=u16|s16", "d a b c",
         "integer_add(mul_lo({a}, {b}), {c})"),
    Rule("mad.lo", "9.7.1.4", "product's lower half, plus c", f".type={_WORDS}", f"{_UNSIGNED} c:unsigned",
         "{a} * {b} + {c}"),
    Rule("mad.hi", "9.7.1.4", "product's upper half, plus c", f".type={INTEGERS}", "d a b c",
         "integer_add(mul_hi({a}, {b}), {c})"),
    Rule("mad.hi.sat", "9.7.1.4", "product's upper half, plus c, clamped", ".type=s32", "d a b c",
         "saturate_s32(s64(mul_hi({a}, {b})) + {c})"),
    Rule("mad.wide", "9.7.1.4", "whole product, plus c", ".type=u16", "d:u32 a b c:u32",
         "integer_add(mul_wide({a}, {b}), {c})"),
    Rule("mad.wide", "9.7.1.4", "whole product, plus c", ".type=s16", "d:s32 a b c:s32",
         "integer_add(mul_wide({a}, {b}), {c})"),
    Rule("mad.wide", "9.7.1.4", "whole product, plus c", ".type=u32", "d:u64 a b c:u64",
         "integer_add(mul_wide({a}, {b}), {c})"),
    Rule("mad.wide", "9.7.1.4", "whole product, plus c", ".type=s32", "d:s64 a b c:s64",
         "integer_add(mul_wide({a}, {b}), {c})"),
    Rule("mul24.lo", "9.7.1.5", "lower bits of a 24-bit product", ".type=u32|s32", "d a b", "{type}(product24({a}, {b}))"),
    Rule("mul24.hi", "9.7.1.5", "upper bits of a 24-bit product", ".type=u32|s32", "d a b",
         "{type}(product24({a}, {b}) >> 16)"),
    Rule("mad24.lo", "9.7.1.6", "lower bits of a 24-bit product, plus c", ".type=u32|s32", "d a b c",
         "{type}(product24({a}, {b}) + {c})"),
    Rule("mad24.hi", "9.7.1.6", "upper bits of a 24-bit product, plus c", ".type=u32|s32", "d a b c",
         "{type}((product24({a}, {b}) >> 16) + {c})"),
    Rule("mad24.hi.sat", "9.7.1.6", "upper bits of a 24-bit product, plus c, clamped", ".type=s32", "d a b c",
         "saturate_s32((product24({a}, {b}) >> 16) + {c})"),
    Rule("sad", "9.7.1.7", "absolute difference, plus c", f".type={INTEGERS}", "d a b c", "sad({a}, {b}, {c})"),
    Rule("div", "9.7.1.8", "integer division", f".type={INTEGERS}", "d a b", "integer_div({a}, {b})"),
    Rule("rem", "9.7.1.9", "remainder", f".type={INTEGERS}", "d a b", "integer_rem({a}, {b})"),
    Rule("abs", "9.7.1.10", "absolute value", ".type=s16|s32|s64", "d a", "integer_abs({a})"),
    Rule("neg", "9.7.1.11", "negation", ".type=s16|s32|s64", "d a", "integer_neg({a})"),
    Rule("min", "9.7.1.12", "minimum", f".type={INTEGERS}|{_PACKED}", "d a b", "integer_min({a}, {b})"),
    Rule("min.relu", "9.7.1.12", "minimum, negative ones to zero", ".type=s16x2|s32", "d a b",
         "integer_relu(integer_min({a}, {b}))"),
    Rule("max", "9.7.1.13", "maximum", f".type={INTEGERS}|{_PACKED}", "d a b", "integer_max({a}, {b})"),
    Rule("max.relu", "9.7.1.13", "maximum, negative ones to zero", ".type=s16x2|s32", "d a b",
         "integer_relu(integer_max({a}, {b}))"),
    Rule("popc", "9.7.1.14", "number of ones", ".type=b32|b64", "d:u32 a", "popc({a})"),
    Rule("clz", "9.7.1.15", "number of leading zeros", ".type=b32|b64", "d:u32 a", "clz({a})"),
    Rule("bfind", "9.7.1.16", "most significant bit that is not the sign", f".shiftamt? .type={_WORDS}", "d:u32 a",
         "bfind({a}, {shiftamt})"),
    Rule("fns", "9.7.1.17", "n-th set bit", ".b32", "d:b32 mask:b32 base:u32 n:s32", "fns({mask}, {base}, {n})"),
    Rule("brev", "9.7.1.18", "bits in reverse order", ".type=b32|b64", "d a", "brev({a})"),
    Rule("bfe", "9.7.1.19", "bit field", f".type={_WORDS}", "d a b:u32 c:u32", "bfe({a}, {b}, {c})"),
    Rule("bfi", "9.7.1.20", "bit field into b", ".type=b32|b64", "d a b c:u32 n:u32", "bfi({a}, {b}, {c}, {n})"),
    Rule("szext", "9.7.1.21", "extension of a narrow integer", ".mode=clamp|wrap .type=u32|s32", "d a b:u32",
         "szext({a}, {b}, {mode:wrap})"),
    Rule("bmsk", "9.7.1.22", "mask of a bit field", ".mode=clamp|wrap .b32", "d:b32 a:u32 b:u32", "bmsk({a}, {b}, {mode:wrap})"),
    Rule("dp4a", "9.7.1.23", "dot product of four bytes", ".first=u32|s32 .second=u32|s32", "d:u32 a:u32 b:u32 c:u32",
         "dp4a<{first}, {second}>({a}, {b}, {c})"),
    Rule("dp2a", "9.7.1.24", "dot product of two halfwords with bytes", ".mode=lo|hi .first=u32|s32 .second=u32|s32",
         "d:u32 a:u32 b:u32 c:u32", "dp2a<{first}, {second}>({a}, {b}, {c}, {mode:hi})"),
)  # fmt: skip
