"""Modules that come as PTX, and devices that say that they are something else than an H200."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from emulator import jit
from emulator.tests.driver_api import Cuda, needs_driver, run_python, session

pytestmark = needs_driver

INVALID_PTX = 218

DOUBLE = b"""// four floats, twice as large
.version 8.0
.target sm_80
.address_size 64
.visible .entry double_each(.param .u64 where) {
  .reg .b64 %rd<4>; .reg .b32 %r<2>; .reg .f32 %f<3>;
  ld.param.u64 %rd1, [where];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.f32 %f1, [%rd3];
  add.f32 %f2, %f1, %f1;
  st.global.f32 [%rd3], %f2;
  ret;
}
"""
ERROR_LOG, ERROR_LOG_BYTES = 5, 6
"""CU_JIT_ERROR_LOG_BUFFER and the option of its size."""


def test_a_module_of_ptx_runs() -> None:
    with session() as s:
        module = s.cuda.handle("cuModuleLoadData", DOUBLE)
        function = s.cuda.handle("cuModuleGetFunction", module, b"double_each")
        address = s.upload(np.arange(4, dtype=np.float32))
        assert s.launch(function, [ctypes.c_uint64(address)], block=(4, 1, 1)) == 0
        assert s.floats(address, 4) == [0, 2, 4, 6]


def test_a_module_of_ptx_is_checked() -> None:
    with session() as s:
        to_one_place = DOUBLE.replace(b"mul.wide.u32 %rd2, %r1, 4;", b"mov.u64 %rd2, 0;")
        module = s.cuda.handle("cuModuleLoadData", to_one_place)
        function = s.cuda.handle("cuModuleGetFunction", module, b"double_each")
        s.launch(function, [ctypes.c_uint64(s.ones(1))], block=(4, 1, 1))
        assert s.cuda.code("cuCtxSynchronize") != 0
        assert "data race" in s.cuda.last_error()


def test_a_library_of_ptx_has_its_kernels() -> None:
    with session() as s:
        library = s.cuda.handle("cuLibraryLoadData", DOUBLE, None, None, 0, None, None, 0)
        assert s.cuda.handle("cuLibraryGetKernel", library, b"double_each")


def test_what_is_wrong_with_ptx_is_in_the_log_that_was_asked_for() -> None:
    with session() as s:
        log = ctypes.create_string_buffer(b"x" * 200)
        options = (ctypes.c_int * 2)(ERROR_LOG, ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 120)
        module, broken = ctypes.c_size_t(), DOUBLE.replace(b"entry double_each(", b"entry (")
        assert s.cuda.code("cuModuleLoadDataEx", ctypes.byref(module), broken, 2, options, values) == INVALID_PTX
        assert log.value.startswith(b"PTX: line 5: ")
        assert values[1] == len(log.value) < 120
        assert s.cuda.code("cuModuleLoadDataEx", ctypes.byref(module), DOUBLE, 2, options, values) == 0
        assert log.value == b""


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (b"sm_80", 0),
        (b"sm_90", 0),
        (b"sm_90a", 0),
        (b"sm_120", INVALID_PTX),
        (b"sm_80a", INVALID_PTX),
        (b"sm_100f", INVALID_PTX),
    ],
)
def test_ptx_is_for_its_target_and_later_ones(target: bytes, code: int) -> None:
    with session() as s:
        module = ctypes.c_size_t()
        text = DOUBLE.replace(b"sm_80", target)
        assert s.cuda.code("cuModuleLoadData", ctypes.byref(module), text) == code


def test_a_device_says_what_it_is_told_to_and_takes_what_runs_there() -> None:
    code = """
    from emulator.tests.test_driver_ptx import DOUBLE
    cuda = Cuda()
    print([cuda.value("cuDeviceGetAttribute", ctypes.c_int, which, 0) for which in (75, 76)])
    major, minor = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), 0)
    print(major.value, minor.value)
    cuda.handle("cuCtxCreate", 0, 0)
    module = ctypes.c_size_t()
    images = image(), DOUBLE, DOUBLE.replace(b"sm_80", b"sm_90a")
    print([cuda.code("cuModuleLoadData", ctypes.byref(module), one) for one in images])
    """
    done = run_python(code, EMU_COMPUTE_CAPABILITY="12.0")
    assert done.stdout.splitlines() == ["[12, 0]", "12 0", f"[209, 0, {INVALID_PTX}]"], done.stderr
    assert "the module is machine code for sm_90a, the device has compute capability 12.0" in done.stderr


def test_machine_code_is_for_later_devices_of_its_major_version_too(tmp_path: Path) -> None:
    """What the stand-in for nvcc made for sm_80, on a device of 8.6; on one of 9.0 it is refused."""
    text, module = tmp_path / "double.ptx", tmp_path / "double.cubin"
    text.write_bytes(DOUBLE)
    runtime = Path(Cuda().library._name)
    assert jit.main(["--runtime", str(runtime), "--cache", str(tmp_path / "kept"), str(text), str(module)]) == 0
    code = f"""
    cuda = Cuda()
    cuda.handle("cuCtxCreate", 0, 0)
    module = ctypes.c_size_t()
    print(cuda.code("cuModuleLoadData", ctypes.byref(module), open({str(module)!r}, "rb").read()))
    """
    codes = [run_python(code, EMU_COMPUTE_CAPABILITY=capability).stdout for capability in ("8.0", "8.6", "9.0")]
    assert codes == ["0\n", "0\n", "209\n"]


def test_what_was_translated_is_kept(tmp_path: Path) -> None:
    text, made = tmp_path / "double.ptx", tmp_path / "double.so"
    text.write_bytes(DOUBLE)
    kept = tmp_path / "kept"
    command = ["--runtime", Cuda().library._name, "--cache", str(kept), str(text), str(made)]
    assert jit.main(command) == 0
    (file,) = kept.iterdir()
    file.write_bytes(b"what is kept")
    assert jit.main(command) == 0
    assert made.read_bytes() == b"what is kept"
    text.write_bytes(DOUBLE.replace(b"double_each", b"another"))
    assert jit.main(command) == 0
    assert len(list(kept.iterdir())) == 2
