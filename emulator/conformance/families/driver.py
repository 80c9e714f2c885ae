"""The driver API: modules, launches, memory, streams, events, and the codes of calls that are wrong."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import values
from emulator.conformance.checks import Family
from emulator.conformance.cuda import Arguments, Buffer, Handle, encode_tiled
from emulator.conformance.cuda_types import MEMORY_DEVICE, MEMORY_HOST, Copy2D, Copy3D, HostFunction, PoolProperties
from emulator.conformance.report import SkippedCheck
from emulator.conformance.sources import cuda_library

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.bench import Bench
    from emulator.conformance.values import Array

INVALID_VALUE, NOT_READY, NOT_FOUND = 1, 600, 500
SOURCE = values.bits("driver", "u32", 1024)


def words(*found: int) -> Array:
    """Numbers as an output."""
    return np.array(found, np.int64).astype(np.uint32)


def size(value: int) -> ctypes.c_size_t:
    """A size_t."""
    return ctypes.c_size_t(value)


def pointer(buffer: Buffer, offset: int = 0) -> ctypes.c_uint64:
    """A CUdeviceptr."""
    return ctypes.c_uint64(buffer.address + offset)


def _modules(bench: Bench) -> Array:
    driver, library = bench.driver, cuda_library("driver")
    module = driver.load(bench.image(library))
    function, other = Handle(), Handle()
    found = [driver.code("cuModuleGetFunction", ctypes.byref(function), module, b"add")]
    found.append(driver.code("cuModuleGetFunction", ctypes.byref(other), module, b"no_such_kernel"))
    address, bytes_ = ctypes.c_uint64(), ctypes.c_size_t()
    found.append(driver.code("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(bytes_), module, b"factors"))
    found.append(bytes_.value)
    missing = driver.code(
        "cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(bytes_), module, b"no_such_global"
    )
    found.append(missing)
    count = ctypes.c_uint()
    driver.call("cuModuleGetFunctionCount", ctypes.byref(count), module)
    found += [count.value, driver.code("cuModuleUnload", module)]
    return words(*found)


def _globals(bench: Bench) -> Array:
    driver, library = bench.driver, cuda_library("driver")
    module = driver.load(bench.image(library))
    address, bytes_ = ctypes.c_uint64(), ctypes.c_size_t()
    driver.call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(bytes_), module, b"counter")
    counter, out = Buffer(address.value, bytes_.value), bench.output(8)
    driver.launch(driver.function(module, "globals"), 1, 8, [out])
    first = np.concatenate([bench.read(out), bench.read(counter)])
    driver.write(counter, np.array([1000], np.uint32))
    driver.launch(driver.function(module, "globals"), 1, 8, [out])
    second = np.concatenate([bench.read(out), bench.read(counter)])
    driver.call("cuModuleUnload", module)
    return np.concatenate([first, second])


def _library(bench: Bench) -> Array:
    driver, source = bench.driver, cuda_library("driver")
    library, kernel, function, module = Handle(), Handle(), Handle(), Handle()
    image = bench.image(source)
    driver.call("cuLibraryLoadData", ctypes.byref(library), image, None, None, 0, None, None, 0)
    driver.call("cuLibraryGetKernel", ctypes.byref(kernel), library, b"add")
    driver.call("cuKernelGetFunction", ctypes.byref(function), kernel)
    driver.call("cuLibraryGetModule", ctypes.byref(module), library)
    data = bench.upload(SOURCE[:64])
    driver.launch(function, 1, 64, [data, 5])
    driver.launch(kernel, 1, 64, [data, 7])  # a CUkernel may stand for a CUfunction
    count = ctypes.c_uint()
    driver.call("cuLibraryGetKernelCount", ctypes.byref(count), library)
    missing = driver.code("cuLibraryGetKernel", ctypes.byref(kernel), library, b"no_such_kernel")
    found = bench.read(data)
    return np.concatenate([found, words(count.value, missing, driver.code("cuLibraryUnload", library))])


def _parameters(bench: Bench) -> Array:
    """Offsets and sizes of a kernel's parameters, and INVALID_VALUE behind the last."""
    function = bench.kernel(cuda_library("driver"), "mixed")
    found = []
    for index in range(8):
        offset, bytes_ = ctypes.c_size_t(), ctypes.c_size_t()
        code = bench.driver.code(
            "cuFuncGetParamInfo", function, size(index), ctypes.byref(offset), ctypes.byref(bytes_)
        )
        found += [code] if code else [code, offset.value, bytes_.value]
    return words(*found)


