"""The emulated driver through cuda-bindings, NVIDIA's Python bindings of the driver API: what dnncore may take from it."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.conformance.compiler import compile_source
from emulator.tests.driver_api import LIBRARY, Array, Cuda, image, needs_driver

pytest.importorskip("cuda.bindings", reason="needs cuda-bindings: make .venv/.dev")
pytestmark = needs_driver

if LIBRARY:
    ctypes.CDLL(LIBRARY)  # cuda-bindings ask for libcuda.so.1, and get the one that is loaded
from cuda.bindings import driver  # noqa: E402

RESULT, ATTRIBUTE = driver.CUresult, driver.CUfunction_attribute
DEVICE = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
GLOBAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL


class Refused(Exception):
    """A call that did not return CUDA_SUCCESS."""


def call(name: str, *arguments: object) -> Any:
    """What a function returns beside its status."""
    status, *results = getattr(driver, name)(*arguments)
    if status != RESULT.CUDA_SUCCESS:
        raise Refused(f"{name}: {status.name}")
    return results[0] if len(results) == 1 else tuple(results)


@pytest.fixture
def context() -> Iterator[Any]:
    """A context of its own, current in this thread."""
    call("cuInit", 0)
    made = call("cuCtxCreate", None, 0, call("cuDeviceGet", 0))
    yield made
    driver.cuCtxDestroy(made)


@pytest.fixture
def stream(context: Any) -> Any:
    return call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)


@pytest.fixture
def scale(context: Any) -> Any:
    """scale(float* x, float factor, int n) as a CUfunction of a library."""
    library = call("cuLibraryLoadData", image(), None, None, 0, None, None, 0)
    return call("cuKernelGetFunction", call("cuLibraryGetKernel", library, b"scale"))


class Parameters:
    """Kernel parameters and the array of pointers to them, which is passed by its address."""

    def __init__(self, layout: str, *values: object) -> None:
        self._values = [
            ctypes.create_string_buffer(struct.pack(f"<{kind}", x)) for kind, x in zip(layout, values, strict=True)
        ]
        self._pointers = (ctypes.c_void_p * len(self._values))(*map(ctypes.addressof, self._values))
        self.address = ctypes.addressof(self._pointers)


def scale_by(factor: float, address: int, count: int = 8) -> Parameters:
    return Parameters("Qfi", address, factor, count)


def upload(array: Array) -> int:
    address = int(call("cuMemAlloc", array.nbytes))
    call("cuMemcpyHtoD", address, array.ctypes.data, array.nbytes)
    return address


def floats(address: int, count: int = 8) -> list[float]:
    found = np.empty(count, np.float32)
    call("cuMemcpyDtoH", found.ctypes.data, address, found.nbytes)
    return [float(x) for x in found]


def ones() -> int:
    return upload(np.ones(8, np.float32))


def kernel_node(function: Any, parameters: Parameters) -> Any:
    node = driver.CUDA_KERNEL_NODE_PARAMS()
    node.func, node.kernelParams = function, parameters.address
    node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1
    node.blockDimX = 32
    return node


def memset_node(address: int, value: int, nbytes: int) -> Any:
    node = driver.CUDA_MEMSET_NODE_PARAMS()
    node.dst, node.value, node.elementSize, node.width, node.height, node.pitch = address, value, 1, nbytes, 1, nbytes
    return node


def copy_node(to: int, source: int, nbytes: int) -> Any:
    node = driver.CUDA_MEMCPY3D()
    node.srcMemoryType = node.dstMemoryType = DEVICE
    node.dstDevice, node.srcDevice, node.WidthInBytes, node.Height, node.Depth = to, source, nbytes, 1, 1
    return node


def run(graph: Any, stream: Any) -> None:
    call("cuGraphLaunch", graph, stream)
    call("cuStreamSynchronize", stream)


def test_each_function_is_the_version_that_the_bindings_were_made_for() -> None:
    """A pointer of another version would be called with other parameters."""
    internal = pytest.importorskip("cuda.bindings._internal.driver", reason="needs cuda-bindings of 13.4 or later")
    library = Cuda().library
    call("cuDriverGetVersion")  # which loads them all
    wrong = []
    for name, found in internal._inspect_function_pointers().items():
        symbol = getattr(library, name.removeprefix("__"), None)
        there = ctypes.cast(symbol, ctypes.c_void_p).value if symbol else 0
        # Not found: functions newer than the driver; those of OpenGL, EGL, VDPAU and the profiler, which are not in cuda.h.
        if found not in (0, there):
            wrong.append(name)
    assert wrong == []


def test_contexts(context: Any) -> None:
    assert int(call("cuCtxGetCurrent")) == int(context)
    assert int(call("cuCtxPopCurrent")) == int(context)
    assert int(call("cuCtxGetCurrent")) != int(context)
    call("cuCtxPushCurrent", int(context))
    assert int(call("cuCtxGetDevice")) == 0
    name = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    assert call("cuDeviceGetAttribute", name, 0) == 9


def test_modules_libraries_and_attributes(context: Any, scale: Any) -> None:
    module = call("cuModuleLoadData", image())
    function = call("cuModuleGetFunction", module, b"shape_static")
    assert call("cuFuncGetAttribute", ATTRIBUTE.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function) == 4096
    name = ATTRIBUTE.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    call("cuFuncSetAttribute", scale, name, 100_000)
    assert call("cuFuncGetAttribute", name, scale) == 100_000
    with pytest.raises(Refused, match="CUDA_ERROR_INVALID_VALUE"):
        call("cuFuncSetAttribute", scale, name, 300_000)
    with pytest.raises(Refused, match="CUDA_ERROR_NOT_FOUND"):
        call("cuModuleGetFunction", module, b"no_such_kernel")
    call("cuModuleUnload", module)


def test_launches_take_the_address_of_an_array_of_pointers(stream: Any, scale: Any) -> None:
    x = ones()
    call("cuMemcpyHtoDAsync", x, np.full(8, 2, np.float32).ctypes.data, 32, stream)
    one, two = scale_by(3, x), scale_by(5, x, 4)
    call("cuLaunchKernel", scale, 1, 1, 1, 32, 1, 1, 0, stream, one.address, 0)
    call("cuLaunchKernel", int(scale), 1, 1, 1, 32, 1, 1, 0, int(stream), two.address, 0)
    call("cuStreamSynchronize", stream)
    assert floats(x) == [30.0] * 4 + [6.0] * 4


def test_launches_with_attributes(stream: Any, context: Any) -> None:
    shape = call("cuModuleGetFunction", call("cuModuleLoadData", image()), b"shape")
    out = upload(np.zeros(16, np.int32))
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = 4, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    config.hStream, config.sharedMemBytes = stream, 128
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = 2, 1, 1
    config.attrs, config.numAttrs = [attribute], 1
    parameters = Parameters("Q", out)
    call("cuLaunchKernelEx", config, shape, parameters.address, 0)
    call("cuStreamSynchronize", stream)
    found = np.empty(16, np.int32)
    call("cuMemcpyDtoH", found.ctypes.data, out, found.nbytes)
    assert (
        found.reshape(4, 4)[:, :3].tolist() == [[0, 2, 128], [1, 2, 128]] * 2
    )  # rank, blocks of the cluster, shared bytes


def test_streams_and_events(context: Any, stream: Any, scale: Any) -> None:
    other, x = call("cuStreamCreate", 1), ones()
    start = call("cuEventCreate", driver.CUevent_flags.CU_EVENT_DEFAULT.value)
    end = call("cuEventCreate", driver.CUevent_flags.CU_EVENT_DEFAULT.value)
    assert int(call("cuStreamGetCtx", stream)) == int(context)
    call("cuEventRecord", start, stream)
    call("cuMemsetD8Async", x, 0, 16, stream)
    call("cuEventRecord", end, stream)
    call("cuStreamWaitEvent", other, end, 0)
    parameters = scale_by(7, x)
    call("cuLaunchKernel", scale, 1, 1, 1, 32, 1, 1, 0, other, parameters.address, 0)
    call("cuStreamSynchronize", other)
    call("cuStreamQuery", stream)
    call("cuEventQuery", end)
    call("cuEventSynchronize", end)
    assert call("cuEventElapsedTime", start, end) >= 0
    assert floats(x) == [0.0] * 4 + [7.0] * 4
    call("cuEventDestroy", start)
    call("cuStreamDestroy", other)


def test_copies(stream: Any) -> None:
    host, back = np.arange(8, dtype=np.float32), np.empty(8, np.float32)
    x, y, z = ones(), ones(), ones()
    call("cuMemcpyHtoDAsync", x, host.ctypes.data, host.nbytes, stream)
    call("cuMemcpyDtoDAsync", y, x, host.nbytes, stream)
    call("cuMemcpyAsync", z, y, host.nbytes, stream)
    call("cuMemcpyDtoHAsync", back.ctypes.data, z, host.nbytes, stream)
    call("cuStreamSynchronize", stream)
    assert np.array_equal(back, host)


def test_pointers(context: Any) -> None:
    x, names = ones(), driver.CUpointer_attribute
    assert call("cuPointerGetAttribute", names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, x + 3) == DEVICE
    assert call("cuPointerGetAttribute", names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, x + 3) == 0
    assert int(call("cuPointerGetAttribute", names.CU_POINTER_ATTRIBUTE_CONTEXT, x + 3)) == int(context)
    assert int(call("cuPointerGetAttribute", names.CU_POINTER_ATTRIBUTE_RANGE_SIZE, x + 3)) == 32
    with pytest.raises(Refused, match="CUDA_ERROR_INVALID_VALUE"):
        call("cuPointerGetAttribute", names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, np.ones(8).ctypes.data)


def test_stream_ordered_memory(stream: Any, scale: Any) -> None:
    pool, names = call("cuDeviceGetDefaultMemPool", 0), driver.CUmemPool_attribute
    threshold = names.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    call("cuMemPoolSetAttribute", pool, threshold, driver.cuuint64_t(2**64 - 1))
    assert int(call("cuMemPoolGetAttribute", pool, threshold)) == 2**64 - 1
    x, y = call("cuMemAllocAsync", 32, stream), call("cuMemAllocFromPoolAsync", 32, pool, stream)
    call("cuMemsetD8Async", x, 0, 32, stream)
    call("cuMemcpyDtoDAsync", y, x, 32, stream)
    parameters = scale_by(2, int(y))
    call("cuLaunchKernel", scale, 1, 1, 1, 32, 1, 1, 0, stream, parameters.address, 0)
    call("cuMemFreeAsync", x, stream)
    for again in ("cuMemFreeAsync", x, stream), ("cuMemFree", x):
        with pytest.raises(Refused, match="CUDA_ERROR_INVALID_VALUE"):
            call(*again)
    call("cuStreamSynchronize", stream)
    assert floats(int(y)) == [0.0] * 8
    call("cuMemFreeAsync", y, stream)
    with pytest.raises(Refused, match="CUDA_ERROR_INVALID_VALUE"):
        call("cuMemFreeAsync", 0x1234, stream)
    used = names.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
    call("cuStreamSynchronize", stream)
    assert int(call("cuMemPoolGetAttribute", pool, used)) == 0
    call("cuMemPoolSetAttribute", pool, threshold, driver.cuuint64_t(0))


def test_tensor_maps(context: Any) -> None:
    names = driver
    x = upload(np.zeros((4, 6, 6, 64), np.float16))
    flags = (
        names.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        names.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        names.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        names.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    kind = names.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16

    def long(*of: int) -> list[Any]:
        return [names.cuuint64_t(n) for n in of]

    def word(*of: int) -> list[Any]:
        return [names.cuuint32_t(n) for n in of]

    sizes, strides = long(64, 6, 6, 4), long(128, 768, 4608)
    tiled = call("cuTensorMapEncodeTiled", kind, 4, x, sizes, strides, word(64, 2, 2, 1), word(1, 1, 1, 1), *flags)
    columns = call(
        "cuTensorMapEncodeIm2col", kind, 4, x, sizes, strides, [-1, -1], [-1, -1], 64, 32, word(1, 1, 1, 1), *flags
    )
    assert len(bytes(ctypes.string_at(tiled.getPtr(), 128))) == 128
    assert [int(word) for word in tiled.opaque] != [int(word) for word in columns.opaque]
    with pytest.raises(Refused, match="CUDA_ERROR_INVALID_VALUE"):
        call("cuTensorMapEncodeTiled", kind, 4, x, sizes, strides, word(512, 2, 2, 1), word(1, 1, 1, 1), *flags)


def test_a_captured_graph(stream: Any, scale: Any) -> None:
    x = ones()
    call("cuStreamBeginCapture", stream, GLOBAL)
    parameters = scale_by(3, x)
    call("cuLaunchKernel", scale, 1, 1, 1, 32, 1, 1, 0, stream, parameters.address, 0)
    assert call("cuStreamIsCapturing", stream) == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    graph = call("cuStreamEndCapture", stream)
    executable = call("cuGraphInstantiate", graph, 0)
    run(executable, stream)
    run(executable, stream)
    assert floats(x) == [9.0] * 8


def test_a_graph_built_node_by_node(context: Any, stream: Any, scale: Any) -> None:
    x, y, z = ones(), ones(), ones()
    graph = call("cuGraphCreate", 0)
    three, five = scale_by(3, x), scale_by(5, y)
    first = call("cuGraphAddKernelNode", graph, None, 0, kernel_node(scale, three))
    fill = call("cuGraphAddMemsetNode", graph, [first], 1, memset_node(x, 0, 16), context)
    copy = call("cuGraphAddMemcpyNode", graph, [fill], 1, copy_node(y, x, 32), context)
    del three  # a node has its own copy of the parameters
    executable = call("cuGraphInstantiate", graph, 0)
    call("cuGraphUpload", executable, stream)
    run(executable, stream)
    assert (floats(x), floats(y)) == ([0.0] * 4 + [3.0] * 4,) * 2

    call("cuGraphExecKernelNodeSetParams", executable, first, kernel_node(scale, five))
    call("cuGraphExecMemsetNodeSetParams", executable, fill, memset_node(z, 0, 8), context)
    call("cuGraphExecMemcpyNodeSetParams", executable, copy, copy_node(x, z, 32), context)
    run(executable, stream)
    assert (floats(x), floats(y)) == ([0.0] * 2 + [1.0] * 6, [0.0] * 4 + [15.0] * 4)

    call("cuGraphExecDestroy", executable)
    call("cuGraphDestroy", graph)
    with pytest.raises(Refused, match="CUDA_ERROR_INVALID_VALUE"):
        call("cuGraphLaunch", executable, stream)


def test_nodes_of_whichever_type(context: Any, stream: Any, scale: Any) -> None:
    """cuGraphAddNode, and what it takes for cuGraphNodeSetParams and cuGraphExecNodeSetParams."""
    x, y, types = ones(), ones(), driver.CUgraphNodeType

    def node_of(kind: str, **fields: object) -> Any:
        made = driver.CUgraphNodeParams()
        made.type = getattr(types, f"CU_GRAPH_NODE_TYPE_{kind.upper()}")
        for name, value in fields.items():
            setattr(getattr(made, kind), name, value)
        return made

    def kernel(parameters: Parameters) -> Any:
        shape = dict.fromkeys(("gridDimX", "gridDimY", "gridDimZ", "blockDimY", "blockDimZ"), 1)
        return node_of("kernel", func=scale, blockDimX=32, kernelParams=parameters.address, **shape)

    def memset(value: int) -> Any:
        return node_of("memset", dst=x, value=value, elementSize=4, width=8, height=1, ctx=context)

    two, three = scale_by(2, x), scale_by(3, x)
    graph = call("cuGraphCreate", 0)
    fill = call("cuGraphAddNode", graph, None, None, 0, memset(0x3F800000))
    times = call("cuGraphAddNode", graph, [fill], None, 1, kernel(two))
    call("cuGraphAddNode", graph, [times], None, 1, node_of("memcpy", copyCtx=context, copyParams=copy_node(y, x, 32)))
    executable = call("cuGraphInstantiate", graph, 0)
    run(executable, stream)
    assert floats(y) == [2.0] * 8
    assert [call("cuGraphNodeGetType", node) for node in (fill, times)] == [
        types.CU_GRAPH_NODE_TYPE_MEMSET, types.CU_GRAPH_NODE_TYPE_KERNEL,
    ]  # fmt: skip

    call("cuGraphExecNodeSetParams", executable, times, kernel(three))
    call("cuGraphNodeSetParams", fill, memset(0x40800000))  # which is for executable graphs made from now on
    run(executable, stream)
    assert floats(y) == [3.0] * 8
    run(call("cuGraphInstantiate", graph, 0), stream)
    assert floats(y) == [8.0] * 8
    with pytest.raises(Refused, match="CUDA_ERROR_INVALID_VALUE"):
        call("cuGraphExecNodeSetParams", executable, times, memset(0))


SOURCE = """
extern "C" __global__ void beyond(float* x, int count) { x[threadIdx.x + count] = 1; }
extern "C" __global__ void raced(float* x, int count) { x[count] = threadIdx.x; }
"""


@pytest.mark.skipif(os.environ.get("EMU_BUILD", "check") != "check", reason="needs modules with checks")
@pytest.mark.parametrize(
    ("kernel", "code", "message"),
    [
        ("beyond", "CUDA_ERROR_ILLEGAL_ADDRESS", "kernel beyond, block (0,0,0) thread (1,0,0): out-of-bounds"),
        ("raced", "CUDA_ERROR_LAUNCH_FAILED", "kernel raced, block (0,0,0) thread (1,0,0): data race on global memory"),
    ],
)
@pytest.mark.parametrize("how", ["launch", "launch of attributes", "graph", "changed graph"])
def test_the_checks_see_every_launch(
    kernel: str, code: str, message: str, how: str, context: Any, stream: Any, scale: Any, tmp_path: Path
) -> None:
    library = call("cuLibraryLoadData", compile_source(SOURCE, ".cu", tmp_path), None, None, 0, None, None, 0)
    function = call("cuKernelGetFunction", call("cuLibraryGetKernel", library, kernel.encode()))
    parameters = Parameters("Qi", ones(), 7)
    node = kernel_node(function, parameters)
    node.blockDimX = 8
    if how == "launch":
        call("cuLaunchKernel", function, 1, 1, 1, 8, 1, 1, 0, stream, parameters.address, 0)
    elif how == "launch of attributes":
        config = driver.CUlaunchConfig()
        config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.blockDimX, config.hStream = 8, stream
        call("cuLaunchKernelEx", config, function, parameters.address, 0)
    else:
        graph, harmless = call("cuGraphCreate", 0), scale_by(1, ones())
        first = kernel_node(scale, harmless) if how == "changed graph" else node
        place = call("cuGraphAddKernelNode", graph, None, 0, first)
        executable = call("cuGraphInstantiate", graph, 0)
        call("cuGraphExecKernelNodeSetParams", executable, place, node)
        call("cuGraphLaunch", executable, stream)
    with pytest.raises(Refused, match=code):
        call("cuStreamSynchronize", stream)
    assert message in Cuda().last_error()
