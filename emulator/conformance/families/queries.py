"""What the driver says about contexts, memory, modules, streams and occupancy, and the rest of its copies."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance.checks import Family
from emulator.conformance.cuda import Buffer, Handle
from emulator.conformance.cuda_types import MEMORY_DEVICE, MEMORY_HOST, Copy2D, Copy3D
from emulator.conformance.families.driver import SOURCE, pointer, size, words
from emulator.conformance.sources import cuda_library

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.bench import Bench
    from emulator.conformance.values import Array

CODES = (
    0,
    1,
    2,
    3,
    100,
    101,
    200,
    201,
    209,
    218,
    400,
    401,
    500,
    600,
    700,
    701,
    702,
    716,
    718,
    719,
    800,
    801,
    900,
    901,
    904,
)


def _number(bench: Bench, function: str, *arguments: object) -> int:
    """An int that a function writes through its first parameter."""
    found = ctypes.c_int()
    bench.driver.call(function, ctypes.byref(found), *arguments)
    return found.value


def _error_texts(bench: Bench) -> Array:
    lines = []
    for code in CODES:
        text = ctypes.c_char_p()
        bench.driver.call("cuGetErrorString", code, ctypes.byref(text))
        lines.append(f"{bench.driver.error_name(code)}: {(text.value or b'').decode()}")
    unknown = bench.driver.code("cuGetErrorName", 12345, ctypes.byref(ctypes.c_char_p()))
    return np.frombuffer("\n".join([*lines, str(unknown)]).encode(), np.uint8)


def _contexts(bench: Bench) -> Array:
    """The current context, another one pushed and popped, and what limits say."""
    driver = bench.driver
    current, other, popped = Handle(), Handle(), Handle()
    driver.call("cuCtxGetCurrent", ctypes.byref(current))
    found = [current.value == driver.context.value, _number(bench, "cuCtxGetDevice") == driver.device.value]
    driver.call("cuCtxCreate_v2", ctypes.byref(other), 0, driver.device)
    driver.call("cuCtxGetCurrent", ctypes.byref(current))
    found.append(current.value == other.value)
    buffer = driver.allocate(64)
    driver.fill(buffer, 7)
    found.append(bool((driver.read(buffer) == 7).all()))
    driver.free(buffer)
    driver.call("cuCtxPopCurrent_v2", ctypes.byref(popped))
    found.append(popped.value == other.value)
    driver.call("cuCtxPushCurrent_v2", other)
    driver.call("cuCtxDestroy_v2", other)
    driver.call("cuCtxSetCurrent", driver.context)
    limit, low, high, flags, active = ctypes.c_size_t(), ctypes.c_int(), ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    driver.call("cuCtxGetLimit", ctypes.byref(limit), 0)
    stack = limit.value
    driver.call("cuCtxSetLimit", 0, size(4096))
    driver.call("cuCtxGetLimit", ctypes.byref(limit), 0)
    changed = limit.value
    driver.call("cuCtxSetLimit", 0, size(stack))
    driver.call("cuCtxGetStreamPriorityRange", ctypes.byref(low), ctypes.byref(high))
    driver.call("cuDevicePrimaryCtxGetState", driver.device, ctypes.byref(flags), ctypes.byref(active))
    return words(*map(int, found), stack, changed, low.value, high.value, active.value)


def _pointers(bench: Bench) -> Array:
    """Address ranges, kinds of memory, and host memory of three sorts."""
    driver = bench.driver
    data = bench.upload(SOURCE)
    base, bytes_ = ctypes.c_uint64(), ctypes.c_size_t()
    driver.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(bytes_), pointer(data, 100))
    found = [base.value == data.address, bytes_.value]
    kind, context = ctypes.c_uint(), Handle()
    driver.call("cuPointerGetAttribute", ctypes.byref(kind), 2, pointer(data, 8))
    driver.call("cuPointerGetAttribute", ctypes.byref(context), 1, pointer(data, 8))
    found += [kind.value, context.value == driver.context.value]
    host, flags, mapped = Handle(), ctypes.c_uint(), ctypes.c_uint64()
    driver.call("cuMemHostAlloc", ctypes.byref(host), size(4096), 2)
    driver.call("cuMemHostGetFlags", ctypes.byref(flags), host)
    driver.call("cuMemHostGetDevicePointer_v2", ctypes.byref(mapped), host, 0)
    driver.call("cuPointerGetAttribute", ctypes.byref(kind), 2, mapped)
    found += [flags.value, mapped.value == host.value, kind.value]
    view = np.ctypeslib.as_array(ctypes.cast(host, ctypes.POINTER(ctypes.c_uint32)), (64,))
    view[:] = 1
    bench.launch(cuda_library("driver"), "add", 1, 64, [Buffer(mapped.value, 256), 4])
    found += [int(view.sum()), driver.code("cuMemFreeHost", host)]
    own = np.zeros(4096, np.uint8)
    found.append(driver.code("cuMemHostRegister_v2", Handle(own.ctypes.data), size(4096), 0))
    found.append(driver.code("cuMemHostRegister_v2", Handle(own.ctypes.data), size(4096), 0))
    found.append(driver.code("cuMemHostUnregister", Handle(own.ctypes.data)))
    found.append(driver.code("cuMemHostUnregister", Handle(own.ctypes.data)))
    address, pitch = ctypes.c_uint64(), ctypes.c_size_t()
    driver.call("cuMemAllocPitch_v2", ctypes.byref(address), ctypes.byref(pitch), size(100), size(5), 4)
    driver.call("cuMemFree_v2", address)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return words(*map(int, found), pitch.value % 32, int(0 < free.value <= total.value))


def _occupancy(bench: Bench) -> Array:
    driver, library = bench.driver, cuda_library("driver")
    fixed, dynamic = bench.kernel(library, "fixed"), bench.kernel(library, "dynamic")
    driver.set_attribute(fixed, 8, 200 * 1024)
    driver.set_attribute(dynamic, 8, 227 * 1024)
    found = []
    for kernel, block, shared in (
        (fixed, 256, 0),
        (fixed, 256, 100 * 1024),
        (dynamic, 64, 227 * 1024),
        (dynamic, 1024, 0),
    ):
        function = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        found.append(_number(bench, function, kernel, block, size(shared)))
    available = ctypes.c_size_t()
    driver.call("cuOccupancyAvailableDynamicSMemPerBlock", ctypes.byref(available), dynamic, 2, 256)
    found.append(available.value)
    blocks, threads = ctypes.c_int(), ctypes.c_int()
    for kernel in (fixed, dynamic):
        name = "cuOccupancyMaxPotentialBlockSize"
        driver.call(name, ctypes.byref(blocks), ctypes.byref(threads), kernel, None, size(0), 0)
        found.append(threads.value)
    return words(*found)


def _modules(bench: Bench) -> Array:
    """Every way to load a module, and what is known about its kernels."""
    driver, source = bench.driver, cuda_library("driver")
    image = bench.image(source)
    first, second, library, module = Handle(), Handle(), Handle(), Handle()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "module.cubin"
        path.write_bytes(image)
        driver.call("cuModuleLoad", ctypes.byref(first), str(path).encode())
        driver.call("cuLibraryLoadFromFile", ctypes.byref(library), str(path).encode(), None, None, 0, None, None, 0)
    driver.call("cuModuleLoadDataEx", ctypes.byref(second), image, 0, None, None)
    data = bench.upload(np.zeros(64, np.uint32))
    for loaded in (first, second):
        driver.launch(driver.function(loaded, "add"), 1, 64, [data, 5])
    driver.synchronize()
    function, text, kernel = driver.function(first, "add"), ctypes.c_char_p(), Handle()
    driver.call("cuFuncGetModule", ctypes.byref(module), function)
    driver.call("cuFuncGetName", ctypes.byref(text), function)
    found = [int(bench.read(data).sum()), int(module.value == first.value), int(text.value == b"add")]
    driver.call("cuFuncLoad", function)
    found.append(_number(bench, "cuFuncIsLoaded", function))
    driver.call("cuLibraryGetKernel", ctypes.byref(kernel), library, b"mixed")
    driver.call("cuKernelGetName", ctypes.byref(text), kernel)
    found.append(int(text.value == b"mixed"))
    found.append(_number(bench, "cuKernelGetAttribute", 0, kernel, driver.device))
    offset, bytes_ = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuKernelGetParamInfo", kernel, size(4), ctypes.byref(offset), ctypes.byref(bytes_))
    found += [offset.value, bytes_.value]
    address = ctypes.c_uint64()
    driver.call("cuLibraryGetGlobal", ctypes.byref(address), ctypes.byref(bytes_), library, b"factors")
    found += [bytes_.value, *(int(x) for x in driver.read(Buffer(address.value, 16), np.uint32))]
    for loaded in (first, second):
        driver.call("cuModuleUnload", loaded)
    return words(*found, driver.code("cuLibraryUnload", library))


def _streams(bench: Bench) -> Array:
    driver, library = bench.driver, cuda_library("driver")
    data, stream, context, event = bench.upload(np.zeros(64, np.uint32)), Handle(), Handle(), driver.event()
    driver.call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, ctypes.c_int(-1))
    priority, flags, number = ctypes.c_int(), ctypes.c_uint(), ctypes.c_ulonglong()
    driver.call("cuStreamGetPriority", stream, ctypes.byref(priority))
    driver.call("cuStreamGetFlags", stream, ctypes.byref(flags))
    driver.call("cuStreamGetCtx", stream, ctypes.byref(context))
    driver.call("cuStreamGetId", stream, ctypes.byref(number))
    seen: list[int] = []
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    callback = prototype(lambda _stream, code, argument: seen.extend((code, argument or 0)))
    driver.launch(bench.kernel(library, "add"), 2, 32, [data, 6], stream=stream)
    driver.call("cuStreamAddCallback", stream, callback, Handle(88), 0)
    driver.call("cuEventRecordWithFlags", event, stream, 0)
    driver.call("cuEventSynchronize", event)
    found = [int(bench.read(data).sum()), *seen, driver.code("cuStreamQuery", stream)]
    return words(priority.value, flags.value, int(context.value == driver.context.value), *found)


def _copies(bench: Bench) -> Array:
    """The asynchronous forms."""
    driver = bench.driver
    data, other, stream = bench.upload(SOURCE), bench.output(1024), driver.stream()
    host = SOURCE[::-1].copy()
    driver.call("cuMemcpyHtoDAsync_v2", pointer(other), Handle(host.ctypes.data), size(64), stream)
    driver.call("cuMemsetD8Async", pointer(other, 70), ctypes.c_ubyte(0x11), size(5), stream)
    driver.call("cuMemsetD16Async", pointer(other, 80), ctypes.c_ushort(0x2222), size(5), stream)
    driver.call("cuMemsetD2D8Async", pointer(other, 128), size(32), ctypes.c_ubyte(0x33), size(7), size(3), stream)
    driver.call("cuMemsetD2D16Async", pointer(other, 256), size(32), ctypes.c_ushort(0x4444), size(3), size(3), stream)
    driver.call("cuMemsetD2D32Async", pointer(other, 384), size(32), 0x55555555, size(2), size(3), stream)
    driver.call("cuMemcpyAsync", pointer(other, 512), pointer(data, 256), size(100), stream)
    driver.call(
        "cuMemcpyPeerAsync", pointer(other, 640), driver.context, pointer(data), driver.context, size(60), stream
    )
    flat = Copy2D(
        src_type=MEMORY_HOST, src_host=host.ctypes.data, src_pitch=40, dst_type=MEMORY_DEVICE,
        dst_device=other.address + 768, dst_pitch=24, width=16, height=4,
    )  # fmt: skip
    driver.call("cuMemcpy2DAsync_v2", ctypes.byref(flat), stream)
    deep = Copy3D(
        src_type=MEMORY_DEVICE, src_device=data.address, src_pitch=16, src_height=4, dst_type=MEMORY_DEVICE,
        dst_device=other.address + 1024, dst_pitch=20, dst_height=3, width=12, height=2, depth=3,
    )  # fmt: skip
    driver.call("cuMemcpy3DAsync_v2", ctypes.byref(deep), stream)
    driver.call("cuStreamSynchronize", stream)
    return bench.read(other)


def _expected_copies() -> Array:
    data, host, other = SOURCE.view(np.uint8), SOURCE[::-1].copy().view(np.uint8), np.full(4096, 0xCD, np.uint8)
    other[:64] = host[:64]
    other[70:75], other[80:90] = 0x11, 0x22
    for row in range(3):
        other[128 + 32 * row : 135 + 32 * row] = 0x33
        other[256 + 32 * row : 262 + 32 * row] = 0x44
        other[384 + 32 * row : 392 + 32 * row] = 0x55
    other[512:612], other[640:700] = data[256:356], data[:60]
    for row in range(4):
        other[768 + 24 * row : 784 + 24 * row] = host[40 * row : 40 * row + 16]
    for z in range(3):
        for y in range(2):
            to, from_ = 1024 + (z * 3 + y) * 20, (z * 4 + y) * 16
            other[to : to + 12] = data[from_ : from_ + 12]
    return other.view(np.uint32)


def family() -> Family:
    """The checks."""
    made = Family("queries")

    def add(name: str, covers: str, run: Callable[[Bench], Array], expected: Array | None = None) -> None:
        made.add(name, covers, run, "u32", None if expected is None else lambda: expected)

    made.add("error texts", "cuGetErrorName cuGetErrorString", _error_texts, "u8")
    covers = "cuCtxGetCurrent cuCtxGetDevice cuCtxCreate cuCtxDestroy cuCtxPushCurrent cuCtxPopCurrent cuCtxGetLimit cuCtxSetLimit"
    contexts = words(1, 1, 1, 1, 1, 1024, 4096, 0, -5, 1)
    add("contexts", f"{covers} cuCtxGetStreamPriorityRange cuDevicePrimaryCtxGetState", _contexts, contexts)
    covers = "cuMemGetAddressRange cuPointerGetAttribute cuMemHostAlloc cuMemHostGetFlags cuMemHostGetDevicePointer"
    covers += " cuMemHostRegister cuMemHostUnregister cuMemAllocPitch cuMemGetInfo"
    known = words(1, 4096, 2, 1, 2, 1, 1, 320, 0, 0, 712, 0, 713, 0, 1)
    add("pointers", covers, _pointers, known)
    covers = "cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxPotentialBlockSize"
    add("occupancy", covers, _occupancy)
    covers = (
        "cuModuleLoad cuModuleLoadDataEx cuLibraryLoadFromFile cuFuncGetModule cuFuncGetName cuFuncLoad cuFuncIsLoaded"
    )
    covers += " cuKernelGetName cuKernelGetAttribute cuKernelGetParamInfo cuLibraryGetGlobal"
    add("modules", covers, _modules, words(640, 1, 1, 1, 1, 1024, 48, 128, 16, 1, 2, 3, 4, 0))
    covers = "cuStreamCreateWithPriority cuStreamGetPriority cuStreamGetFlags cuStreamGetCtx cuStreamGetId cuStreamAddCallback"
    covers += " cuEventRecordWithFlags cuEventSynchronize"
    add("streams", covers, _streams, words(-1, 1, 1, 384, 0, 88, 0))
    covers = (
        "cuMemcpyHtoDAsync cuMemsetD8Async cuMemsetD16Async cuMemsetD2D8Async cuMemsetD2D16Async cuMemsetD2D32Async"
    )
    covers += " cuMemcpyAsync cuMemcpyPeerAsync cuMemcpy2DAsync cuMemcpy3DAsync"
    add("asynchronous copies", covers, _copies, _expected_copies())
    return made
