"""The static gates break on what they are there for: in made-up figures, and in real kernels that spill or lose an instruction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from dnncore.cuda.runtime import jit
from dnncore.cuda.runtime.jit import Compiler
from dnncore.cuda.unit import Unit
from dnncore.errors import CompilationError
from emulator.toolkit import ToolkitError
from tests.cuda.gates import __main__ as command
from tests.cuda.gates import figures, summary, units, verdict
from tests.cuda.gates.baseline import Baseline

BEFORE = {"registers": 128, "stack": 0, "shared": 1024, "instructions": 900, "FFMA": 64, "HMMA": 32}
BASELINE = Baseline("13.0.88", {"gemm": BEFORE})

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function gemm:
  REG:40 STACK:16 SHARED:2048 LOCAL:0 CONSTANT[2]:24 CONSTANT[0]:1760 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function copy:
  REG:8 STACK:0 SHARED:0 LOCAL:4 CONSTANT[0]:552 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def section(name: str, *opcodes: str, start: int = 0) -> dict[str, object]:
    return {"function-name": name, "start": start, "sass-instructions": [{"opcode": opcode} for opcode in opcodes]}


DISASSEMBLY = json.dumps(
    [
        {"SchemaVersion": {"major": 13}},
        [
            section("copy", "LDG.E.128", "STG.E.128", "LDL", "EXIT", "BRA", "NOP", "NOP"),
            section("gemm", "LDSM.16.M88.4", "HMMA.16816.F32", "HMMA.16816.F32", "HFMA2.MMA", "CALL.REL.NOINC", "EXIT"),
            section("$gemm$_Z6helperf", "FFMA", "STL.64", "RET.REL.NODEC", start=0x60),
        ],
    ]
)


def broken(after: Mapping[str, int], compiler: str = "13.0.88", kernel: str = "gemm") -> list[str]:
    return verdict.broken("sm_80", kernel, BASELINE, after, compiler)


def test_figures_count_a_kernel_with_its_subroutines() -> None:
    found = figures.parse(USAGE, DISASSEMBLY, reserved=0)
    gemm = {"registers": 40, "stack": 16, "shared": 2048, "instructions": 9, "LDSM": 1, "HMMA": 2, "FFMA": 1, "STL": 1}
    copy = {"registers": 8, "stack": 4, "shared": 0, "instructions": 5, "LDG": 1, "STG": 1, "LDL": 1}
    assert found == {"gemm": gemm, "copy": copy}


def test_shared_memory_that_the_system_reserves_is_not_a_kernels() -> None:
    found = figures.parse(USAGE, DISASSEMBLY, reserved=1024)
    assert [found[name]["shared"] for name in ("gemm", "copy")] == [1024, 0]


def test_figures_of_two_kernels_of_one_name_are_refused() -> None:
    twice = json.dumps([{}, [section("gemm", "EXIT"), section("gemm", "EXIT")]])
    with pytest.raises(ValueError, match="gemm is twice"):
        figures.parse(USAGE, twice, reserved=0)
    with pytest.raises(ValueError, match="gemm is twice"):
        figures.parse(USAGE + USAGE, DISASSEMBLY, reserved=0)


def test_figures_that_the_two_tools_disagree_about_are_refused() -> None:
    with pytest.raises(ValueError, match="cuobjdump speaks of"):
        figures.parse(USAGE, json.dumps([{}, [section("gemm", "EXIT")]]), reserved=0)


def test_what_is_as_before_breaks_nothing_and_changes_nothing() -> None:
    assert not broken(BEFORE)
    assert not verdict.changes("sm_80", "gemm", BEFORE, BEFORE)


@pytest.mark.parametrize("compiler", ["13.0.88", "13.2.51"])
@pytest.mark.parametrize("figure", ["stack", "STL", "LDL"])
def test_local_memory_that_grows_breaks_a_gate_with_any_compiler(figure: str, compiler: str) -> None:
    lines = broken(BEFORE | {figure: 8}, compiler)
    assert lines == [f"gemm for sm_80: {figure} 0 -> 8: registers spill, or an array is in local memory"]


def test_local_memory_that_shrinks_breaks_nothing() -> None:
    baseline = Baseline("13.0.88", {"gemm": BEFORE | {"stack": 16, "LDL": 4}})
    assert not verdict.broken("sm_80", "gemm", baseline, BEFORE | {"stack": 8}, "13.0.88")


@pytest.mark.parametrize("left", [0, 31])
def test_a_lost_tensor_core_instruction_breaks_a_gate(left: int) -> None:
    assert broken(BEFORE | {"HMMA": left}) == [f"gemm for sm_80: HMMA 32 -> {left}: tensor-core instructions are lost"]


@pytest.mark.parametrize("kind", ["HMMA", "HGMMA", "IMMA", "IGMMA", "QGMMA", "DMMA", "BMMA"])
def test_every_kind_of_tensor_core_instruction_is_gated(kind: str) -> None:
    baseline = Baseline("13.0.88", {"gemm": {"registers": 1, "stack": 0, "shared": 0, "instructions": 9, kind: 2}})
    assert verdict.broken("sm_90a", "gemm", baseline, {"registers": 1, "instructions": 9, kind: 1}, "13.0.88")


def test_another_compiler_may_unroll_otherwise_but_not_lose_every_tensor_core_instruction() -> None:
    assert not broken(BEFORE | {"HMMA": 16}, "13.2.51")
    assert broken({name: n for name, n in BEFORE.items() if name != "HMMA"}, "13.2.51")


def test_registers_shared_memory_and_other_instructions_are_told_and_break_nothing() -> None:
    after = BEFORE | {"registers": 168, "shared": 0, "FFMA": 0, "HMMA": 64, "LDSM": 4}
    assert not broken(after)
    changes = verdict.changes("sm_80", "gemm", BEFORE, after)
    assert [(c.figure, c.before, c.after) for c in changes] == [
        ("registers", 128, 168), ("shared", 1024, 0), ("FFMA", 64, 0), ("HMMA", 32, 64), ("LDSM", 0, 4),
    ]  # fmt: skip


def test_an_instruction_more_in_hundreds_is_not_told() -> None:
    assert not verdict.changes("sm_80", "gemm", BEFORE, BEFORE | {"instructions": 901})
    assert verdict.changes("sm_80", "gemm", BEFORE, BEFORE | {"instructions": 909})


def test_a_new_kernel_and_one_that_is_gone_break_a_gate() -> None:
    assert broken(BEFORE, kernel="gemv") == ["gemv for sm_80 is not in the baseline"]
    assert verdict.gone("sm_80", BASELINE, ["gemv"]) == [
        "gemm for sm_80 is in the baseline, and no algorithm asks for it"
    ]
    assert not verdict.gone("sm_80", BASELINE, ["gemm", "gemv"])


def test_the_table_has_the_largest_change_first_and_says_what_it_leaves_out() -> None:
    changes = verdict.changes("sm_80", "gemm", BEFORE, BEFORE | {"registers": 96, "FFMA": 640, "shared": 1025})
    assert verdict.table(changes, most=2) == [
        "arch   kernel  figure     baseline  now",
        "sm_80  gemm    FFMA             64  640  +576",
        "sm_80  gemm    registers       128   96   -32",
        "... and 1 more: `python -m tests.cuda.gates` prints them all",
    ]
    assert verdict.table([]) == []


def test_the_baseline_reads_back_and_has_a_line_for_each_kernel(tmp_path: Path) -> None:
    written = Baseline("13.0.88", {"pool": BEFORE, "gemm": BEFORE}, {"pool": "a2", "gemm": "9f"})
    written.write("sm_80", tmp_path)
    assert Baseline.read("sm_80", tmp_path) == written
    lines = [line for line in (tmp_path / "sm_80.json").read_text().splitlines() if "registers" in line]
    assert [line.split('"')[1] for line in lines] == ["gemm", "pool"]


def test_a_missing_baseline_knows_no_kernel(tmp_path: Path) -> None:
    baseline = Baseline.read("sm_80", tmp_path)
    assert verdict.broken("sm_80", "gemm", baseline, BEFORE, "13.0.88")


class FakeReport:
    """A test's report, of which only the properties are read. Owned by one thread."""

    def __init__(self) -> None:
        self.user_properties: list[tuple[str, object]] = []

    def record(self, name: str, value: object) -> None:
        self.user_properties.append((name, value))