def _mixed(bench: Bench) -> Array:
    out = bench.output(1)
    tensor_map, code = encode_tiled(bench.driver, 7, bench.upload(SOURCE).address, (32, 8), (128,), (8, 8))
    ctypes.memset(tensor_map.address, 0, 128)
    ctypes.c_uint64.from_address(tensor_map.address + 8).value = 3
    triple = (ctypes.c_ubyte * 3)(1, 2, 3)
    arguments = [ctypes.c_ubyte(5), ctypes.c_double(6.5), ctypes.c_short(7), triple, tensor_map, 9, out]
    bench.launch(cuda_library("driver"), "mixed", 1, 1, arguments)
    return np.append(bench.read(out), words(code))


def _attributes(bench: Bench) -> Array:
    """Of a kernel: maximum threads, static shared memory, constant and local bytes; and setting the dynamic shared memory."""
    driver = bench.driver
    function = bench.kernel(cuda_library("driver"), "fixed")
    number, found = ctypes.c_int(), []
    for which in (0, 1, 8):
        driver.call("cuFuncGetAttribute", ctypes.byref(number), which, function)
        found.append(number.value)
    codes = [
        driver.code("cuFuncSetAttribute", function, 8, amount) for amount in (200 * 1024, 225 * 1024, 227 * 1024, -5)
    ]
    driver.call("cuFuncGetAttribute", ctypes.byref(number), 8, function)
    return words(*found, *codes, number.value)


