"""Devices, contexts, memory, copies and entry points of the emulated driver."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

from emulator.tests.driver_api import Cuda, CudaError, Gate, image, needs_driver, session

pytestmark = needs_driver

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INVALID_CONTEXT, CONTEXT_IS_DESTROYED = 1, 2, 3, 201, 709
INVALID_HANDLE, NOT_FOUND, NOT_REGISTERED, NOT_SUPPORTED = 400, 500, 713, 801


def test_device() -> None:
    cuda = Cuda()
    assert cuda.value("cuDeviceGetCount", ctypes.c_int) >= 1
    name = ctypes.create_string_buffer(64)
    cuda.cuDeviceGetName(name, 64, 0)
    assert name.value == b"Emulated H200 (CPU)"
    assert cuda.value("cuDeviceGetAttribute", ctypes.c_int, 16, 0) == 132  # multiprocessors
    assert cuda.value("cuDeviceGetAttribute", ctypes.c_int, 97, 0) == 232448  # opt-in shared memory
    bus = ctypes.create_string_buffer(32)
    cuda.cuDeviceGetPCIBusId(bus, 32, 0)
    assert cuda.value("cuDeviceGetByPCIBusId", ctypes.c_int, bus) == 0
    assert cuda.code("cuDeviceGet", ctypes.byref(ctypes.c_int()), 99) == 101


def test_error_names() -> None:
    cuda = Cuda()
    text = ctypes.c_char_p()
    cuda.cuGetErrorName(700, ctypes.byref(text))
    assert text.value == b"CUDA_ERROR_ILLEGAL_ADDRESS"
    cuda.cuGetErrorString(700, ctypes.byref(text))
    assert text.value == b"an illegal memory access was encountered"
    assert cuda.code("cuGetErrorName", 12345, ctypes.byref(text)) == INVALID_VALUE


def test_what_is_not_emulated_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert Cuda().code("cuMemAllocManaged", 0, 0, 0) == NOT_SUPPORTED
    assert "cuMemAllocManaged is not emulated" in capfd.readouterr().err


def test_proc_address_follows_the_version() -> None:
    cuda = Cuda()
    address, status = ctypes.c_void_p(), ctypes.c_int()

    def resolve(name: bytes, version: int) -> str | None:
        cuda.cuGetProcAddress(name, ctypes.byref(address), version, 0, ctypes.byref(status))
        for suffix in ("", "_v2", "_v3", "_v4"):
            function = getattr(cuda.library, name.decode() + suffix, None)
            if address.value and function and ctypes.cast(function, ctypes.c_void_p).value == address.value:
                return suffix
        return None

    assert resolve(b"cuCtxCreate", 4000) == "_v2"
    assert resolve(b"cuCtxCreate", 12000) == "_v3"
    assert resolve(b"cuCtxCreate", 13000) == "_v4"
    assert resolve(b"cuMemAlloc", 13000) == "_v2"
    assert resolve(b"cuNonsense", 13000) is None
    assert status.value == 1  # symbol not found
    assert resolve(b"cuCtxCreate", 1000) is None
    assert status.value == 2  # version not sufficient


def test_contexts_are_a_stack_of_each_thread() -> None:
    with session() as first, session() as second:
        cuda = first.cuda
        assert cuda.handle("cuCtxGetCurrent") == second.context
        assert cuda.handle("cuCtxPopCurrent") == second.context
        assert cuda.handle("cuCtxGetCurrent") == first.context
        seen: list[int] = []
        thread = threading.Thread(
            target=lambda: seen.append(cuda.code("cuMemAlloc", ctypes.byref(ctypes.c_size_t()), 4))
        )
        thread.start()
        thread.join()
        assert seen == [INVALID_CONTEXT]
        cuda.cuCtxPushCurrent(second.context)


def test_destroyed_context_is_recognised() -> None:
    with session() as first:
        cuda = first.cuda
        second = cuda.handle("cuCtxCreate", 0, 0)
        stream = cuda.handle("cuStreamCreate", 0)
        cuda.cuCtxPushCurrent(second)
        cuda.cuCtxDestroy(second)  # pops one of its two places in the stack
        assert cuda.code("cuMemGetInfo", None, None) == CONTEXT_IS_DESTROYED
        cuda.cuCtxPopCurrent(None)
        assert cuda.code("cuCtxPushCurrent", second) == INVALID_CONTEXT
        assert cuda.code("cuStreamSynchronize", stream) == INVALID_HANDLE


def test_primary_context_is_shared_and_counted() -> None:
    cuda = Cuda()
    first, second = cuda.handle("cuDevicePrimaryCtxRetain", 0), cuda.handle("cuDevicePrimaryCtxRetain", 0)
    assert first == second
    cuda.cuDevicePrimaryCtxRelease(0)
    cuda.cuCtxPushCurrent(first)
    cuda.cuCtxPopCurrent(None)
    cuda.cuDevicePrimaryCtxRelease(0)
    assert cuda.code("cuCtxPushCurrent", first) == INVALID_CONTEXT


def test_memory_is_counted_and_returned() -> None:
    with session() as s:
        cuda = s.cuda
        before = cuda.counter("allocations:0"), cuda.counter("bytes:0")
        address = cuda.handle("cuMemAlloc", 1000)
        assert cuda.counter("allocations:0") == before[0] + 1
        assert cuda.counter("bytes:0") == before[1] + 1024
        base, size = ctypes.c_size_t(), ctypes.c_size_t()
        cuda.cuMemGetAddressRange(ctypes.byref(base), ctypes.byref(size), address + 999)
        assert (base.value, size.value) == (address, 1000)
        cuda.cuMemFree(address)
        assert cuda.code("cuMemFree", address) == INVALID_VALUE
        assert (cuda.counter("allocations:0"), cuda.counter("bytes:0")) == before
        assert cuda.code("cuMemAlloc", ctypes.byref(base), 1 << 50) == OUT_OF_MEMORY


def test_closing_a_context_frees_what_it_had() -> None:
    cuda = Cuda()
    names = ("allocations", "bytes", "contexts", "streams", "events", "modules", "host_allocations")
    before = [cuda.counter(name) for name in names]
    with session() as s:
        s.ones(100), s.stream(), s.event()
        cuda.handle("cuMemHostAlloc", 100, 0)
        assert [cuda.counter(name) for name in names] != before
    assert [cuda.counter(name) for name in names] == before


def test_copies() -> None:
    with session() as s:
        cuda = s.cuda
        values = np.arange(12, dtype=np.int32)
        source = s.upload(values)
        target = cuda.handle("cuMemAlloc", values.nbytes)
        cuda.cuMemcpyDtoD(target, source, values.nbytes)
        assert s.ints(target, 12) == list(range(12))
        cuda.cuMemsetD32(target + 4, 7, 2)
        assert s.ints(target, 4) == [0, 7, 7, 3]
        assert cuda.code("cuMemcpyHtoD", target + 4, values.ctypes.data, values.nbytes) == INVALID_VALUE
        assert "4 bytes into an allocation" in cuda.last_error()


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        ("srcXInBytes", ctypes.c_size_t), ("srcY", ctypes.c_size_t), ("srcMemoryType", ctypes.c_int),
        ("srcHost", ctypes.c_void_p), ("srcDevice", ctypes.c_uint64), ("srcArray", ctypes.c_void_p),
        ("srcPitch", ctypes.c_size_t), ("dstXInBytes", ctypes.c_size_t), ("dstY", ctypes.c_size_t),
        ("dstMemoryType", ctypes.c_int), ("dstHost", ctypes.c_void_p), ("dstDevice", ctypes.c_uint64),
        ("dstArray", ctypes.c_void_p), ("dstPitch", ctypes.c_size_t), ("WidthInBytes", ctypes.c_size_t),
        ("Height", ctypes.c_size_t),
    ]  # fmt: skip


def test_pitched_copy() -> None:
    with session() as s:
        cuda = s.cuda
        pitch, address = ctypes.c_size_t(), ctypes.c_size_t()
        cuda.cuMemAllocPitch(ctypes.byref(address), ctypes.byref(pitch), 12, 4, 4)
        assert pitch.value == 512
        values = np.arange(15, dtype=np.int32).reshape(3, 5)
        copy = Copy2D(
            srcXInBytes=4, srcY=1, srcMemoryType=1, srcHost=values.ctypes.data, srcPitch=20,
            dstMemoryType=2, dstDevice=address.value, dstPitch=pitch.value, dstY=1, WidthInBytes=12, Height=2,
        )  # fmt: skip
        cuda.cuMemcpy2D(ctypes.byref(copy))
        assert s.ints(address.value + pitch.value, 3) == [6, 7, 8]
        assert s.ints(address.value + 2 * pitch.value, 3) == [11, 12, 13]
        copy.Height = 4  # one row too many for the allocation
        assert cuda.code("cuMemcpy2D", ctypes.byref(copy)) == INVALID_VALUE


def test_pageable_memory_is_read_at_the_call() -> None:
    with session() as s:
        values, target = np.ones(4, np.float32), s.ones(4)
        stream = s.stream()
        s.cuda.cuMemcpyHtoDAsync(target, values.ctypes.data, 16, stream)
        values[:] = 5  # too late
        s.cuda.cuStreamSynchronize(stream)
        assert s.floats(target, 4) == [1.0] * 4


def test_registered_memory_is_read_when_the_stream_comes_to_it_and_stays_registered_until_then() -> None:
    with session() as s:
        values, target, stream = np.ones(4, np.float32), s.ones(4), s.stream()
        s.cuda.cuMemHostRegister(values.ctypes.data, 16, 0)
        gate = Gate(s.cuda, stream)
        s.cuda.cuMemcpyHtoDAsync(target, values.ctypes.data, 16, stream)
        values[:] = 5  # in time
        opening = threading.Timer(0.1, gate.open)
        opening.start()
        s.cuda.cuMemHostUnregister(values.ctypes.data)  # waits
        values[:] = 7  # too late
        assert s.floats(target, 4) == [5.0] * 4
        assert s.cuda.code("cuMemHostUnregister", values.ctypes.data) == NOT_REGISTERED
        opening.join()


def test_pointer_attributes() -> None:
    with session() as s:
        cuda = s.cuda
        address, host = s.ones(4), cuda.handle("cuMemHostAlloc", 64, 0)

        def attribute(which: int, pointer: int) -> int:
            value = ctypes.c_uint64(0)
            cuda.cuPointerGetAttribute(ctypes.byref(value), which, pointer)
            return value.value

        assert (attribute(2, address), attribute(2, host)) == (2, 1)  # memory type: device, host
        assert attribute(1, address) == s.context
        assert attribute(11, address + 5) == address  # start of the range
        with pytest.raises(CudaError):
            attribute(2, 4096)
        cuda.cuMemFreeHost(host)
        assert cuda.code("cuMemFreeHost", host) == INVALID_VALUE


def test_foreign_modules_are_refused() -> None:
    with session() as s:
        module = ctypes.byref(ctypes.c_size_t())
        cubin = bytearray(image())
        cubin[18:20] = (190).to_bytes(2, "little")  # e_machine: EM_CUDA
        for data, code, words in (
            (bytes(cubin), 209, "cubin"),
            (b"//\n.version 9.0\n", 218, "PTX without a .target"),
            (b"nonsense that is no module", 200, "neither"),
            (image(abi=99), 200, "abi 99"),
        ):
            assert s.cuda.code("cuModuleLoadData", module, data) == code
            assert words in s.cuda.last_error()


def test_pools_follow_the_stream() -> None:
    with session() as s:
        cuda, stream = s.cuda, s.stream()
        pool, used = cuda.handle("cuDeviceGetDefaultMemPool", 0), ctypes.c_uint64()
        address = cuda.handle("cuMemAllocAsync", 1000, stream)
        cuda.cuMemPoolGetAttribute(pool, 7, ctypes.byref(used))
        assert used.value == 1024
        cuda.cuMemFreeAsync(address, stream)
        cuda.cuStreamSynchronize(stream)
        cuda.cuMemPoolGetAttribute(pool, 7, ctypes.byref(used))
        assert used.value == 0
        assert cuda.code("cuMemFreeAsync", address, stream) == INVALID_VALUE


def test_peer_access() -> None:
    if Cuda().value("cuDeviceGetCount", ctypes.c_int) < 2:
        pytest.skip("needs EMU_DEVICES=2")
    with session(0) as first, session(1) as second:
        cuda = first.cuda
        there = second.ones(4)
        assert cuda.code("cuCtxEnablePeerAccess", second.context, 0) == INVALID_CONTEXT  # of a device to itself
        cuda.cuCtxEnablePeerAccess(first.context, 0)
        assert cuda.code("cuCtxEnablePeerAccess", first.context, 0) == 704
        cuda.cuCtxPushCurrent(first.context)
        here = first.upload(np.zeros(4, np.float32))
        cuda.cuMemcpyPeer(here, first.context, there, second.context, 16)
        assert first.floats(here, 4) == [1.0] * 4
        cuda.cuCtxPopCurrent(None)
        cuda.cuCtxDisablePeerAccess(first.context)
        assert cuda.code("cuCtxDisablePeerAccess", first.context) == 705
