"""Conversion: cvt, cvt.pack, cvta and isspacep, PTX ISA 9.7.9.19 to 9.7.9.22."""

from __future__ import annotations

from emulator.ptx.rule import Rule

__all__ = ["RULES"]

_INTEGERS = "u8|u16|u32|u64|s8|s16|s32|s64"
_ALL = f"{_INTEGERS}|f16|bf16|f32|f64"
_CONVERT = "convert<{to}, {from}, Round::{round}, {integral}, {ftz}, {sat}>({a})"
_SHARED = ".space=shared|shared::cta|shared::cluster"
_SAME = ".space=const|global|local|param|param::entry"

RULES = (
    Rule("isspacep", "9.7.9.19", "in this block's shared memory?", ".space=shared|shared::cta", "p a:u64",
         "is_shared_cta(T, {a})"),
    Rule("isspacep", "9.7.9.19", "in the cluster's shared memory?", ".shared::cluster", "p a:u64",
         "is_shared_cluster(T, {a})"),
    Rule("isspacep", "9.7.9.19", "in local memory?", ".local", "p a:u64", "is_local({a})"),
    Rule("isspacep", "9.7.9.19", "in global memory?", ".global", "p a:u64",
         "!is_shared_cluster(T, {a}) && !is_local({a})"),
    Rule("cvta", "9.7.9.20", "shared to generic address", f"{_SHARED} .u64", "d:u64 a:u64",
         "u64(shared_pointer(T, u32({a})))"),
    Rule("cvta.to", "9.7.9.20", "generic to shared address", f"{_SHARED} .u64", "d:u64 a:u64",
         "shared_address(T, pointer({a}))"),
    Rule("cvta", "9.7.9.20", "to generic address", f"{_SAME} .u64", "d:u64 a:u64", "{a}"),
    Rule("cvta.to", "9.7.9.20", "from generic address", f"{_SAME} .u64", "d:u64 a:u64", "{a}"),
    Rule("cvt", "9.7.9.21", "conversion of integers", f".to={_INTEGERS} .from={_INTEGERS}", "d:to a:from", "{to}({a})"),
    Rule("cvt", "9.7.9.21", "f32 to f64", ".f64 .f32", "d:f64 a:f32", "f64({a})"),
    Rule("cvt", "9.7.9.21", "f64 to f32, to nearest", ".rn .f32 .f64", "d:f32 a:f64", "canonical(f32({a}))"),
    Rule("cvt", "9.7.9.21", "half to f32", ".f32 .from=f16|bf16", "d:f32 a:b16", "f32_of_{from}({a})"),
    Rule("cvt", "9.7.9.21", "f32 to a half, to nearest", ".rn .to=f16|bf16 .f32", "d:b16 a:f32", "{to}_of_f32({a})"),
    Rule("cvt", "9.7.9.21", "conversion", f".round?rn=rn|rz|rm|rp .ftz? .sat? .to={_ALL} .from={_ALL}", "d:to a:from",
         _CONVERT.replace("{integral}", "false")),
    Rule("cvt", "9.7.9.21", "conversion to an integral value", f".round=rni|rzi|rmi|rpi .ftz? .sat? .to={_ALL} .from={_ALL}",
         "d:to a:from", _CONVERT.replace("{integral}", "true")),
    Rule("cvt", "9.7.9.21", "f32 to a half", ".round=rn|rz .relu? .satfinite? .to=f16|bf16 .from=f32", "d:to a:from",
         "narrow<{to}, Round::{round}, {relu}, {satfinite}>({a})"),
    Rule("cvt", "9.7.9.21", "two f32 to halves", ".round=rn|rz .relu? .satfinite? .to=f16x2|bf16x2 .from=f32",
         "d:to a:from b:from", "narrow_pair<{to}, Round::{round}, {relu}, {satfinite}>({a}, {b})"),
    Rule("cvt", "9.7.9.21", "two f32 to halves", ".round=rn|rz .satfinite .relu .to=f16x2|bf16x2 .from=f32",
         "d:to a:from b:from", "narrow_pair<{to}, Round::{round}, true, true>({a}, {b})"),
    Rule("cvt.rna", "9.7.9.21", "f32 to tf32, ties away from zero", ".satfinite? .to=tf32 .from=f32", "d:to a:from",
         "narrow<{to}, Round::rna, false, {satfinite}>({a})"),
    Rule("cvt", "9.7.9.21", "f32 to tf32", ".round=rn|rz .relu? .to=tf32 .from=f32", "d:to a:from",
         "narrow<{to}, Round::{round}, {relu}, false>({a})"),
    Rule("cvt.rn.satfinite", "9.7.9.21", "two f32 to bytes", ".relu? .to=e4m3x2|e5m2x2 .f32", "d:to a:f32 b:f32",
         "narrow_pair<{to}, Round::rn, {relu}, true>({a}, {b})"),
    Rule("cvt.rn.satfinite", "9.7.9.21", "two f16 to bytes", ".relu? .to=e4m3x2|e5m2x2 .f16x2", "d:to a:f16x2",
         "convert_pair<{to}, Round::rn, {relu}, true>({a})"),
    Rule("cvt.rn", "9.7.9.21", "two bytes to f16", ".relu? .f16x2 .from=e4m3x2|e5m2x2", "d:f16x2 a:from",
         "convert_pair<f16x2, Round::rn, {relu}, false>({a})"),
    Rule("cvt.pack.sat", "9.7.9.22", "two integers, clamped, to a word", ".to=u16|s16 .s32", "d:b32 a:s32 b:s32",
         "convert_pack<16, std::is_signed_v<{to}>>({a}, {b}, 0)"),
    Rule("cvt.pack.sat", "9.7.9.22", "two integers, clamped, to bytes below c", ".to=u8|s8 .s32 .b32",
         "d:b32 a:s32 b:s32 c:b32", "convert_pack<8, std::is_signed_v<{to}>>({a}, {b}, {c})"),
    Rule("cvt.pack.sat", "9.7.9.22", "two integers, clamped, to nibbles below c", ".to=u4|s4 .s32 .b32",
         "d:b32 a:s32 b:s32 c:b32", "convert_pack<4, {to:s4}>({a}, {b}, {c})"),
    Rule("cvt.pack.sat", "9.7.9.22", "two integers, clamped, to two bits below c", ".to=u2|s2 .s32 .b32",
         "d:b32 a:s32 b:s32 c:b32", "convert_pack<2, {to:s2}>({a}, {b}, {c})"),
)  # fmt: skip
