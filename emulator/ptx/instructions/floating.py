"""Floating-point arithmetic of f32 and f64: PTX ISA 9.7.3."""

from __future__ import annotations

from emulator.ptx.rule import Rule

__all__ = ["RULES"]

_F32 = ".round?rn=rn|rz|rm|rp .ftz? .sat? .type=f32"
_F64 = ".round?rn=rn|rz|rm|rp .type=f64"
_ROUND_F32 = ".round=rn|rz|rm|rp .ftz? .type=f32"
_ROUND_F64 = ".round=rn|rz|rm|rp .type=f64"
_ARITHMETIC = "<Round::{round}, {ftz}, {sat}>"
_ARITHMETIC_F64 = "<Round::{round}, false, false>"


def _extreme(name: str, section: str, greater: str) -> tuple[Rule, ...]:
    """min and max of two and of three operands."""
    what = "maximum" if greater == "true" else "minimum"
    call = f"floating_extreme<{greater}, {{ftz}}, {{NaN}}, {{sign}}>"
    return (
        Rule(name, section, f"{what} of two or three", ".ftz? .NaN? .type=f32", "d a b c?=nullptr",
             call.replace("{sign}", "false") + "({a}, {b}, {c})"),
        Rule(name, section, f"{what} of magnitudes, signs combined", ".ftz? .NaN? .xorsign .abs .type=f32", "d a b",
             call.replace("{sign}", "true") + "({a}, {b}, nullptr)"),
        Rule(name, section, what, ".type=f64", "d a b", f"floating_extreme<{greater}, false, false, false>({{a}}, {{b}}, nullptr)"),
    )  # fmt: skip