def _dynamic_shared(bench: Bench) -> Array:
    driver, library = bench.driver, cuda_library("driver")
    out = bench.output(1)
    function = bench.kernel(library, "dynamic")
    found = []
    for bytes_ in (1024, 48 * 1024, 48 * 1024 + 4, 100 * 1024, 227 * 1024, 227 * 1024 + 4):
        if bytes_ == 100 * 1024:
            found.append(driver.code("cuFuncSetAttribute", function, 8, 227 * 1024))
        parameters = Arguments([out, bytes_ // 4])
        code = driver.code("cuLaunchKernel", function, 1, 1, 1, 64, 1, 1, bytes_, None, parameters.pointers, None)
        driver.synchronize()
        found += [code] if code else [code, int(bench.read(out)[0])]
    return words(*found)


def _copies(bench: Bench) -> Array:
    """Memsets, device copies, 2D and 3D copies with pitches and offsets."""
    driver = bench.driver
    data, other = bench.upload(SOURCE), bench.output(1024)
    driver.call("cuMemsetD8_v2", pointer(other, 3), ctypes.c_ubyte(0x5A), size(9))
    driver.call("cuMemsetD16_v2", pointer(other, 16), ctypes.c_ushort(0xBEEF), size(5))
    driver.call("cuMemsetD32_v2", pointer(other, 32), 0xDEADBEEF, size(7))
    driver.call("cuMemsetD2D32_v2", pointer(other, 1024), size(64), 0x12345678, size(3), size(4))
    driver.call("cuMemcpyDtoD_v2", pointer(other, 2048), pointer(data, 40), size(100))
    copy = Copy2D(
        src_x=8, src_y=1, src_type=MEMORY_DEVICE, src_device=data.address, src_pitch=64, dst_x=4, dst_y=2,
        dst_type=MEMORY_DEVICE, dst_device=other.address + 2560, dst_pitch=48, width=20, height=5,
    )  # fmt: skip
    driver.call("cuMemcpy2D_v2", ctypes.byref(copy))
    host = np.zeros((3, 4, 24), np.uint8)
    deep = Copy3D(
        src_x=4, src_y=1, src_z=1, src_type=MEMORY_DEVICE, src_device=data.address, src_pitch=32, src_height=6,
        dst_x=8, dst_y=1, dst_z=0, dst_type=MEMORY_HOST, dst_host=host.ctypes.data, dst_pitch=24, dst_height=4,
        width=12, height=3, depth=3,
    )  # fmt: skip
    driver.call("cuMemcpy3D_v2", ctypes.byref(deep))
    return np.concatenate([bench.read(other), host.reshape(-1).view(np.uint32)])


def _expected_copies() -> Array:
    data, other = SOURCE.view(np.uint8), np.full(4096, 0xCD, np.uint8)
    other[3:12] = 0x5A
    other[16:26].view(np.uint16)[:] = 0xBEEF
    other[32:60].view(np.uint32)[:] = 0xDEADBEEF
    other[1024:1280].view(np.uint32).reshape(4, 16)[:, :3] = 0x12345678
    other[2048:2148] = data[40:140]
    for row in range(5):
        to, from_ = 2560 + (row + 2) * 48 + 4, (row + 1) * 64 + 8
        other[to : to + 20] = data[from_ : from_ + 20]
    host = np.zeros((3, 4, 24), np.uint8)
    for z in range(3):
        for y in range(3):
            from_ = ((z + 1) * 6 + y + 1) * 32 + 4
            host[z, y + 1, 8:20] = data[from_ : from_ + 12]
    return np.concatenate([other.view(np.uint32), host.reshape(-1).view(np.uint32)])


def _streams(bench: Bench) -> Array:
    """Order within a stream, across streams by an event, and a query of a stream that is busy."""
    driver, library = bench.driver, cuda_library("driver")
    data = bench.upload(np.zeros(64, np.uint32))
    first, second, event = driver.stream(), driver.stream(), driver.event()
    slow, add = bench.kernel(library, "slow"), bench.kernel(library, "add")
    gate = threading.Event()
    closed = HostFunction(lambda _argument: gate.wait(10) and None)
    driver.call("cuLaunchHostFunc", first, closed, None)
    for _ in range(5):
        driver.launch(slow, 1, 1, [data], stream=first)
    busy = driver.code("cuStreamQuery", first)
    driver.call("cuEventRecord", event, first)
    waiting = driver.code("cuEventQuery", event)
    driver.call("cuStreamWaitEvent", second, event, 0)
    driver.launch(add, 1, 64, [data, 10], stream=second)
    gate.set()
    driver.call("cuStreamSynchronize", second)
    found = [busy, waiting, driver.code("cuStreamQuery", first), driver.code("cuEventQuery", event)]
    found += [
        int(bench.read(data)[0]),
        driver.code("cuStreamDestroy_v2", first),
        driver.code("cuStreamDestroy_v2", second),
    ]
    return words(*found, driver.code("cuEventDestroy_v2", event))


def _events(bench: Bench) -> Array:
    """Times grow with work; events that were not recorded, or record no time, have none."""
    driver, library = bench.driver, cuda_library("driver")
    data = bench.upload(np.zeros(1, np.uint32))
    events = [driver.event() for _ in range(3)]
    untimed, unrecorded = Handle(), driver.event()
    driver.call("cuEventCreate", ctypes.byref(untimed), 2)
    stream = driver.stream()
    for count, event in enumerate(events):
        for _ in range(count):
            driver.launch(bench.kernel(library, "slow"), 1, 1, [data], stream=stream)
        driver.call("cuEventRecord", event, stream)
    driver.call("cuEventRecord", untimed, stream)
    driver.call("cuStreamSynchronize", stream)
    times = []
    milliseconds = ctypes.c_float()
    for start, end in ((0, 1), (1, 2), (0, 2), (2, 0)):
        driver.call("cuEventElapsedTime", ctypes.byref(milliseconds), events[start], events[end])
        times.append(milliseconds.value)
    codes = [
        driver.code("cuEventElapsedTime", ctypes.byref(milliseconds), events[0], other)
        for other in (unrecorded, untimed)
    ]
    grows = [times[0] > 0, times[1] > 0, times[2] > times[0], abs(times[2] - times[0] - times[1]) < 0.1, times[3] < 0]
    return words(*map(int, grows), *codes)


def _host_functions(bench: Bench) -> Array:
    driver, library = bench.driver, cuda_library("driver")
    data, stream = bench.upload(np.zeros(64, np.uint32)), driver.stream()
    pinned = Handle()
    driver.call("cuMemAllocHost_v2", ctypes.byref(pinned), size(256))
    view = np.ctypeslib.as_array(ctypes.cast(pinned, ctypes.POINTER(ctypes.c_uint32)), (64,))
    seen: list[int] = []

    def see(argument: int | None) -> None:
        seen.append((argument or 0) + int(view[3]))

    called = HostFunction(see)
    for value in (4, 5):
        driver.launch(bench.kernel(library, "add"), 1, 64, [data, value], stream=stream)
        driver.call("cuMemcpyDtoHAsync_v2", pinned, pointer(data), size(256), stream)
        driver.call("cuLaunchHostFunc", stream, called, Handle(100 * value))
    driver.call("cuStreamSynchronize", stream)
    found = words(*seen, int(view[63]))
    driver.call("cuMemFreeHost", pinned)
    return found


def _pools(bench: Bench) -> Array:
    """Allocation in stream order: from the device's pool and from one's own."""
    driver, library = bench.driver, cuda_library("driver")
    stream, pool = driver.stream(), Handle()
    found = []
    properties = PoolProperties(allocation_type=1, location_type=1, location_id=driver.device.value)
    driver.call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(properties))
    for own in (False, True):
        address = ctypes.c_uint64()
        if own:
            driver.call("cuMemAllocFromPoolAsync", ctypes.byref(address), size(256), pool, stream)
        else:
            driver.call("cuMemAllocAsync", ctypes.byref(address), size(256), stream)
        buffer = Buffer(address.value, 256)
        driver.call("cuMemsetD32Async", pointer(buffer), 9, size(64), stream)
        driver.launch(bench.kernel(library, "add"), 1, 64, [buffer, 33], stream=stream)
        host = np.zeros(64, np.uint32)
        driver.call("cuMemcpyDtoHAsync_v2", Handle(host.ctypes.data), pointer(buffer), size(256), stream)
        driver.call("cuMemFreeAsync", pointer(buffer), stream)
        driver.call("cuStreamSynchronize", stream)
        found += [int(host[0]), int(host[63])]
    found.append(driver.code("cuMemPoolTrimTo", pool, size(0)))
    found.append(driver.code("cuMemPoolDestroy", pool))
    return words(*found)


def _default_pool(bench: Bench) -> Array:
    """The device's pool, what it keeps, and what is known of its memory."""
    driver, stream = bench.driver, bench.driver.stream()
    pool, current, threshold = Handle(), Handle(), ctypes.c_uint64(1 << 40)
    driver.call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), driver.device)
    driver.call("cuDeviceGetMemPool", ctypes.byref(current), driver.device)
    release_threshold, used = 4, 7
    driver.call("cuMemPoolSetAttribute", pool, release_threshold, ctypes.byref(threshold))
    threshold.value = 0
    driver.call("cuMemPoolGetAttribute", pool, release_threshold, ctypes.byref(threshold))
    address, amount = ctypes.c_uint64(), ctypes.c_uint64()
    driver.call("cuMemAllocAsync", ctypes.byref(address), size(1000), stream)
    driver.call("cuMemPoolGetAttribute", pool, used, ctypes.byref(amount))
    found = [pool.value == current.value, threshold.value >> 20, amount.value > 0]
    inside = ctypes.c_uint64(address.value + 100)
    kind, ordinal, of_pool, context = ctypes.c_uint(), ctypes.c_int(), Handle(), Handle(1)
    for which, result in ((2, kind), (9, ordinal), (17, of_pool), (1, context)):
        found.append(driver.code("cuPointerGetAttribute", ctypes.byref(result), which, inside))
    found += [kind.value, ordinal.value == driver.device.value, of_pool.value == pool.value, not context.value]
    found += [driver.code("cuMemFreeAsync", address, stream), driver.code("cuMemFreeAsync", address, stream)]
    driver.call("cuStreamSynchronize", stream)
    driver.call("cuMemPoolGetAttribute", pool, used, ctypes.byref(amount))
    threshold.value = 0
    driver.call("cuMemPoolSetAttribute", pool, release_threshold, ctypes.byref(threshold))
    return words(*map(int, found), amount.value, driver.code("cuCtxSynchronize"))


