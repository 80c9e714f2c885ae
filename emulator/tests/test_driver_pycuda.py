"""Unmodified PyCUDA on the emulated driver, with a kernel that the stand-in for nvcc compiles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from emulator.conformance.compiler import compile_source
from emulator.tests.driver_api import LIBRARY, needs_driver, run_python

pytestmark = [
    needs_driver,
    pytest.mark.skipif(os.environ.get("EMU_BUILD", "check") != "check", reason="needs modules with checks"),
]

SOURCE = """
extern "C" __global__ void scale(float* x, float factor, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) x[i] *= factor;
}
"""

PROGRAM = """
ctypes.CDLL({library!r}, ctypes.RTLD_GLOBAL)
import pycuda.driver as drv
drv.init()
device = drv.Device(0)
context = device.make_context()
print(device.name(), device.compute_capability(), device.get_attribute(drv.device_attribute.MULTIPROCESSOR_COUNT))
function = drv.module_from_file({module!r}).get_function("scale")
stream, start, end = drv.Stream(), drv.Event(), drv.Event()
host = drv.pagelocked_empty(100, np.float32)
host[:] = np.arange(100)
memory = drv.mem_alloc(host.nbytes)
start.record(stream)
drv.memcpy_htod_async(memory, host, stream)
function(memory, np.float32(3), np.int32(100), grid=(4, 1), block=(32, 1, 1), stream=stream)
drv.memcpy_dtoh_async(host, memory, stream)
end.record(stream)
end.synchronize()
print(bool((host == 3 * np.arange(100)).all()), end.time_since(start) >= 0)
try:
    drv.mem_alloc(1 << 45)
except drv.MemoryError as error:
    print(error)
function(memory, np.float32(3), np.int32(101), grid=(4, 1), block=(32, 1, 1))
try:
    context.synchronize()
except drv.LogicError as error:
    print(error)
context.pop()
"""


def test_pycuda(tmp_path: Path) -> None:
    pytest.importorskip("pycuda")
    module = tmp_path / "scale.cubin"
    module.write_bytes(compile_source(SOURCE, ".cu", tmp_path))
    done = run_python(PROGRAM.format(library=LIBRARY, module=str(module)))
    assert done.stdout.splitlines() == [
        "Emulated H200 (CPU) (9, 0) 132",
        "True True",
        "cuMemAlloc failed: out of memory",
        "cuCtxSynchronize failed: an illegal memory access was encountered",
    ], done.stderr
    assert done.returncode == 0
    assert "emucuda: kernel scale, block (3,0,0) thread (4,0,0): out-of-bounds" in done.stderr
