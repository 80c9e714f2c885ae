"""The compile step and its two stores, with a compiler that counts how often it runs."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dnncore.cache import cache_folder, write_atomically
from dnncore.cuda import build
from dnncore.cuda.algorithms import all_units
from dnncore.cuda.runtime import jit
from dnncore.cuda.runtime.jit import Compiler
from dnncore.cuda.unit import Unit
from dnncore.errors import BackendUnavailableError, CompilationError
from tests.conftest import GPU

UNIT = Unit('#include "dnncore/outer.cuh"\nextern "C" __global__ void twice() {}\n', "twice")

# Obeys nvcc's rules as far as they matter here: writes unit.cubin or unit.ptx where it runs; "#error" fails, "#warning" fails under
# -Werror.
FAKE_NVCC = """#!{python}
import pathlib, sys, time
if "--version" in sys.argv:
    print("fake nvcc, release 1.0"); sys.exit(0)
if "--list-gpu-code" in sys.argv:
    print("sm_80\\nsm_90"); sys.exit(0)
with open({log!r}, "a") as log: log.write("compiled\\n")
time.sleep(0.2)
source = pathlib.Path(next(a for a in sys.argv if a.endswith(".cu")))
text = source.read_text()
if "#error" in text or ("#warning" in text and "-Werror" in sys.argv):
    print("unit.cu(1): error: the fake does not like this", file=sys.stderr); sys.exit(2)
arch = sys.argv[sys.argv.index("-arch") + 1]
if "--ptx" in sys.argv:
    target = arch.replace("compute", {target!r})
    source.with_suffix(".ptx").write_text(f".version 9.0\\n.target {{target}}\\n.entry plain()\\n" + text); sys.exit(0)