def _entry_points(bench: Bench) -> Array:
    """Functions by name and version: found, unknown, of a later version than is asked for, and of one later than the driver."""
    driver, found = bench.driver, []
    for name, version in (
        (b"cuMemAlloc", 13000),
        (b"cuNoSuchFunction", 13000),
        (b"cuLibraryLoadData", 11000),
        (b"cuMemAlloc", driver.version() + 10),
    ):
        function, status = Handle(), ctypes.c_int(9)
        code = driver.code(
            "cuGetProcAddress_v2", name, ctypes.byref(function), version, ctypes.c_uint64(0), ctypes.byref(status)
        )
        found += [code, status.value, int(bool(function.value))]
    return words(*found)


def _peers(bench: Bench) -> Array:
    driver = bench.driver
    if driver.device_count() < 2:
        raise SkippedCheck("one device only")
    device, context = ctypes.c_int(), Handle()
    driver.call("cuDeviceGet", ctypes.byref(device), 1)
    driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    source = bench.upload(SOURCE)
    try:
        driver.call("cuCtxSetCurrent", context)
        target = driver.allocate(SOURCE.nbytes)
        driver.fill(target, 0)
        driver.call("cuMemcpyPeer", pointer(target), context, pointer(source), driver.context, size(SOURCE.nbytes))
        driver.synchronize()
        found = driver.read(target, np.uint32)
        driver.free(target)
    finally:
        driver.call("cuCtxSetCurrent", driver.context)
        driver.call("cuDevicePrimaryCtxRelease_v2", device)
    return found


