"""The emulated driver through ctypes, and a module written by hand: what the tests of emulator/driver use."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

__all__ = [
    "Array", "Cuda", "CudaError", "Gate", "Session", "image", "needs_driver", "pointers", "run_python", "session", "symbol",
]  # fmt: skip

Array = npt.NDArray[Any]

LIBRARY = os.environ.get("DNN_EMU_LIB", "")
needs_driver = pytest.mark.skipif(not LIBRARY, reason="needs the emulated driver: run `make test`")

_FOLDER = Path(__file__).parent
_EMULATOR = _FOLDER.parent
_SUFFIXED = {
    "cuCtxDestroy", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset",
    "cuDeviceTotalMem", "cuEventDestroy", "cuEventElapsedTime", "cuGraphAddKernelNode", "cuGraphAddDependencies", "cuGraphAddNode",
    "cuGraphExecKernelNodeSetParams", "cuGraphExecUpdate", "cuGraphKernelNodeGetParams", "cuGraphGetEdges",
    "cuGraphNodeGetDependencies", "cuMemAlloc", "cuMemAllocPitch", "cuMemFree", "cuMemGetAddressRange", "cuMemGetInfo",
    "cuMemHostGetDevicePointer", "cuMemHostRegister", "cuMemcpy2D", "cuMemcpy3D", "cuMemcpyDtoD", "cuMemcpyDtoDAsync",
    "cuMemcpyDtoH", "cuMemcpyDtoHAsync", "cuMemcpyHtoD", "cuMemcpyHtoDAsync", "cuMemsetD16", "cuMemsetD2D8", "cuMemsetD32",
    "cuMemsetD8", "cuModuleGetGlobal", "cuStreamBeginCapture", "cuStreamDestroy", "cuGetProcAddress", "cuCtxCreate",
}  # fmt: skip
"""Names that mean their second version, as cuda.h has it."""


class CudaError(Exception):
    """A call that did not return CUDA_SUCCESS."""

    def __init__(self, code: int, function: str) -> None:
        super().__init__(f"{function} returned {code}")
        self.code = code


def symbol(name: str) -> str:
    """The exported name of a function of cuda.h."""
    return f"{name}_v2" if name in _SUFFIXED else name


class Cuda:
    """Functions of the driver by name; each raises CudaError unless it succeeds."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(LIBRARY)
        self.library.emu_counter.restype = ctypes.c_uint64
        self.library.emu_last_error.restype = ctypes.c_char_p
        self.cuInit(0)

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            code = self.code(name, *arguments)
            if code != 0:
                raise CudaError(code, name)

        return call

    def code(self, name: str, *arguments: Any) -> int:
        """Call a function and return its CUresult. Python integers are passed as 64 bits."""
        wide = [ctypes.c_uint64(a & (2**64 - 1)) if isinstance(a, int) else a for a in arguments]
        result: int = getattr(self.library, symbol(name))(*wide)
        return result

    def value(self, name: str, kind: Any, *arguments: Any) -> Any:
        """Call a function whose first parameter points to its result."""
        result = kind()
        getattr(self, name)(ctypes.byref(result), *arguments)
        return result.value

    def handle(self, name: str, *arguments: Any) -> int:
        """Call a function that makes something."""
        made: int = self.value(name, ctypes.c_size_t, *arguments)
        return made

    def counter(self, name: str) -> int:
        """One of counters.cpp's counts."""
        count: int = self.library.emu_counter(name.encode())
        return count

    def faults(self, plan: str) -> int:
        """Install a plan of faults; a CUresult."""
        code: int = self.library.emu_faults(plan.encode())
        return code

    def last_error(self) -> str:
        """What the driver printed last."""
        text: bytes = self.library.emu_last_error()
        return text.decode()


