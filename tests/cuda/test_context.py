"""Contexts, owners and faults: the ways in which PyCUDA ends a process or leaks, and that none of them happens here."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from dnncore.cuda import device
from dnncore.cuda.calls import Calls, KernelCall
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.runtime import driver_launch
from dnncore.cuda.runtime.context import retained
from dnncore.cuda.runtime.driver import CudaCallError
from dnncore.cuda.runtime.stream import CudaStream
from dnncore.cuda.unit import Unit
from dnncore.errors import (
    BadParamError,
    ClosedError,
    DeviceError,
    DeviceFaultError,
    DeviceNotFoundError,
    NotSupportedError,
    OutOfMemoryError,
    OwnerError,
)

FILL = Unit(
    "struct FillParams { float* out; float value; int padding; };\n"
    'extern "C" __global__ void fill(const __grid_constant__ FillParams params) {\n'
    "  params.out[blockIdx.x * blockDim.x + threadIdx.x] = params.value;\n}\n",
    "fill",
)
FILL_PARAMS = np.dtype([("out", "<u8"), ("value", "<f4"), ("padding", "<i4")])

# What a process of its own runs first: the driver that this one has, and a device.
PRELUDE = """
import ctypes, mmap, os, threading
import numpy as np
if os.environ.get("DNN_EMU_LIB"):
    ctypes.CDLL(os.environ["DNN_EMU_LIB"])
from dnncore.cuda import device
from dnncore.errors import DeviceFaultError
from tests.cuda.test_context import FILL, FILL_PARAMS, fill_params, launch
"""


def fill_params(out: int, value: float) -> np.ndarray:
    params = np.zeros((), FILL_PARAMS)
    params["out"], params["value"] = out, value
    return params


def fixed_call(unit: Unit, blocks: int, threads: int, params: np.ndarray, shared_bytes: int = 0) -> Calls:
    """A kernel with all its parameters."""
    return (KernelCall(unit, (blocks, 1, 1), (threads, 1, 1), params.tobytes(), (), shared_bytes=shared_bytes),)


def launch(gpu: CudaDevice, stream: CudaStream, unit: Unit, blocks: int, threads: int, params: np.ndarray) -> None:
    """Enqueue a kernel with all its parameters."""
    gpu.bind(fixed_call(unit, blocks, threads, params))(stream, 1.0, 0.0, ())


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((root, path)), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def in_thread(work: Callable[[], None]) -> list[BaseException]:
    """What `work` raised in a thread of its own."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 (handed to the test)
            raised.append(error)

    thread = threading.Thread(target=run, name="stranger")
    thread.start()
    thread.join()
    return raised


@pytest.fixture
def gpu() -> Iterator[CudaDevice]:
    opened = device.open_device(0)
    yield opened
    opened.close()