RULES = (
    Rule("testp", "9.7.3.1", "finite?", ".finite .type=f32|f64", "p a", "bool(__builtin_isfinite({a}))"),
    Rule("testp", "9.7.3.1", "infinite?", ".infinite .type=f32|f64", "p a", "bool(__builtin_isinf({a}))"),
    Rule("testp", "9.7.3.1", "a number?", ".number .type=f32|f64", "p a", "!is_nan({a})"),
    Rule("testp", "9.7.3.1", "not a number?", ".notanumber .type=f32|f64", "p a", "is_nan({a})"),
    Rule("testp", "9.7.3.1", "normal or zero?", ".normal .type=f32|f64", "p a", "is_normal({a})"),
    Rule("testp", "9.7.3.1", "subnormal?", ".subnormal .type=f32|f64", "p a", "is_subnormal({a})"),
    Rule("copysign", "9.7.3.2", "sign of a, magnitude of b", ".type=f32|f64", "d a b", "copysign({a}, {b})"),
    Rule("add", "9.7.3.3", "floating addition, to nearest", ".rn? .type=f32", "d a b", "add_f32({a}, {b})"),
    Rule("add", "9.7.3.3", "floating addition", _F32, "d a b", f"floating_add{_ARITHMETIC}({{a}}, {{b}})"),
    Rule("add", "9.7.3.3", "floating addition", _F64, "d a b", f"floating_add{_ARITHMETIC_F64}({{a}}, {{b}})"),
    Rule("sub", "9.7.3.4", "floating subtraction, to nearest", ".rn? .type=f32", "d a b", "sub_f32({a}, {b})"),
    Rule("sub", "9.7.3.4", "floating subtraction", _F32, "d a b", f"floating_sub{_ARITHMETIC}({{a}}, {{b}})"),
    Rule("sub", "9.7.3.4", "floating subtraction", _F64, "d a b", f"floating_sub{_ARITHMETIC_F64}({{a}}, {{b}})"),
    Rule("mul", "9.7.3.5", "floating multiplication, to nearest", ".rn? .type=f32", "d a b", "mul_f32({a}, {b})"),
    Rule("mul", "9.7.3.5", "floating multiplication", _F32, "d a b", f"floating_mul{_ARITHMETIC}({{a}}, {{b}})"),
    Rule("mul", "9.7.3.5", "floating multiplication", _F64, "d a b", f"floating_mul{_ARITHMETIC_F64}({{a}}, {{b}})"),
    Rule("fma", "9.7.3.6", "a * b + c, rounded to nearest once", ".rn .type=f32", "d a b c", "fma_f32({a}, {b}, {c})"),
    Rule("fma", "9.7.3.6", "a * b + c, rounded once", ".round=rn|rz|rm|rp .ftz? .sat? .type=f32", "d a b c",
         f"floating_fma{_ARITHMETIC}({{a}}, {{b}}, {{c}})"),
    Rule("fma", "9.7.3.6", "a * b + c, rounded once", _ROUND_F64, "d a b c",
         f"floating_fma{_ARITHMETIC_F64}({{a}}, {{b}}, {{c}})"),
    Rule("mad", "9.7.3.7", "fma by another name", ".round=rn|rz|rm|rp .ftz? .sat? .type=f32", "d a b c",
         f"floating_fma{_ARITHMETIC}({{a}}, {{b}}, {{c}})"),
    Rule("mad", "9.7.3.7", "fma by another name", _ROUND_F64, "d a b c",
         f"floating_fma{_ARITHMETIC_F64}({{a}}, {{b}}, {{c}})"),
    Rule("div.approx", "9.7.3.8", "fast division", ".ftz? .type=f32", "d a b", "div_approx<{ftz}>({a}, {b})"),
    Rule("div.full", "9.7.3.8", "fast division, full range", ".ftz? .type=f32", "d a b",
         "floating_div<Round::rn, {ftz}>({a}, {b})"),
    Rule("div", "9.7.3.8", "division", _ROUND_F32, "d a b", "floating_div<Round::{round}, {ftz}>({a}, {b})"),
    Rule("div", "9.7.3.8", "division", _ROUND_F64, "d a b", "floating_div<Round::{round}, false>({a}, {b})"),
    Rule("abs", "9.7.3.9", "absolute value", ".ftz? .type=f32", "d a", "floating_abs<{ftz}>({a})"),
    Rule("abs", "9.7.3.9", "absolute value", ".type=f64", "d a", "floating_abs<false>({a})"),
    Rule("neg", "9.7.3.10", "negation", ".ftz? .type=f32", "d a", "floating_neg<{ftz}>({a})"),
    Rule("neg", "9.7.3.10", "negation", ".type=f64", "d a", "floating_neg<false>({a})"),
    *_extreme("min", "9.7.3.11", "false"),
    *_extreme("max", "9.7.3.12", "true"),
    Rule("rcp.approx", "9.7.3.13", "fast reciprocal", ".ftz? .type=f32", "d a", "rcp_approx<{ftz}>({a})"),
    Rule("rcp", "9.7.3.13", "reciprocal", _ROUND_F32, "d a", "floating_div<Round::{round}, {ftz}>(1.0f, {a})"),
    Rule("rcp", "9.7.3.13", "reciprocal", _ROUND_F64, "d a", "floating_div<Round::{round}, false>(1.0, {a})"),
    Rule("rcp.approx.ftz", "9.7.3.14", "fast reciprocal of the upper word", ".type=f64", "d a", "rcp_approx_f64({a})"),
    Rule("sqrt.approx", "9.7.3.15", "fast square root", ".ftz? .type=f32", "d a", "sqrt_approx<{ftz}>({a})"),
    Rule("sqrt", "9.7.3.15", "square root", _ROUND_F32, "d a", "floating_sqrt<Round::{round}, {ftz}>({a})"),
    Rule("sqrt", "9.7.3.15", "square root", _ROUND_F64, "d a", "floating_sqrt<Round::{round}, false>({a})"),
    Rule("rsqrt.approx", "9.7.3.16", "fast reciprocal square root", ".ftz? .type=f32", "d a", "rsqrt_approx<{ftz}>({a})"),
    Rule("rsqrt.approx", "9.7.3.16", "reciprocal square root", ".type=f64", "d a",
         "floating_div<Round::rn, false>(1.0, floating_sqrt<Round::rn, false>({a}))"),
    Rule("rsqrt.approx.ftz", "9.7.3.17", "fast reciprocal square root of the upper word", ".type=f64", "d a",
         "rsqrt_approx_f64({a})"),
    Rule("sin.approx", "9.7.3.18", "sine", ".ftz? .type=f32", "d a", "sin_approx<{ftz}>({a})"),
    Rule("cos.approx", "9.7.3.19", "cosine", ".ftz? .type=f32", "d a", "cos_approx<{ftz}>({a})"),
    Rule("lg2.approx", "9.7.3.20", "binary logarithm", ".ftz? .type=f32", "d a", "lg2_approx<{ftz}>({a})"),
    Rule("ex2.approx", "9.7.3.21", "power of two", ".ftz? .type=f32", "d a", "ex2_approx<{ftz}>({a})"),
    Rule("tanh.approx", "9.7.3.22", "hyperbolic tangent", ".type=f32", "d a", "tanh_approx({a})"),
)  # fmt: skip