def _device(bench: Bench) -> Array:
    """The attributes of an sm_90 device that kernels depend on."""
    numbers = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 39, 75, 76, 81, 82, 97, 106, 111, 120)
    return words(*(bench.driver.attribute(number) for number in numbers))


def family() -> Family:
    """The checks."""
    made = Family("driver")

    def add(name: str, covers: str, run: Callable[[Bench], Array], expected: Array | None = None) -> None:
        made.add(name, covers, run, "u32", None if expected is None else lambda: expected)

    ok, bad = 0, INVALID_VALUE
    covers = "cuModuleLoadData cuModuleGetFunction cuModuleGetGlobal cuModuleGetFunctionCount cuModuleUnload"
    add("modules", covers, _modules, words(ok, NOT_FOUND, ok, 16, NOT_FOUND, len(cuda_library("driver").names), ok))
    factors = np.tile(np.arange(1, 5), 2)
    counted = np.concatenate([41 * factors, [42], 1000 * factors, [1001]]).astype(np.uint32)
    add("global variables", "cuModuleGetGlobal cuMemcpyHtoD", _globals, counted)
    covers = "cuLibraryLoadData cuLibraryGetKernel cuKernelGetFunction cuLibraryGetModule cuLibraryGetKernelCount cuLibraryUnload"
    added = np.concatenate([SOURCE[:64] + np.uint32(12), words(len(cuda_library("driver").names), NOT_FOUND, ok)])
    add("libraries", covers, _library, added)
    # sm_90's parameters begin at 0x210 of the constant bank, where the tensor map's place is a multiple of 64.
    layout = [(0, 1), (8, 8), (16, 2), (18, 3), (48, 128), (176, 4), (184, 8)]
    offsets = words(*(x for offset, bytes_ in layout for x in (ok, offset, bytes_)), bad)
    add("parameter offsets", "cuFuncGetParamInfo", _parameters, offsets)
    add("mixed parameters", "cuLaunchKernel", _mixed, words(5 + 60 + 700 + 3000 + 3 + 900000, ok))
    limit = 227 * 1024
    attributes = words(256, 2048, 48 * 1024 - 2048, ok, ok, bad, bad, 225 * 1024)
    add("function attributes", "cuFuncGetAttribute cuFuncSetAttribute", _attributes, attributes)
    results: list[int] = []
    for bytes_ in (1024, 48 * 1024):
        results += [ok, _squares(bytes_)]
    results += [bad, ok, ok, _squares(100 * 1024), ok, _squares(limit), bad]
    add("dynamic shared memory", "cuFuncSetAttribute cuLaunchKernel", _dynamic_shared, words(*results))
    covers = "cuMemsetD8 cuMemsetD16 cuMemsetD32 cuMemsetD2D32 cuMemcpyDtoD cuMemcpy2D cuMemcpy3D"
    add("copies", covers, _copies, _expected_copies())
    covers = (
        "cuStreamCreate cuStreamQuery cuStreamWaitEvent cuStreamSynchronize cuStreamDestroy cuEventRecord cuEventQuery"
    )
    add("streams", covers, _streams, words(NOT_READY, NOT_READY, ok, ok, 15, ok, ok, ok))
    add("events", "cuEventCreate cuEventRecord cuEventElapsedTime", _events, words(1, 1, 1, 1, 1, 400, 400))
    add("host functions", "cuLaunchHostFunc cuMemAllocHost cuMemcpyDtoHAsync", _host_functions, words(404, 509, 9))
    covers = "cuMemPoolCreate cuMemAllocAsync cuMemAllocFromPoolAsync cuMemFreeAsync cuMemPoolTrimTo cuMemPoolDestroy"
    add("memory pools", covers, _pools, words(42, 42, 42, 42, ok, ok))
    covers = (
        "cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuMemPoolSetAttribute cuMemPoolGetAttribute cuPointerGetAttribute"
    )
    add("default pool", covers, _default_pool)
    add("entry points", "cuGetProcAddress", _entry_points)
    add("peer copy", "cuMemcpyPeer cuDevicePrimaryCtxRetain", _peers, SOURCE)
    add("device attributes", "cuDeviceGetAttribute", _device)
    return made


def _squares(bytes_: int) -> int:
    count = bytes_ // 4
    return (count - 1) ** 2 + (count // 2) ** 2