class FakeTerminal:
    """Collects what pytest's terminal would print. Owned by one thread."""

    def __init__(self, *reports: FakeReport) -> None:
        self.reports = list(reports)
        self.lines: list[str] = []

    def getreports(self, outcome: str) -> list[FakeReport]:
        return self.reports if outcome == "passed" else []

    def section(self, title: str) -> None:
        self.lines.append(f"== {title}")

    write_line = section


def printed(*reports: FakeReport) -> list[str]:
    terminal = FakeTerminal(*reports)
    summary.write(terminal)  # type: ignore[arg-type]
    return terminal.lines


def test_the_summary_prints_changes_and_another_compiler_and_otherwise_nothing() -> None:
    quiet, loud = FakeReport(), FakeReport()
    summary.keep(quiet.record, [], "13.0.88", "13.0.88")
    assert printed(quiet) == []
    summary.keep(
        loud.record, verdict.changes("sm_80", "gemm", BEFORE, BEFORE | {"registers": 130}), "13.2.51", "13.0.88"
    )
    text = "\n".join(printed(quiet, loud))
    assert "the baseline is of nvcc 13.0.88, this is nvcc 13.2.51" in text
    assert "sm_80  gemm    registers       128  130  +2" in text


# Real kernels, small ones: that nvcc, the disassemblers and the gates agree about what a spill and a lost instruction look like.

