"""PTX to C++: the parser, the table of instructions, and what translated instructions compute."""

from __future__ import annotations

import ctypes
import os
import random
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from emulator import nvcc
from emulator.ptx.errors import NotEmulatedError, PtxSyntaxError
from emulator.ptx.instructions import TABLE, find
from emulator.ptx.layout import place_parameters
from emulator.ptx.parser import parse
from emulator.ptx.syntax import Address, Block, Instruction, Integer, Location, Name, Pair, Sum
from emulator.tests.exact_rounding import BF16, E4M3, E5M2, F16, F32, F64, TF32, Format
from emulator.tests.ptx_harness import PROLOGUE, PtxModule, Stub, apply, operation_kernel

NAN, NAN_H = 0x7FFFFFFF, 0x7FFF


# ---- reading ----


def statements(body: str) -> tuple[object, ...]:
    module = parse(f".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{{\n{body}\n}}", "k.ptx")
    block = module.functions[0].body
    assert block is not None
    return block.statements


def test_operands_of_every_shape_are_read() -> None:
    found = statements("@!%p1 shfl.sync.bfly.b32 %r1|%p2, %r3, -1, 0x1f, 0f3F800000;\nld.b32 r, [%rd1+-8];")
    shuffle, load = found
    assert isinstance(shuffle, Instruction)
    assert isinstance(load, Instruction)
    assert shuffle.operands[0] == Pair(Name("%r1"), Name("%p2"))
    assert shuffle.operands[2:4] == (Integer(-1), Integer(31))
    assert load.operands[1] == Address(Name("%rd1"), -8)


def test_blocks_labels_and_comments() -> None:
    found = statements("{ // one\n .reg .pred p; /* two; */ L: bra L; }\n mov.u64 %rd1, table+16;")
    assert isinstance(found[0], Block)
    assert isinstance(found[1], Instruction)
    assert found[1].operands[1] == Sum("table", 16)