class Session:
    """A context of its own on a device, current in the calling thread, and the hand-written module in it."""

    def __init__(self, device: int) -> None:
        self.cuda = Cuda()
        self.context = self.cuda.handle("cuCtxCreate", 0, device)
        self.module = self.cuda.handle("cuModuleLoadData", image())
        self._functions: dict[str, int] = {}

    def function(self, name: str) -> int:
        """A kernel of the module."""
        if name not in self._functions:
            self._functions[name] = self.cuda.handle("cuModuleGetFunction", self.module, name.encode())
        return self._functions[name]

    def stream(self) -> int:
        """A stream that does not wait for the legacy stream."""
        return self.cuda.handle("cuStreamCreate", 1)

    def event(self) -> int:
        """An event."""
        return self.cuda.handle("cuEventCreate", 0)

    def upload(self, array: Array) -> int:
        """Device memory with the array's bytes."""
        address = self.cuda.handle("cuMemAlloc", array.nbytes)
        self.cuda.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes)
        return address

    def ones(self, count: int) -> int:
        """Device memory with `count` floats 1."""
        return self.upload(np.ones(count, np.float32))

    def floats(self, address: int, count: int) -> list[float]:
        """What device memory holds."""
        values = np.empty(count, np.float32)
        self.cuda.cuMemcpyDtoH(values.ctypes.data, address, values.nbytes)
        return [float(value) for value in values]

    def ints(self, address: int, count: int) -> list[int]:
        """What device memory holds."""
        values = np.empty(count, np.int32)
        self.cuda.cuMemcpyDtoH(values.ctypes.data, address, values.nbytes)
        return [int(value) for value in values]

    def launch(
        self,
        function: int,
        arguments: Sequence[Any] = (),
        *,
        grid: Sequence[int] = (1, 1, 1),
        block: Sequence[int] = (32, 1, 1),
        shared: int = 0,
        stream: int = 0,
    ) -> int:
        """Launch through kernelParams; a CUresult."""
        return self.cuda.code("cuLaunchKernel", function, *grid, *block, shared, stream, pointers(arguments), None)

    def scale(self, address: int, factor: float, count: int, stream: int = 0) -> int:
        """Launch `scale` on floats; a CUresult."""
        arguments = (ctypes.c_uint64(address), ctypes.c_float(factor), ctypes.c_int(count))
        return self.launch(self.function("scale"), arguments, stream=stream)

    def close(self) -> None:
        """Destroy the context, whatever state it is in."""
        self.cuda.code("cuCtxDestroy", self.context)


def pointers(arguments: Sequence[Any]) -> Any:
    """The array of pointers that cuLaunchKernel takes; it keeps the arguments alive."""
    array = (ctypes.c_void_p * max(len(arguments), 1))(*[ctypes.addressof(a) for a in arguments])
    array.kept = arguments  # type: ignore[attr-defined]
    return array


@contextmanager
def session(device: int = 0) -> Iterator[Session]:
    """A session that ends."""
    opened = Session(device)
    try:
        yield opened
    finally:
        opened.cuda.faults("")
        opened.close()


class Gate:
    """Holds a stream up until it is opened."""

    def __init__(self, cuda: Cuda, stream: int) -> None:
        self._open = threading.Event()
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._wait)
        cuda.cuLaunchHostFunc(stream, self._function, None)

    def _wait(self, _data: int | None) -> None:
        self._open.wait(30)

    def open(self) -> None:
        """Let the stream go on."""
        self._open.set()


@functools.cache
def image(abi: int | None = None) -> bytes:
    """The hand-written module's bytes, as of an abi version."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "module.so"
        flags = ["-std=c++20", "-O1", "-fPIC", "-shared", f"-I{_EMULATOR}"]
        flags += [] if abi is None else [f"-DEMU_TEST_ABI={abi}"]
        subprocess.run(["g++", *flags, str(_FOLDER / "driver_kernels.cpp"), "-o", str(output)], check=True)
        return output.read_bytes()


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, with `Session` and NumPy imported; one that hangs fails the test."""
    source = (
        "import ctypes, sys, time\nimport numpy as np\nfrom emulator.tests.driver_api import *\n"
        + textwrap.dedent(code)
    )
    return subprocess.run(
        [sys.executable, "-c", source],
        cwd=_EMULATOR.parent, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