@pytest.mark.cuda
class TestDevice:
    def test_a_copy_there_and_back_is_the_same(self, gpu: CudaDevice) -> None:
        data = np.random.default_rng(0).integers(0, 256, 1000, dtype=np.uint8)
        memory, stream = gpu.allocate(data.nbytes), gpu.create_stream()
        back = gpu.host_buffer(data.nbytes)
        gpu.copy_to_device(stream, memory.at(0), data)
        gpu.copy_to_host(stream, back, memory.at(0))
        stream.synchronize()
        np.testing.assert_array_equal(back, data)

    def test_a_kernel_writes_what_its_parameters_say(self, gpu: CudaDevice) -> None:
        memory, stream, out = gpu.allocate(64 * 4), gpu.create_stream(), np.zeros(64, np.float32)
        launch(gpu, stream, FILL, 2, 32, fill_params(memory.at(0), 2.5))
        gpu.copy_to_host(stream, out, memory.at(0))
        stream.synchronize()
        assert set(out) == {2.5}

    def test_memory_is_aligned_even_when_it_is_small(self, gpu: CudaDevice) -> None:
        blocks = [gpu.allocate(nbytes) for nbytes in (0, 1, 3, 257)]
        assert all(block.at(0) % 256 == 0 for block in blocks)

    def test_nothing_is_copied_of_an_empty_array(self, gpu: CudaDevice) -> None:
        memory, stream = gpu.allocate(0), gpu.create_stream()
        gpu.copy_to_device(stream, memory.at(0), np.zeros((0, 3), np.float32))
        stream.synchronize()

    def test_a_host_array_with_gaps_is_refused(self, gpu: CudaDevice) -> None:
        memory, stream = gpu.allocate(64), gpu.create_stream()
        with pytest.raises(BadParamError, match="not contiguous"):
            gpu.copy_to_device(stream, memory.at(0), np.zeros((4, 4), np.float32)[:, ::2])

    def test_arrays_are_copied_one_behind_the_other(self, gpu: CudaDevice) -> None:
        made = np.random.default_rng(1)
        parts = [made.integers(0, 256, (rows, 3), np.uint8) for rows in (4, 0, 1, 7)]
        memory, stream, back = gpu.allocate(36), gpu.create_stream(), np.zeros((12, 3), np.uint8)
        gpu.gather_to_device(stream, memory.at(0), parts)
        gpu.copy_to_host(stream, back, memory.at(0))
        stream.synchronize()
        assert np.array_equal(back, np.concatenate(parts))
        with pytest.raises(BadParamError, match="not contiguous"):
            gpu.gather_to_device(stream, memory.at(0), [parts[0], parts[3][:, :2]])

    def test_pages_are_locked_once_and_unlocked_once(self, gpu: CudaDevice) -> None:
        pages = np.frombuffer(mmap.mmap(-1, 1 << 16), np.uint8)
        unlock = gpu.lock_pages(pages)
        with pytest.raises(DeviceError, match="ALREADY_REGISTERED"):
            gpu.lock_pages(pages)
        unlock()
        unlock()
        gpu.lock_pages(pages)()

    def test_an_offset_outside_a_block_is_refused(self, gpu: CudaDevice) -> None:
        with pytest.raises(BadParamError, match="65 B lies outside a block of 64 B"):
            gpu.allocate(64).at(65)

    def test_a_device_that_is_not_there_is_counted_up(self) -> None:
        with pytest.raises(DeviceNotFoundError, match=f"no cuda:99; the driver shows {device.count()} devices"):
            device.open_device(99)
        with pytest.raises(DeviceNotFoundError):
            device.info(-1)

    def test_a_kernel_for_another_architecture_is_refused(self, gpu: CudaDevice) -> None:
        unit = replace(FILL, architectures=("sm_100a",))
        with pytest.raises(NotSupportedError, match=r"cuda:0: fill is a kernel for sm_100a, not for sm_\d+a?"):
            gpu.bind(fixed_call(unit, 1, 1, fill_params(0, 0)))

    def test_a_source_is_loaded_once_for_all_devices_of_the_process(
        self, gpu: CudaDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        images: list[bytes] = []
        load = driver_launch.load_module

        def counted(image: bytes) -> object:
            images.append(image)
            return load(image)

        monkeypatch.setattr(driver_launch, "load_module", counted)
        unit = replace(FILL, source=f"// Loaded by no other test.\n{FILL.source}")
        other = device.open_device(0)
        for opened in (gpu, other, gpu):
            memory, stream = opened.allocate(32 * 4), opened.create_stream()
            launch(opened, stream, unit, 1, 32, fill_params(memory.at(0), 1.0))
            stream.synchronize()
        other.close()
        assert len(images) == 1

    def test_a_host_buffer_outlives_its_device_as_long_as_someone_looks_into_it(self) -> None:
        opened = device.open_device(0)
        view = opened.host_buffer(4096)[16:].view(np.int32)
        view[:] = 7
        opened.close()
        assert set(view) == {7}


@pytest.mark.cuda
class TestOwner:
    def test_a_stranger_may_not_use_what_a_thread_owns(self, gpu: CudaDevice) -> None:
        memory, stream = gpu.allocate(64), gpu.create_stream()
        fill = gpu.bind(fixed_call(FILL, 1, 1, fill_params(0, 0)))
        uses: list[Callable[[], object]] = [
            lambda: memory.at(0),
            memory.close,
            stream.synchronize,
            stream.close,
            lambda: fill(stream, 1.0, 0.0, ()),
            lambda: gpu.allocate(64),
            gpu.create_stream,
            lambda: gpu.host_buffer(64),
            lambda: gpu.lock_pages(np.zeros(4096, np.uint8)),
            gpu.close,
        ]
        for use in uses:
            (error,) = in_thread(lambda use=use: use())  # type: ignore[misc]
            assert isinstance(error, OwnerError)
            assert "'stranger'" in str(error)
            assert repr(threading.current_thread().name) in str(error)
        stream.close()
        memory.close()

    def test_what_is_closed_is_not_used(self, gpu: CudaDevice) -> None:
        memory, stream = gpu.allocate(64), gpu.create_stream()
        for _ in range(2):
            memory.close()
            stream.close()
        with pytest.raises(ClosedError):
            memory.at(0)
        with pytest.raises(ClosedError):
            stream.synchronize()

    def test_a_device_closes_what_it_gave(self) -> None:
        opened = device.open_device(0)
        memory, stream = opened.allocate(64), opened.create_stream()
        opened.close()
        opened.close()
        with pytest.raises(ClosedError):
            memory.at(0)
        with pytest.raises(ClosedError):
            stream.synchronize()
        with pytest.raises(ClosedError):
            opened.allocate(64)


@pytest.mark.cuda
class TestFaults:
    def test_too_much_memory_is_refused_with_figures_and_harms_nothing(self, gpu: CudaDevice) -> None:
        nbytes = 1 << 50
        with pytest.raises(OutOfMemoryError, match=rf"no room for {nbytes} B: \d+ of its \d+ B are free"):
            gpu.allocate(nbytes)
        gpu.allocate(64).close()

    def test_too_much_page_locked_memory_is_refused_with_figures(self, gpu: CudaDevice) -> None:
        with pytest.raises(OutOfMemoryError, match=f"no room for {1 << 50} B of page-locked memory"):
            gpu.host_buffer(1 << 50)

    def test_a_refused_launch_harms_nothing(self, gpu: CudaDevice) -> None:
        memory, stream = gpu.allocate(64), gpu.create_stream()
        with pytest.raises(DeviceError) as raised:
            launch(gpu, stream, FILL, 1, 4096, fill_params(memory.at(0), 1))
        assert not isinstance(raised.value, DeviceFaultError)
        stream.synchronize()

    def test_a_call_refused_where_no_context_is_current_harms_nothing(self, gpu: CudaDevice) -> None:
        context, found = retained(0), list[DeviceError]()
        assert in_thread(lambda: found.append(context.mapped(CudaCallError("cuLaunchKernel", 1)))) == []
        assert [type(error) for error in found] == [DeviceError]
        gpu.create_stream().synchronize()

    def test_an_illegal_access_is_a_fault_from_then_on(self) -> None:
        run = run_python(
            PRELUDE
            + """
gpu = device.open_device(0)
memory, stream = gpu.allocate(64), gpu.create_stream()
launch(gpu, stream, FILL, 1, 32, fill_params(1 << 44, 1))
for use in (stream.synchronize, lambda: gpu.allocate(64), stream.synchronize):
    try:
        use()
    except DeviceFaultError as error:
        assert "cuda:0 is lost" in str(error), error
        print("fault")
""",
            EMU_BUILD="check",  # built "fast", the emulator does not look where a kernel writes; a GPU does not care
        )
        assert run.stdout.split() == ["fault"] * 3, run.stderr
        assert run.returncode == 0, run.stderr


@pytest.mark.cuda
class TestProcess:
    def test_it_ends_quietly_with_live_objects_of_several_threads(self) -> None:
        run = run_python(
            PRELUDE
            + """
kept = []
def work():
    gpu = device.open_device(0)
    stream, memory, buffer = gpu.create_stream(), gpu.allocate(4096), gpu.host_buffer(4096)
    launch(gpu, stream, FILL, 1, 32, fill_params(memory.at(0), 1))
    gpu.copy_to_host(stream, buffer, memory.at(0))
    pages = np.frombuffer(mmap.mmap(-1, 4096), np.uint8)
    gpu.lock_pages(pages)
    kept.append((gpu, stream, memory, buffer))
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
work()
print(len(kept))
"""
        )
        assert (run.returncode, run.stdout, run.stderr) == (0, "4\n", "")

    def test_a_worker_that_dies_with_an_error_takes_nobody_along(self) -> None:
        run = run_python(
            PRELUDE
            + """
def work():
    gpu = device.open_device(0)
    gpu.allocate(1 << 50)
thread = threading.Thread(target=work)
thread.start(); thread.join()
gpu = device.open_device(0)
gpu.allocate(64).close()
print("alive")
"""
        )
        assert (run.returncode, run.stdout) == (0, "alive\n"), run.stderr
        assert "OutOfMemoryError" in run.stderr

    def test_threads_with_a_device_each_work_side_by_side(self) -> None:
        results: dict[int, bool] = {}

        def work(seed: int) -> None:
            gpu = device.open_device(seed % device.count())
            stream, memory = gpu.create_stream(), gpu.allocate(4096)
            data = np.random.default_rng(seed).integers(0, 256, 4096, dtype=np.uint8)
            back = np.zeros_like(data)
            for _ in range(20):
                gpu.copy_to_device(stream, memory.at(0), data)
                gpu.copy_to_host(stream, back, memory.at(0))
                stream.synchronize()
            results[seed] = bool((back == data).all())
            gpu.close()

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {0: True, 1: True, 2: True}


class TestWithoutPycuda:
    CODE = """
import sys
{hide}
import dnncore
from dnncore.cuda import device
from dnncore.errors import BackendUnavailableError
try:
    device.count()
except BackendUnavailableError as error:
    print(error)
"""

    def test_importing_works_and_a_device_says_what_to_install(self) -> None:
        run = run_python(self.CODE.format(hide="sys.modules['pycuda'] = None"))
        assert "pip install 'dnncore[cuda]'" in run.stdout, run.stderr
        assert run.returncode == 0

    def test_a_missing_driver_is_not_a_missing_package(self) -> None:
        run = run_python(
            self.CODE.format(
                hide="""
import types
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pycuda.driver":
            raise ImportError("libcuda.so.1: cannot open shared object file")
package = types.ModuleType("pycuda"); package.__path__ = []
sys.modules["pycuda"] = package
sys.meta_path.insert(0, Finder())
"""
            )
        )
        assert "no NVIDIA driver" in run.stdout, run.stderr
        assert "libcuda.so.1" in run.stdout
        assert run.returncode == 0