def test_inlined_locations_are_chains() -> None:
    text = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k() {
 .loc 1 5 3
 .loc 2 198 3, function_name $L__info_string0, inlined_at 1 5 3
 .loc 3 89 7, function_name $L__info_string1+4, inlined_at 2 198 3
 ret;
}
.file 1 "unit.cu"
.file 2 "softmax.cuh", 17, 400
.file 3 "index.cuh"
"""
    module = parse(text)
    block = module.functions[0].body
    assert block is not None
    (instruction,) = block.statements
    assert isinstance(instruction, Instruction)
    inner = module.locations[instruction.location]
    middle = module.locations[inner.caller]
    assert (inner.line, middle.line, module.locations[middle.caller].line) == (89, 198, 5)


def test_file_directives_may_stand_behind_the_code() -> None:
    text = '.version 9.0\n.target sm_90a\n.address_size 64\n.entry k() {\n.loc 1 7 1\nret;\n}\n.file 1 "unit.cu"\n'
    assert Location("unit.cu", 7) in parse(text).locations


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".bogus 1;", "line 1"),
        (".entry k() {\n ret\n}", "line 3"),
        ("// §\n.target sm_90a\n  §;", "line 3: unknown character in '§;'"),
        ('.file 1 "unit.cu\n', "line 1: unknown character in '\"unit.cu"),
    ],
)
def test_what_is_not_ptx_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(PtxSyntaxError, match=message):
        parse(text)


# ---- the table ----


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: f"{rule.opcode} {rule.title}")
def test_rows_name_their_section_and_mean_something(rule: object) -> None:
    row = next(item for item in TABLE if item is rule)
    assert re.fullmatch(r"9\.7\.\d+(\.\d+)+", row.section), row
    assert row.title
    assert sum(meaning is not None for meaning in (row.value, row.effect, row.build)) == 1
    assert row.match("not.an.opcode") is None


@pytest.mark.parametrize(
    "opcode",
    ["add.u33", "add.sat.u32", "ld.global.mmio.u32", "tcgen05.alloc", "mul.f32.ftz", "cvt.rs.f16x2.f32", "wmma.load.a.sync",
     "cp.async.cg.shared.global.L2::512B", "mbarrier.try_wait.acquire.gpu.b64", "setp.lo.f32", "ld.global.v3.f32"],
)  # fmt: skip
def test_unknown_opcodes_and_modifiers_are_named(opcode: str) -> None:
    with pytest.raises(NotEmulatedError, match=re.escape(opcode)):
        find(opcode)


# ---- running ----


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMU_BUILD", "check")
        yield Stub(tmp_path_factory.mktemp("stub"))


# (instruction, types of results and inputs, inputs, expected results): facts of the ISA, case by case.
CASES: list[tuple[str, str, list[int], tuple[int, ...]]] = [
    ("add.sat.s32 d, a, b", "b32 b32 b32", [0x7FFFFFFF, 1], (0x7FFFFFFF,)),
    ("add.u16x2 d, a, b", "b32 b32 b32", [0x0001FFFF, 0x00010001], (0x00020000,)),
    ("mul.hi.s32 d, a, b", "b32 b32 b32", [0xFFFFFFFF, 2], (0xFFFFFFFF,)),
    ("mul.wide.s16 d, a, b", "b32 b16 b16", [0xFFFF, 3], (0xFFFFFFFD,)),
    ("mul.hi.u64 d, a, b", "b64 b64 b64", [1 << 63, 6], (3,)),
    ("mad.hi.sat.s32 d, a, b, c", "b32 b32 b32 b32", [0x7FFFFFFF, 4, 0x7FFFFFFF], (0x7FFFFFFF,)),
    ("mul24.hi.u32 d, a, b", "b32 b32 b32", [0x1FFFFFF, 0xFFFFFF], (0xFFFFFE00,)),
    ("sad.s32 d, a, b, c", "b32 b32 b32 b32", [0x80000000, 0x7FFFFFFF, 1], (0,)),
    ("div.s32 d, a, b", "b32 b32 b32", [0x80000000, 0xFFFFFFFF], (0x80000000,)),
    ("rem.s64 d, a, b", "b64 b64 b64", [2**64 - 7, 3], (2**64 - 1,)),
    ("bfind.s32 d, a", "b32 b32", [0xFFFFFFFE], (0,)),
    ("bfind.shiftamt.u32 d, a", "b32 b32", [1], (31,)),
    ("bfind.u64 d, a", "b32 b64", [0], (0xFFFFFFFF,)),
    ("fns.b32 d, a, b, c", "b32 b32 b32 b32", [0b101101, 1, 2], (3,)),
    ("fns.b32 d, a, b, c", "b32 b32 b32 b32", [0b101101, 4, 0xFFFFFFFE], (2,)),
    ("brev.b32 d, a", "b32 b32", [1], (0x80000000,)),
    ("bfe.s32 d, a, b, c", "b32 b32 b32 b32", [0x80, 4, 4], (0xFFFFFFF8,)),
    ("bfe.s32 d, a, b, c", "b32 b32 b32 b32", [0x80000000, 40, 4], (0xFFFFFFFF,)),
    ("bfe.u64 d, a, b, c", "b64 b64 b32 b32", [0xF << 60, 62, 9], (3,)),
    ("bfi.b32 d, a, b, c, e", "b32 b32 b32 b32 b32", [0xF, 0, 30, 8], (0xC0000000,)),
    ("szext.wrap.s32 d, a, b", "b32 b32 b32", [0xFF, 40], (0xFFFFFFFF,)),
    ("bmsk.clamp.b32 d, a, b", "b32 b32 b32", [28, 40], (0xF0000000,)),
    ("dp4a.s32.u32 d, a, b, c", "b32 b32 b32 b32", [0xFF010203, 0x02010101, 10], (14,)),
    ("dp2a.hi.u32.u32 d, a, b, c", "b32 b32 b32 b32", [0x00020003, 0x05070000, 1], (32,)),
    ("min.relu.s16x2 d, a, b", "b32 b32 b32", [0xFFFF0005, 0x00030007], (0x00000005,)),
    ("lop3.b32 d, a, b, c, 0x96", "b32 b32 b32 b32", [0b1100, 0b1010, 0b1111], (0b1001,)),
    ("shf.l.wrap.b32 d, a, b, c", "b32 b32 b32 b32", [0x80000000, 1, 33], (3,)),
    ("shf.r.clamp.b32 d, a, b, c", "b32 b32 b32 b32", [1, 7, 40], (7,)),
    ("shr.s32 d, a, b", "b32 b32 b32", [0x80000000, 99], (0xFFFFFFFF,)),
    ("shl.b16 d, a, b", "b16 b16 b32", [0xFFFF, 4], (0xFFF0,)),
    ("cnot.b32 d, a", "b32 b32", [0], (1,)),
    ("prmt.b32 d, a, b, c", "b32 b32 b32 b32", [0x44332291, 0x88776655, 0x7418], (0x885522FF,)),
    ("prmt.b32.f4e d, a, b, c", "b32 b32 b32 b32", [0x33221100, 0x77665544, 2], (0x55443322,)),
    ("prmt.b32.b4e d, a, b, c", "b32 b32 b32 b32", [0x33221100, 0x77665544, 1], (0x66770011,)),
    ("prmt.b32.ecl d, a, b, c", "b32 b32 b32 b32", [0x33221100, 0, 2], (0x33222222,)),
    ("prmt.b32.ecr d, a, b, c", "b32 b32 b32 b32", [0x33221100, 0, 2], (0x22221100,)),
    ("prmt.b32.rc16 d, a, b, c", "b32 b32 b32 b32", [0x33221100, 0, 1], (0x33223322,)),
    ("add.f32 d, a, b", "b32 b32 b32", [0x7F800000, 0xFF800000], (NAN,)),
    ("add.ftz.f32 d, a, b", "b32 b32 b32", [0x00000001, 0x80000001], (0,)),
    ("add.sat.f32 d, a, b", "b32 b32 b32", [0x7FC00000, 0], (0,)),
    ("max.f32 d, a, b", "b32 b32 b32", [0x7FC00000, 0x3F800000], (0x3F800000,)),
    ("max.NaN.f32 d, a, b", "b32 b32 b32", [0x7FC00000, 0x3F800000], (NAN,)),
    ("min.f32 d, a, b", "b32 b32 b32", [0, 0x80000000], (0x80000000,)),
    ("max.xorsign.abs.f32 d, a, b", "b32 b32 b32", [0xC0400000, 0x3F800000], (0xC0400000,)),
    ("copysign.f32 d, a, b", "b32 b32 b32", [0x80000000, 0x3F800000], (0xBF800000,)),
    ("rcp.approx.ftz.f32 d, a", "b32 b32", [0x80000001], (0xFF800000,)),
    ("cvt.rp.ftz.f16.f32 d, a", "b16 b32", [0x00000001], (0x0001,)),  # as an H200 does it
    ("cvt.rm.ftz.f16.f32 d, a", "b16 b32", [0x80000001], (0x8001,)),
    ("cvt.rp.ftz.bf16.f32 d, a", "b16 b32", [0x00000001], (0x0000,)),
    ("ex2.approx.ftz.f32 d, a", "b32 b32", [0xC3000000], (0,)),
    ("ex2.approx.f32 d, a", "b32 b32", [0xC3000000], (0x00200000,)),
    ("lg2.approx.f32 d, a", "b32 b32", [0xBF800000], (NAN,)),
    ("div.approx.f32 d, a, b", "b32 b32 b32", [0x3F800000, 0x7F000001], (0,)),
    ("rcp.approx.ftz.f64 d, a", "b64 b64", [0x4000000000000001], (0x3FE0000000000000,)),
    ("testp.subnormal.f32 d, a", "pred b32", [1], (1,)),
    ("testp.normal.f32 d, a", "pred b32", [0], (1,)),
    ("setp.ltu.f32 d|q, a, b", "pred pred b32 b32", [0x7FC00000, 0], (1, 0)),
    ("setp.ne.f32 d, a, b", "pred b32 b32", [0x7FC00000, 0], (0,)),
    ("setp.lt.xor.s32 d|q, a, b, c", "pred pred b32 b32 pred", [0xFFFFFFFF, 0, 1], (0, 1)),
    ("setp.gt.f16x2 d|q, a, b", "pred pred b32 b32", [0x3C004000, 0x3E003E00], (1, 0)),
    ("set.lt.f32.s32 d, a, b", "b32 b32 b32", [1, 2], (0x3F800000,)),
    ("set.eq.u32.f16x2 d, a, b", "b32 b32 b32", [0x3C003C00, 0x3C000000], (0xFFFF0000,)),
    ("slct.b32.f32 d, a, b, c", "b32 b32 b32 b32", [1, 2, 0x80000000], (1,)),
    ("neg.f16 d, a", "b16 b16", [0xFE00], (NAN_H,)),
    ("fma.rn.relu.bf16x2 d, a, b, c", "b32 b32 b32 b32", [0xBF803F80, 0x3F803F80, 0], (0x00003F80,)),
    # 7 * 37/256 lies half way between two bf16, and 2^-100 decides; in f64 alone it would be lost.
    ("fma.rn.bf16 d, a, b, c", "b16 b16 b16 b16", [0x40E0, 0x3E14, 0x8D80], (0x3F81,)),
    ("fma.rn.bf16 d, a, b, c", "b16 b16 b16 b16", [0x40E0, 0x3E14, 0x0000], (0x3F82,)),
    ("max.NaN.bf16 d, a, b", "b16 b16 b16", [0x7FC0, 0x3F80], (NAN_H,)),
    ("cvt.rzi.s32.f32 d, a", "b32 b32", [0x7FC00000], (0,)),
    ("cvt.rzi.s64.f32 d, a", "b64 b32", [0x7FC00000], (1 << 63,)),
    ("cvt.rni.u32.f32 d, a", "b32 b32", [0xBF800000], (0,)),
    ("cvt.rni.s32.f32 d, a", "b32 b32", [0x40200000], (2,)),
    ("cvt.rpi.s32.f64 d, a", "b32 b64", [0x41F0000000000000], (0x7FFFFFFF,)),
    ("cvt.sat.u8.s32 d, a", "b32 b32", [300], (255,)),
    ("cvt.s64.s8 d, a", "b64 b32", [0x80], (2**64 - 128,)),
    ("cvt.rn.f16.u32 d, a", "b16 b32", [65520], (0x7C00,)),
    ("cvt.sat.f32.f32 d, a", "b32 b32", [0xC0000000], (0,)),
    ("cvt.rna.tf32.f32 d, a", "b32 b32", [0x3F801000], (0x3F802000,)),
    ("cvt.rn.satfinite.e4m3x2.f32 d, a, b", "b16 b32 b32", [0x447A0000, 0x7FC00000], (0x7E7F,)),
    ("cvt.rn.f16x2.e5m2x2 d, a", "b32 b16", [0x3CC2], (0x3C00C200,)),
    ("cvt.rn.relu.f16x2.f32 d, a, b", "b32 b32 b32", [0xBF800000, 0x3F800000], (0x00003C00,)),
    ("cvt.pack.sat.s16.s32 d, a, b", "b32 b32 b32", [70000, 0xFFFF0000], (0x7FFF8000,)),
    ("cvt.pack.sat.u8.s32.b32 d, a, b, c", "b32 b32 b32 b32", [300, 0xFFFFFFFF, 0x1234], (0x1234FF00,)),
    ("mov.b32 d, {a, b}", "b32 b16 b16", [0x1234, 0xABCD], (0xABCD1234,)),
    ("mov.b32 d, %tid.x", "b32", [], (3,)),
    ("mov.b64 {d, q}, a", "b32 b32 b64", [0x0123456789ABCDEF], (0x89ABCDEF, 0x01234567)),
    ("add.cc.u32 d, a, b; addc.u32 q, c, 0", "b32 b32 b32 b32 b32", [0xFFFFFFFF, 1, 5], (0, 6)),
    ("sub.cc.u64 d, a, b; subc.u64 q, c, 0", "b64 b64 b64 b64 b64", [0, 1, 5], (2**64 - 1, 4)),
]


@pytest.fixture(scope="module")
def cases(stub: Stub, tmp_path_factory: pytest.TempPathFactory) -> PtxModule:
    text = "".join(operation_kernel(f"case{i}", case[0], case[1].split()) for i, case in enumerate(CASES))
    return PtxModule(stub, text, tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize("index", range(len(CASES)), ids=[f"{text} {inputs}" for text, _, inputs, _ in CASES])
def test_instruction_computes_what_the_isa_says(index: int, cases: PtxModule) -> None:
    _, _, inputs, expected = CASES[index]
    (found,) = apply(cases, f"case{index}", [inputs])
    assert [hex(value) for value in found[: len(expected)]] == [hex(value) for value in expected]


# ---- rounding, against rational arithmetic ----

Exact = Callable[..., Fraction]
ROUNDED: list[tuple[str, str, Format, Format, str, Exact]] = [
    (f"{name}.{mode}.{kind} d, a, b{', c' if name == 'fma' else ''}", f"b{bits} " * (4 if name == "fma" else 3), form, form, mode,
     exact)
    for kind, bits, form, modes in (
        ("f32", 32, F32, "rn rz rm rp"), ("f64", 64, F64, "rn rz rm rp"), ("f16", 16, F16, "rn"), ("bf16", 16, BF16, "rn"),
    )
    for mode in modes.split()
    for name, exact in (
        ("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul", lambda a, b: a * b),
        ("fma", lambda a, b, c: a * b + c),
    )
]  # fmt: skip
ROUNDED += [
    (f"cvt.{mode}.{to}.{source} d, a", f"b{to_bits} b{from_bits}", to_form, from_form, mode, lambda a: a)
    for to, to_bits, to_form in (("f16", 16, F16), ("bf16", 16, BF16), ("f32", 32, F32))
    for source, from_bits, from_form in (("f32", 32, F32), ("f64", 64, F64))
    for mode in ("rn", "rz", "rm", "rp")
    if to_form.fraction_bits < from_form.fraction_bits
]


def finite_values(form: Format, number: int, generator: random.Random) -> list[int]:
    """Random finite numbers whose exponents lie close enough for sums to interact, some subnormal, some huge."""
    centre = generator.choice([1, form.bias, 2 * form.bias - 1])
    values: list[int] = []
    while len(values) < number:
        exponent = min(
            max(centre + generator.randint(-form.fraction_bits - 3, form.fraction_bits + 3), 0), 2 * form.bias
        )
        fraction = generator.getrandbits(form.fraction_bits) & generator.choice(
            [-1, -1 << form.fraction_bits // 2, 1, 0]
        )
        fraction &= 2**form.fraction_bits - 1
        values.append(generator.getrandbits(1) * form.sign | exponent << form.fraction_bits | fraction)
    return values


@pytest.fixture(scope="module")
def rounded(stub: Stub, tmp_path_factory: pytest.TempPathFactory) -> PtxModule:
    text = "".join(operation_kernel(f"case{i}", case[0], case[1].split()) for i, case in enumerate(ROUNDED))
    return PtxModule(stub, text, tmp_path_factory.mktemp("rounded"))


@pytest.mark.parametrize("index", range(len(ROUNDED)), ids=[case[0] for case in ROUNDED])
def test_results_are_rounded_once(index: int, rounded: PtxModule) -> None:
    _, types, to, source, mode, exact = ROUNDED[index]
    generator = random.Random(index)
    rows = [finite_values(source, len(types.split()) - 1, generator) for _ in range(200)]
    for row, (found, _) in zip(rows, apply(rounded, f"case{index}", rows), strict=True):
        result = exact(*(source.value(bits) for bits in row))
        expected = to.round(result, mode)
        if result == 0:  # the sign of zero has rules of its own
            expected, found = 0, found & (to.sign - 1)
        assert hex(found) == hex(expected), [hex(bits) for bits in row]


def test_small_formats_are_decoded_and_encoded(stub: Stub, tmp_path: Path) -> None:
    text = operation_kernel("up4", "cvt.rn.f16x2.e4m3x2 d, a", ["b32", "b16"])
    text += operation_kernel("up5", "cvt.rn.f16x2.e5m2x2 d, a", ["b32", "b16"])
    text += operation_kernel("down4", "cvt.rn.satfinite.e4m3x2.f32 d, a, b", ["b16", "b32", "b32"])
    text += operation_kernel("down5", "cvt.rn.satfinite.e5m2x2.f32 d, a, b", ["b16", "b32", "b32"])
    text += operation_kernel("tf32", "cvt.rna.tf32.f32 d, a", ["b32", "b32"])
    module = PtxModule(stub, text, tmp_path)
    generator = random.Random(1)
    for form, name in ((E4M3, "4"), (E5M2, "5")):
        codes = [code for code in range(256) if form.is_finite(code)]
        for code, (found, _) in zip(codes, apply(module, f"up{name}", [[code] for code in codes]), strict=True):
            assert F16.value(found & 0xFFFF) == form.value(code)
        numbers = [
            F32.round(Fraction(generator.randint(-(2**20), 2**20), 2 ** generator.randint(0, 30))) for _ in range(500)
        ]
        for bits, (found, _) in zip(
            numbers, apply(module, f"down{name}", [[0, bits] for bits in numbers]), strict=True
        ):
            expected = form.round(F32.value(bits))
            expected = expected & form.sign | min(expected & (form.sign - 1), form.largest)
            assert (hex(found & 0xFF), hex(bits)) == (hex(expected), hex(bits)) or F32.value(bits) == 0
    numbers = [generator.getrandbits(23) | 127 << 23 for _ in range(500)]
    for bits, (found, _) in zip(numbers, apply(module, "tf32", [[bits] for bits in numbers]), strict=True):
        assert found == TF32.round(F32.value(bits), "rna") << 13


# ---- modules ----

MODULE = """
.global .align 8 .u64 pointers[3] = {second+8, 7, generic(first)};
.global .align 4 .b32 first = 5;
.const .align 16 .f32 second[4] = {0f3F800000, 2.0};
.shared .align 16 .b8 common[40];
.extern .shared .align 32 .b8 dynamic[];
.func (.param .b32 result) twice(.param .b32 value) {
  .reg .b32 r; ld.param.b32 r, [value]; { .reg .b32 r; mov.b32 r, 1; } add.u32 r, r, r; st.param.b32 [result], r; ret;
}
.visible .entry calls(.param .u64 out, .param .align 16 .b8 blob[24]) .reqntid 8, 4 .reqnctapercluster 2 {
  .reg .b32 r<3>; .reg .b64 rd<3>; .shared .b16 mine; .param .b32 given; .param .b32 got;
  ld.param.u64 rd0, [out]; ld.param.b32 r0, [blob+4];
  st.param.b32 [given], r0; call.uni (got), twice, (given); ld.param.b32 r1, [got]; st.global.b32 [rd0], r1;
  mov.u32 r2, mine; st.global.b32 [rd0+4], r2; mov.u32 r2, dynamic; st.global.b32 [rd0+8], r2;
  st.shared.b32 [common+4], r0; cvta.shared.u64 rd1, common; ld.b32 r2, [rd1+4]; st.global.b32 [rd0+12], r2;
  ld.volatile.global.b32 r2, [rd0];
  ret;
}
.visible .entry switches(.param .u64 out, .param .u32 index) {
  .reg .b32 r0; .reg .b64 rd0;
  ld.param.u64 rd0, [out]; ld.param.u32 r0, [index];
targets: .branchtargets zero, one;
  brx.idx r0, targets;
zero: st.global.b32 [rd0], 10; ret;
one: st.global.b32 [rd0], 11; ret;
}
.visible .entry traps() { trap; }
.visible .entry unknown() { tcgen05.wait::ld.sync.aligned; ret; }
"""


@pytest.fixture(scope="module")
def module(stub: Stub, tmp_path_factory: pytest.TempPathFactory) -> PtxModule:
    return PtxModule(stub, MODULE, tmp_path_factory.mktemp("module"))


def test_kernels_are_described(module: PtxModule) -> None:
    kernel = module.kernel("calls")
    assert (kernel.num_params, kernel.param_bytes) == (2, 40)
    assert list(kernel.required_threads) == [8, 4, 1]
    assert list(kernel.cluster) == [2, 1, 1]
    assert (kernel.num_shared, kernel.shared_bytes, kernel.dynamic_alignment) == (2, 42, 32)
    assert kernel.shared_end == 1024 + 40 + 32 + 2 + 32


def test_parameters_are_aligned_in_the_constant_bank() -> None:
    """Offsets as an H200 tells them: 0x210 more is a multiple of the alignment."""
    text = (
        PROLOGUE
        + """.visible .entry mixed(.param .u8 a, .param .f64 b, .param .u16 c, .param .align 1 .b8 d[3],
      .param .align 64 .b8 map[128], .param .u32 f, .param .u64 out) { ret; }"""
    )
    (kernel,) = parse(text, "").functions
    offsets, end = place_parameters(kernel)
    assert list(offsets.values()) == [0, 8, 16, 18, 48, 176, 184]
    assert end == 192


def run_with_output(module: PtxModule, name: str, rest: bytes) -> tuple[str | None, list[int]]:
    out = (ctypes.c_uint32 * 8)()
    message = module.run(name, struct.pack("<Q", ctypes.addressof(out)) + rest)
    return message, list(out)


def test_calls_shared_variables_and_generic_addresses(module: PtxModule) -> None:
    message, out = run_with_output(
        module, "calls", bytes(8) + (0).to_bytes(4, "little") + (21).to_bytes(4, "little") + bytes(16)
    )
    assert message is None
    assert out[:4] == [42, 1024 + 40 + 32, 1024 + 40 + 32 + 2 + 32, 21]


def test_checked_accesses_are_announced_with_their_place(module: PtxModule, stub: Stub) -> None:
    run_with_output(module, "calls", bytes(40))
    strong_read_of_global = 4 | 16
    assert stub.library.stub_accesses() == 7
    assert stub.library.stub_last_kind() == strong_read_of_global
    assert stub.library.stub_yields() == 1
    assert stub.library.stub_last_location() > 0


@pytest.mark.parametrize("index", [0, 1])
def test_indexed_branches(index: int, module: PtxModule) -> None:
    assert run_with_output(module, "switches", index.to_bytes(4, "little")) == (None, [10 + index, *[0] * 7])


def test_an_index_beyond_the_targets_fails(module: PtxModule) -> None:
    message, _ = run_with_output(module, "switches", (2).to_bytes(4, "little"))
    assert message is not None
    assert "brx.idx" in message


def test_trap_fails(module: PtxModule) -> None:
    assert module.run("traps") == "trap"


def test_a_kernel_with_an_unknown_instruction_fails_at_launch_and_names_it(module: PtxModule) -> None:
    message = "unknown is not emulated: tcgen05.wait::ld.sync.aligned"
    assert module.warnings == (message,)
    assert module.run("unknown") == message


def test_stand_in_says_what_it_is() -> None:
    command = Path(__file__).parents[1] / "bin" / "nvcc"
    run = subprocess.run([sys.executable, str(command), "--version"], capture_output=True, text=True, check=False)
    if "no CUDA toolkit" in run.stderr:
        pytest.skip("no CUDA toolkit")
    assert re.match(r"nvcc-emu [0-9a-f]{16} (check|fast)\n", run.stdout), run.stderr


def test_modules_of_another_compiler_have_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept, from clone to clone too."""
    named = nvcc.translator()
    assert nvcc.translator() == named
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 99.1.0\necho x86_64-linux-gnu\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    newer = nvcc.translator()
    assert newer != named
    monkeypatch.setenv("EMU_BUILD", "fast")
    assert nvcc.translator() not in (named, newer)
    compiler.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(nvcc.CommandError, match="does not say its version"):
        nvcc.translator()


def test_stand_in_makes_modules_of_ptx_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMU_KEEP", "kept")
    Path("unit.ptx").write_text(PROLOGUE + ".visible .entry k() { bogus.u32 1; }")
    assert nvcc.main(["--cubin", "-arch", "sm_90a", "unit.ptx"]) == 0
    assert Path("unit.cubin").read_bytes().startswith(b"\x7fELF")
    assert "k is not emulated: bogus.u32" in capsys.readouterr().err
    assert "emu_module" in Path("kept", "k.cpp").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["missing.ptx"], "missing.ptx"), (["-arch", "sm_90a"], "0 sources"), (["a.cu", "b.cu"], "2 sources")],
)
def test_stand_in_says_why_it_fails(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert nvcc.main(arguments) == 1
    assert message in capsys.readouterr().err