# 64 values that are all alive at once.
GREEDY = Unit(
    """
extern "C" __global__ void greedy(float* values) {
  float kept[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) kept[i] = values[i * 32 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) values[i * 32 + threadIdx.x] = kept[63 - i] * kept[(i * 7) % 64];
}
""",
    "greedy",
)
SPILLING = ("-maxrregcount=24",)

WITH_MMA = """
extern "C" __global__ void product(float* c, const unsigned* a) {
  float d[4] = {0, 0, 0, 0};
#if TENSOR
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]));
#endif
  c[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
"""


WITH_WGMMA = """
extern "C" __global__ void products(float* c, unsigned long long a, unsigned long long b, int steps) {
  float sums[4] = {};
  for (int step = 0; step < steps; ++step) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) : "l"(a + step), "l"(b + step));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    TOUCH
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  c[threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}
"""


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    try:
        return units.nvcc()
    except ToolkitError as error:
        pytest.skip(str(error))


def measured(compiler: Compiler, unit: Unit, folder: Path, *flags: str) -> figures.Figures:
    cubin = folder / "measured.cubin"
    cubin.write_bytes(compiler.compile(unit, "sm_80", folder, flags))
    return figures.figures(cubin)[unit.entry]


def test_a_kernel_that_spills_does_not_compile(compiler: Compiler, tmp_path: Path) -> None:
    with pytest.raises(CompilationError, match=r"(?s)spilled to local memory in function 'greedy'"):
        compiler.compile(GREEDY, "sm_80", tmp_path, (*jit.STRICT_FLAGS, *SPILLING))


@pytest.mark.parametrize("touch", ["", "sums[0] += 1;"])
def test_a_kernel_whose_products_are_serialized_does_not_compile(
    compiler: Compiler, tmp_path: Path, touch: str
) -> None:
    unit = Unit(WITH_WGMMA.replace("TOUCH", touch), "products")
    if not touch:
        assert compiler.compile(unit, "sm_90a", tmp_path, jit.STRICT_FLAGS)
        return
    with pytest.raises(CompilationError, match=r"serialized|is injected"):
        compiler.compile(unit, "sm_90a", tmp_path, jit.STRICT_FLAGS)
    assert compiler.compile(unit, "sm_90a", tmp_path)  # users get it all the same


def test_a_kernel_that_spills_breaks_a_gate(compiler: Compiler, tmp_path: Path) -> None:
    before = measured(compiler, GREEDY, tmp_path)
    after = measured(compiler, GREEDY, tmp_path, *SPILLING)
    baseline = Baseline(units.release(compiler), {"greedy": before})
    assert before.get("STL", 0) == 0
    assert after["STL"] > 0
    text = "\n".join(verdict.broken("sm_80", "greedy", baseline, after, baseline.compiler))
    assert f"greedy for sm_80: STL 0 -> {after['STL']}: registers spill" in text
    assert f"greedy for sm_80: stack 0 -> {after['stack']}: registers spill" in text