machine = b"\x7fELF" + bytes(14) + ({machine}).to_bytes(2, "little")
source.with_suffix(".cubin").write_bytes(machine + arch.encode() + text.encode())
"""
OF_A_GPU, OF_A_HOST = 190, 62
"""What ELF files say that they are for."""
HEADER_BYTES = 20


class FakeCompiler:
    """A folder with an nvcc in it, and the number of times that it compiled. Owned by one thread."""

    def __init__(self, folder: Path, machine: int = OF_A_GPU, target: str = "sm") -> None:
        self.bin = folder / "toolkit" / "bin"
        self.log = folder / "log"
        self.bin.mkdir(parents=True)
        script = self.bin / "nvcc"
        text = FAKE_NVCC.format(python=sys.executable, log=str(self.log), machine=machine, target=target)
        script.write_text(text)
        script.chmod(0o755)

    @property
    def runs(self) -> int:
        return self.log.read_text().count("\n") if self.log.exists() else 0


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "include"
    (folder / "dnncore").mkdir(parents=True)
    (folder / "dnncore" / "outer.cuh").write_text('#include "dnncore/inner.cuh"\n')
    (folder / "dnncore" / "inner.cuh").write_text("// one\n")
    return folder


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    fake = FakeCompiler(tmp_path)
    monkeypatch.setenv("PATH", str(fake.bin))
    monkeypatch.setenv("DNNCORE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DNNCORE_CUBIN_DIR", str(tmp_path / "no-cubins"))
    return fake


@pytest.fixture
def no_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("DNNCORE_CUBIN_DIR", str(tmp_path / "prebuilt"))


def compiler(headers: Path, **changes: object) -> Compiler:
    values = {"nvcc": Path("nvcc"), "version": "1.0", "flags": ("-O3",), "include": headers, **changes}
    return Compiler(**values)  # type: ignore[arg-type]


def plain(text: str = "") -> Unit:
    return Unit(f'{text}\nextern "C" __global__ void plain() {{}}\n', "plain")


def test_a_unit_is_compiled_once_and_then_read(nvcc: FakeCompiler) -> None:
    first = jit.cubin(plain(), "sm_80")
    assert first == jit.cubin(plain(), "sm_80")
    assert first.startswith(b"sm_80", HEADER_BYTES)
    assert nvcc.runs == 1


def test_another_architecture_is_another_cubin(nvcc: FakeCompiler) -> None:
    assert jit.cubin(plain(), "sm_80") != jit.cubin(plain(), "sm_90a")
    assert nvcc.runs == 2


def test_the_cache_is_private(nvcc: FakeCompiler, tmp_path: Path) -> None:
    jit.cubin(plain(), "sm_80")
    assert stat.S_IMODE((tmp_path / "cache" / "cubins").stat().st_mode) == 0o700


def test_a_header_that_a_header_includes_changes_the_key(headers: Path) -> None:
    before = compiler(headers).key(UNIT, "sm_80")
    (headers / "dnncore" / "inner.cuh").write_text("// two\n")
    assert compiler(headers).key(UNIT, "sm_80") != before


@pytest.mark.parametrize("changes", [{"version": "1.1"}, {"flags": ("-O2",)}], ids=["version", "flags"])
def test_what_compiles_changes_the_cache_key_but_not_the_prebuilt_one(
    headers: Path, changes: dict[str, object]
) -> None:
    one, other = compiler(headers), compiler(headers, **changes)
    assert one.key(UNIT, "sm_80") != other.key(UNIT, "sm_80")
    assert jit.prebuilt_key(UNIT, "sm_80", one.include) == jit.prebuilt_key(UNIT, "sm_80", other.include)


def test_headers_that_include_each_other_end(headers: Path) -> None:
    (headers / "dnncore" / "inner.cuh").write_text('#include "dnncore/outer.cuh"\n')
    assert compiler(headers).key(UNIT, "sm_80")


def test_a_header_that_is_not_there_is_named(headers: Path) -> None:
    (headers / "dnncore" / "inner.cuh").unlink()
    with pytest.raises(CompilationError, match=r"dnncore/inner\.cuh"):
        compiler(headers).key(UNIT, "sm_80")


def test_an_error_carries_the_compilers_words_and_leaves_nothing(nvcc: FakeCompiler, tmp_path: Path) -> None:
    with pytest.raises(CompilationError, match=r"plain for sm_80: nvcc ended with 2(.|\n)*the fake does not like this"):
        jit.cubin(plain("#error"), "sm_80")
    assert [path.suffix for path in (tmp_path / "cache" / "cubins").iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_is_named_with_the_way_out(nvcc: FakeCompiler, tmp_path: Path) -> None:
    found = jit.find_compiler()
    assert found is not None
    (tmp_path / "cache" / "cubins" / f"{found.key(plain(), 'sm_80')}.lock").mkdir(parents=True)
    with pytest.raises(CompilationError, match=r"cubins cannot be used \(.*set DNNCORE_CACHE_DIR"):
        jit.cubin(plain(), "sm_80")


def test_a_warning_fails_a_build_but_not_a_user(nvcc: FakeCompiler, tmp_path: Path) -> None:
    found = jit.find_compiler()
    assert found is not None
    assert jit.cubin(plain("#warning"), "sm_80")
    with pytest.raises(CompilationError):
        build.build([plain("#warning")], ["sm_80"], tmp_path / "out", 1, found)


def test_a_write_that_fails_leaves_neither_the_file_nor_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "file", b"data")
    assert list(tmp_path.iterdir()) == []


def test_threads_that_want_the_same_unit_compile_it_once(nvcc: FakeCompiler) -> None:
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(jit.cubin(plain(), "sm_80"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(results)) == 1
    assert nvcc.runs == 1


def test_processes_that_want_the_same_unit_compile_it_once(nvcc: FakeCompiler) -> None:
    code = (
        "import sys; from dnncore.cuda.runtime import jit; from dnncore.cuda.unit import Unit; "
        "print(len(jit.cubin(Unit(sys.argv[1], 'plain'), 'sm_80')))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", code, plain().source], env=environment, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(outputs)) == 1
    assert nvcc.runs == 1


def test_the_compiler_is_found_in_cuda_home(
    nvcc: FakeCompiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("CUDA_HOME", str(nvcc.bin.parent))
    found = jit.find_compiler()
    assert found is not None
    assert found.nvcc == nvcc.bin / "nvcc"
    assert "release 1.0" in found.version


def test_what_was_built_ahead_serves_a_machine_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    fake = FakeCompiler(tmp_path)
    there = Compiler(fake.bin / "nvcc", "1.0")
    build.build([plain()], ["sm_80", "sm_90a"], tmp_path / "prebuilt", 2, there)
    request.getfixturevalue("no_nvcc")
    assert jit.cubin(plain(), "sm_90a").startswith(b"sm_90a", HEADER_BYTES)
    index = json.loads((tmp_path / "prebuilt" / "index.json").read_text())
    assert {(entry["entry"], entry["arch"]) for entry in index["images"]} == {("plain", "sm_80"), ("plain", "sm_90a")}
    assert all((tmp_path / "prebuilt" / entry["file"]).stat().st_size == entry["nbytes"] for entry in index["images"])


def test_where_a_unit_was_built_ahead_no_compiler_runs(
    nvcc: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = jit.find_compiler()
    assert found is not None
    build.build([plain()], ["sm_80"], tmp_path / "prebuilt", 1, found)
    monkeypatch.setenv("DNNCORE_CUBIN_DIR", str(tmp_path / "prebuilt"))
    before = nvcc.runs
    assert jit.cubin(plain(), "sm_80").startswith(b"sm_80", HEADER_BYTES)
    assert nvcc.runs == before
    assert jit.cubin(plain(), "sm_90a").startswith(b"sm_90a", HEADER_BYTES)
    assert nvcc.runs == before + 1


def test_a_unit_is_built_only_for_the_architectures_it_exists_for(nvcc: FakeCompiler, tmp_path: Path) -> None:
    found = jit.find_compiler()
    assert found is not None
    build.build([replace(plain(), architectures=("sm_90a",))], ["sm_80", "sm_90a"], tmp_path / "out", 1, found)
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert [(entry["entry"], entry["arch"]) for entry in index["images"]] == [("plain", "sm_90a")]


def test_what_was_built_from_the_same_source_is_kept_and_what_was_built_from_another_is_removed(
    nvcc: FakeCompiler, tmp_path: Path
) -> None:
    found, out = jit.find_compiler(), tmp_path / "out"
    assert found is not None
    build.build([plain("// one"), plain("// two")], ["sm_80", "sm_90a"], out, 1, found)
    build.build([plain("// two"), plain("// three")], ["sm_80"], out, 1, found)
    assert nvcc.runs == 5
    index = json.loads((out / "index.json").read_text())
    assert len(index["images"]) == 4  # for sm_90a those of before
    assert {entry["file"] for entry in index["images"]} == {path.name for path in out.glob("*.cubin")}
    build.build([plain("// two")], ["sm_80"], out, 1, replace(found, version="another"))
    assert nvcc.runs == 6


def test_a_build_that_is_broken_off_goes_on_where_it_was(nvcc: FakeCompiler, tmp_path: Path) -> None:
    found, out = jit.find_compiler(), tmp_path / "out"
    assert found is not None
    build.build([plain("// one")], ["sm_80"], out, 1, found)
    with pytest.raises(CompilationError):
        build.build([plain("#error"), plain("// two"), plain("// one")], ["sm_80"], out, 3, found)
    before = nvcc.runs
    build.build([plain("// two"), plain("// one")], ["sm_80"], out, 1, found)
    assert nvcc.runs == before


def test_ptx_is_built_beside_cubins_of_all_units_that_are_for_every_architecture(
    nvcc: FakeCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, out = jit.find_compiler(), tmp_path / "out"
    assert found is not None
    bound = replace(plain("// for one alone"), architectures=("sm_90a",))
    build.build([plain(), bound], ["sm_90a", jit.FORWARD], out, 1, found)
    index = json.loads((out / "index.json").read_text())
    assert [(entry["arch"], entry["file"]) for entry in index["images"]] == [
        ("sm_90a", f"{jit.prebuilt_key(plain(), 'sm_90a')}.cubin"),
        ("sm_90a", f"{jit.prebuilt_key(bound, 'sm_90a')}.cubin"),
        ("compute_80", f"{jit.prebuilt_key(plain(), 'compute_80')}.ptx.xz"),
    ]
    assert all((out / entry["file"]).stat().st_size == entry["nbytes"] for entry in index["images"])
    monkeypatch.setenv("DNNCORE_CUBIN_DIR", str(out))
    before = nvcc.runs
    assert b".target sm_80\n" in jit.ptx(plain())
    build.build([plain(), bound], ["sm_90a", jit.FORWARD], out, 1, found)
    assert nvcc.runs == before


def test_what_is_no_ptx_for_the_architecture_is_not_built(tmp_path: Path) -> None:
    there = Compiler(FakeCompiler(tmp_path, target="gfx").bin / "nvcc", "1.0")
    with pytest.raises(CompilationError, match=r"plain: what .*nvcc wrote is no PTX of it for compute_80"):
        build.build([plain()], [jit.FORWARD], tmp_path / "out", 1, there)
    assert not list((tmp_path / "out").glob("*.ptx.xz"))


@pytest.mark.parametrize(
    ("built", "has_nvcc", "capability", "expected"),
    [
        (["sm_80", "compute_80"], False, (8, 0), "sm_80"),
        (["sm_80", "compute_80"], False, (9, 0), "compute_80"),
        (["sm_80", "compute_80"], False, (12, 0), "compute_80"),
        (["sm_80", "compute_80"], True, (9, 0), "sm_90a"),  # the compiler knows it
        (["sm_80", "compute_80"], True, (12, 0), "compute_80"),  # which is newer than the compiler
        (["sm_80"], False, (9, 0), "sm_90a"),  # there is nothing for it, and each kernel says so
        ([], True, (12, 0), "sm_120"),
        ([], False, (12, 0), "sm_120"),
    ],
)
def test_what_a_device_runs_is_machine_code_where_there_can_be_some_else_ptx(
    nvcc: FakeCompiler,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    built: list[str],
    has_nvcc: bool,
    capability: tuple[int, int],
    expected: str,
) -> None:
    found = jit.find_compiler()
    assert found is not None
    if built:
        build.build([plain()], built, tmp_path / "prebuilt", 1, found)
    if not has_nvcc:
        request.getfixturevalue("no_nvcc")
    monkeypatch.setenv("DNNCORE_CUBIN_DIR", str(tmp_path / "prebuilt"))
    assert jit.target(capability) == expected


def test_ptx_that_is_missing_or_damaged_is_named_with_the_way_out(no_nvcc: None, tmp_path: Path) -> None:
    with pytest.raises(
        BackendUnavailableError, match=r"no PTX of plain .*dnncore\.cuda\.build --arch compute_80 --out DIR"
    ):
        jit.ptx(plain())
    (tmp_path / "prebuilt").mkdir()
    (tmp_path / "prebuilt" / jit.prebuilt_name(plain(), jit.FORWARD)).write_bytes(b"not xz")
    with pytest.raises(BackendUnavailableError, match=r"PTX of plain .*cannot be read \(.*build it again"):
        jit.ptx(plain())


def test_what_is_no_machine_code_of_a_gpu_is_not_built(tmp_path: Path) -> None:
    there = Compiler(FakeCompiler(tmp_path, OF_A_HOST).bin / "nvcc", "1.0")
    with pytest.raises(CompilationError, match=r"plain: what .*nvcc wrote is no machine code of a GPU"):
        build.build([plain()], ["sm_80"], tmp_path / "out", 1, there)
    assert not list((tmp_path / "out").glob("*.cubin"))


@pytest.mark.cuda
@pytest.mark.skipif(GPU, reason="takes what the tests on the emulated driver have compiled")
def test_a_net_runs_on_cubins_that_were_built_ahead_without_a_compiler_or_a_cache(tmp_path: Path) -> None:
    compiler = jit.find_compiler()
    assert compiler is not None
    prebuilt = tmp_path / "prebuilt"
    prebuilt.mkdir()
    for unit in all_units("sm_90a"):
        compiled = cache_folder() / "cubins" / f"{compiler.key(unit, 'sm_90a')}.cubin"
        if compiled.is_file():
            shutil.copy(compiled, prebuilt / f"{jit.prebuilt_key(unit, 'sm_90a')}.cubin")
    code = """