def test_a_kernel_that_loses_its_tensor_core_instruction_breaks_a_gate(compiler: Compiler, tmp_path: Path) -> None:
    before, after = (
        measured(compiler, Unit(f"#define TENSOR {tensor}\n{WITH_MMA}", "product"), tmp_path) for tensor in (1, 0)
    )
    baseline = Baseline(units.release(compiler), {"product": before})
    assert before["HMMA"] == 1
    assert verdict.broken("sm_80", "product", baseline, after, baseline.compiler) == [
        "product for sm_80: HMMA 1 -> 0: tensor-core instructions are lost"
    ]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_shared_memory_is_what_a_kernel_declares(compiler: Compiler, tmp_path: Path, arch: str) -> None:
    source = """
extern "C" __global__ void shift(int* values) {
  __shared__ int kept[128];
  kept[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = kept[127 - threadIdx.x];
}
extern "C" __global__ void fill(int* values) { values[threadIdx.x] = 1; }
"""
    cubin = tmp_path / "two.cubin"
    cubin.write_bytes(compiler.compile(Unit(source, "shift"), arch, tmp_path))
    found = figures.figures(cubin)
    assert {name: found[name]["shared"] for name in found} == {"shift": 512, "fill": 0}


# The command, with two units instead of all of them.

PAIR = tuple(
    Unit(f'#include "dnncore/none.cuh"\nextern "C" __global__ void {name}(int* p) {{ *p = {value}; }}\n', name)
    for name, value in (("first", 1), ("second", 2))
)


@pytest.fixture
def pair(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the baseline; the command knows two units, whose one header is empty."""
    header = tmp_path / "include" / "dnncore" / "none.cuh"
    header.parent.mkdir(parents=True)
    header.write_text("")
    own = Compiler(compiler.nvcc, compiler.version, include=tmp_path / "include")
    monkeypatch.setattr(units, "nvcc", lambda: own)
    monkeypatch.setattr(units, "units", lambda: PAIR)
    return tmp_path


def test_the_command_updates_compares_and_prints_one_kernel(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--arch", "sm_80"], pair) == 1
    assert "first for sm_80 is not in the baseline" in capsys.readouterr().out
    assert command.main(["--arch", "sm_80", "--update"], pair) == 0
    assert command.main(["--arch", "sm_80"], pair) == 0
    assert "2 kernels: no figure changed" in capsys.readouterr().out

    written = Baseline.read("sm_80", pair)
    assert written.digests == {unit.entry: units.digest(unit, "sm_80", units.nvcc()) for unit in PAIR}
    spent = dict(written.kernels["first"])
    changed = {**written.kernels, "first": spent | {"HMMA": 3, "registers": 99}}
    Baseline(written.compiler, changed).write("sm_80", pair)
    assert command.main(["--arch", "sm_80"], pair) == 1
    out = capsys.readouterr().out
    assert "! first for sm_80: HMMA 3 -> 0: tensor-core instructions are lost" in out
    assert f"sm_80  first   registers        99  {spent['registers']:>3}" in out

    # Of what is as it was nothing is compiled, and figures that somebody wrote by hand stay; another header changes that.
    Baseline(written.compiler, changed, written.digests).write("sm_80", pair)
    assert command.main(["--arch", "sm_80", "--changed", "--update"], pair) == 0
    assert Baseline.read("sm_80", pair).kernels == changed
    (pair / "include" / "dnncore" / "none.cuh").write_text("// another")
    assert command.main(["--arch", "sm_80", "--changed", "--update"], pair) == 0
    assert Baseline.read("sm_80", pair).kernels == written.kernels
    capsys.readouterr()

    Baseline(written.compiler, changed).write("sm_80", pair)
    assert command.main(["--arch", "sm_80", "--kernel", "first"], pair) == 0
    assert f"  registers     {spent['registers']:>8}      99" in capsys.readouterr().out
    assert command.main(["--kernel", "fist"], pair) == 1
    assert "the nearest are first" in capsys.readouterr().err


def test_a_digest_is_of_sources_headers_flags_compiler_and_architecture(pair: Path) -> None:
    own = units.nvcc()
    unit = PAIR[1]
    before = units.digest(unit, "sm_80", own)
    assert units.digest(unit, "sm_80", own) == before
    others = {
        units.digest(Unit(unit.source.replace("= 2", "= 3"), unit.entry), "sm_80", own),
        units.digest(PAIR[0], "sm_80", own),
        units.digest(unit, "sm_90a", own),
        units.digest(unit, "sm_80", Compiler(own.nvcc, own.version, ("-O1",), own.include)),
        units.digest(unit, "sm_80", Compiler(own.nvcc, "another", own.flags, own.include)),
    }
    (pair / "include" / "dnncore" / "none.cuh").write_text("// not empty any more")
    others.add(units.digest(unit, "sm_80", own))
    assert len(others | {before}) == 7