import ctypes, os
import numpy as np
ctypes.CDLL(os.environ["DNN_EMU_LIB"])
from dnncore import Handle
from dnncore.cuda.runtime import jit
from dnncore.nn import Executor, Parameters
from dnncore.nn.zoo import lenet
assert jit.find_compiler() is None
net = lenet()
with Handle("cuda:0") as handle:
    parameters = Parameters.upload(handle, net, net.initialize(0))
    print(Executor(net, handle, parameters, 2).run({"data": np.ones((2, 1, 8, 8), np.float32)})["logits"].shape)
"""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
    environment |= {"PATH": str(tmp_path / "nothing"), "PYTHONPATH": path, "DNNCORE_CUBIN_DIR": str(prebuilt)}
    environment |= {"DNNCORE_CACHE_DIR": str(tmp_path / "cache")}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "(2, 10)\n", "")
    assert not (tmp_path / "cache").exists()


def test_without_a_compiler_the_error_says_how_to_build(no_nvcc: None) -> None:
    with pytest.raises(BackendUnavailableError, match=r"dnncore\.cuda\.build --arch sm_90a"):
        jit.cubin(plain(), "sm_90a")


def test_the_build_command_without_a_compiler_fails_with_a_reason(
    no_nvcc: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert build.main(["--out", str(tmp_path)]) == 1
    assert "install the CUDA toolkit" in capsys.readouterr().err


@pytest.mark.parametrize(("capability", "name"), [((8, 0), "sm_80"), ((9, 0), "sm_90a"), ((12, 0), "sm_120")])
def test_architecture_names(capability: tuple[int, int], name: str) -> None:
    assert jit.architecture(capability) == name
