"""Graphs: captured from streams, built by hand, launched, updated."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance.checks import Family
from emulator.conformance.cuda import Arguments, Driver, Handle
from emulator.conformance.cuda_types import HostFunction, KernelNode, MemsetNode, UpdateResult
from emulator.conformance.families.driver import SOURCE, pointer, size, words
from emulator.conformance.sources import cuda_library

if TYPE_CHECKING:
    from emulator.conformance.bench import Bench
    from emulator.conformance.cuda import Buffer
    from emulator.conformance.values import Array

CAPTURE_GLOBAL, CAPTURE_THREAD, CAPTURE_RELAXED = range(3)


def _instantiate(driver: Driver, graph: Handle) -> Handle:
    executable = Handle()
    driver.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
    return executable


def _node_count(driver: Driver, graph: Handle) -> int:
    count = ctypes.c_size_t()
    driver.call("cuGraphGetNodes", graph, None, ctypes.byref(count))
    return count.value


def _end(driver: Driver, stream: Handle) -> Handle:
    graph = Handle()
    driver.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    return graph


def _captured(bench: Bench) -> Array:
    """Two streams joined by events become one graph; nothing runs before its launch."""
    driver, add = bench.driver, bench.kernel(cuda_library("driver"), "add")
    data, other = bench.upload(np.zeros(64, np.uint32)), bench.upload(SOURCE[:64])
    first, second, fork, join = driver.stream(), driver.stream(), driver.event(), driver.event()
    driver.call("cuStreamBeginCapture_v2", first, CAPTURE_THREAD)
    driver.call("cuMemsetD32Async", pointer(data), 5, size(64), first)
    driver.call("cuEventRecord", fork, first)
    driver.call("cuStreamWaitEvent", second, fork, 0)
    driver.launch(add, 1, 64, [data, 7], stream=first)
    driver.launch(add, 1, 64, [other, 1], stream=second)
    driver.call("cuEventRecord", join, second)
    driver.call("cuStreamWaitEvent", first, join, 0)
    driver.call("cuMemcpyDtoDAsync_v2", pointer(data), pointer(other), size(16), first)
    status = ctypes.c_int()
    driver.call("cuStreamIsCapturing", first, ctypes.byref(status))
    graph = _end(driver, first)
    before = bench.read(data)
    executable = _instantiate(driver, graph)
    for _ in range(3):
        driver.call("cuGraphLaunch", executable, first)
    driver.call("cuStreamSynchronize", first)
    found = [bench.read(data), bench.read(other), before, words(status.value, _node_count(driver, graph))]
    found.append(words(driver.code("cuGraphExecDestroy", executable), driver.code("cuGraphDestroy", graph)))
    return np.concatenate(found)


def _captured_expected() -> Array:
    other = SOURCE[:64] + np.uint32(3)
    data = np.concatenate([other[:4], np.full(60, 12, np.uint32)])
    return np.concatenate([data, other, np.zeros(64, np.uint32), words(1, 4, 0, 0)])


def _capture_errors(bench: Bench) -> Array:
    """What must not happen in a capture, and what it leaves."""
    driver = bench.driver
    stream, graph, event = driver.stream(), Handle(), driver.event()
    found = [driver.code("cuStreamEndCapture", stream, ctypes.byref(graph))]
    driver.call("cuStreamBeginCapture_v2", stream, CAPTURE_RELAXED)
    found.append(driver.code("cuStreamBeginCapture_v2", stream, CAPTURE_RELAXED))
    found.append(driver.code("cuStreamQuery", stream))
    status = ctypes.c_int()
    found.append(driver.code("cuStreamIsCapturing", stream, ctypes.byref(status)))
    found.append(status.value)
    found.append(driver.code("cuStreamEndCapture", stream, ctypes.byref(graph)))
    driver.call("cuStreamBeginCapture_v2", stream, CAPTURE_RELAXED)
    found.append(driver.code("cuStreamSynchronize", stream))
    found.append(driver.code("cuStreamEndCapture", stream, ctypes.byref(graph)))
    # A stream that joined the capture and was not joined back.
    second = driver.stream()
    driver.call("cuStreamBeginCapture_v2", stream, CAPTURE_RELAXED)
    driver.call("cuEventRecord", event, stream)
    driver.call("cuStreamWaitEvent", second, event, 0)
    data = bench.upload(np.zeros(64, np.uint32))
    driver.launch(bench.kernel(cuda_library("driver"), "add"), 1, 64, [data, 1], stream=second)
    found.append(driver.code("cuStreamEndCapture", stream, ctypes.byref(graph)))
    found.append(driver.code("cuCtxSynchronize"))
    return words(*found)


def _kernel_node(function: Handle, arguments: Arguments) -> KernelNode:
    node = KernelNode(function=function, grid=(1, 1, 1), block=(64, 1, 1))
    node.params = ctypes.cast(arguments.pointers, ctypes.POINTER(ctypes.c_void_p))
    return node


def _built(bench: Bench) -> tuple[Handle, Handle, Buffer, Arguments]:
    """memset -> add: a graph by hand, its kernel node, the data, and what the node's parameters point at."""
    driver = bench.driver
    data = bench.upload(np.zeros(64, np.uint32))
    graph, clear, kernel = Handle(), Handle(), Handle()
    driver.call("cuGraphCreate", ctypes.byref(graph), 0)
    memset = MemsetNode(destination=data.address, value=100, element_size=4, width=64, height=1)
    driver.call("cuGraphAddMemsetNode", ctypes.byref(clear), graph, None, size(0), ctypes.byref(memset), driver.context)
    arguments = Arguments([data, 3])
    node = _kernel_node(bench.kernel(cuda_library("driver"), "add"), arguments)
    driver.call(
        "cuGraphAddKernelNode_v2", ctypes.byref(kernel), graph, ctypes.byref(clear), size(1), ctypes.byref(node)
    )
    return graph, kernel, data, arguments


def _by_hand(bench: Bench) -> Array:
    """Built from nodes, with a host node at the end, and the parameters of an executable graph's kernel changed."""
    driver = bench.driver
    graph, kernel, data, _arguments = _built(bench)
    calls: list[int] = []
    called = HostFunction(lambda argument: calls.append(argument or 0))

    class HostNode(ctypes.Structure):
        _fields_ = (("function", HostFunction), ("argument", ctypes.c_void_p))

    host, description = Handle(), HostNode(called, 77)
    driver.call(
        "cuGraphAddHostNode", ctypes.byref(host), graph, ctypes.byref(kernel), size(1), ctypes.byref(description)
    )
    executable, stream = _instantiate(driver, graph), driver.stream()
    found = []
    for value in (None, 40):
        if value is not None:
            changed = Arguments([data, value])
            node = _kernel_node(bench.kernel(cuda_library("driver"), "add"), changed)
            driver.call("cuGraphExecKernelNodeSetParams_v2", executable, kernel, ctypes.byref(node))
        driver.call("cuGraphLaunch", executable, stream)
        driver.call("cuStreamSynchronize", stream)
        found += [int(bench.read(data)[0]), int(bench.read(data)[63])]
    kind = ctypes.c_int()
    driver.call("cuGraphNodeGetType", kernel, ctypes.byref(kind))
    return words(*found, *calls, kind.value, _node_count(driver, graph))


def _updated(bench: Bench) -> Array:
    """cuGraphExecUpdate: taken for other parameters, refused for another shape of the graph."""
    driver = bench.driver
    graph, _kernel, data, _arguments = _built(bench)
    executable, stream = _instantiate(driver, graph), driver.stream()
    found = []
    for value, extra in ((9, False), (11, True)):
        driver.call("cuStreamBeginCapture_v2", stream, CAPTURE_RELAXED)
        driver.call("cuMemsetD32Async", pointer(data), 200, size(64), stream)
        driver.launch(bench.kernel(cuda_library("driver"), "add"), 1, 64, [data, value], stream=stream)
        if extra:
            driver.launch(bench.kernel(cuda_library("driver"), "add"), 1, 64, [data, value], stream=stream)
        other = _end(driver, stream)
        result = UpdateResult()
        found.append(driver.code("cuGraphExecUpdate_v2", executable, other, ctypes.byref(result)))
        found.append(result.result)
        driver.call("cuGraphLaunch", executable, stream)
        driver.call("cuStreamSynchronize", stream)
        found.append(int(bench.read(data)[5]))
    return words(*found)


def _cloned(bench: Bench) -> Array:
    """A clone, a node switched off in an executable graph, and edges."""
    driver = bench.driver
    graph, kernel, data, _arguments = _built(bench)
    clone, edges = Handle(), ctypes.c_size_t()
    driver.call("cuGraphClone", ctypes.byref(clone), graph)
    executable, copy, stream = _instantiate(driver, graph), _instantiate(driver, clone), driver.stream()
    driver.call("cuGraphNodeSetEnabled", executable, kernel, 0)
    found = [_node_count(driver, clone)]
    for one in (executable, copy):
        driver.call("cuGraphLaunch", one, stream)
        driver.call("cuStreamSynchronize", stream)
        found.append(int(bench.read(data)[1]))
    roots = ctypes.c_size_t()
    driver.call("cuGraphGetRootNodes", graph, None, ctypes.byref(roots))
    driver.call("cuGraphNodeGetDependencies_v2", kernel, None, None, ctypes.byref(edges))
    return words(*found, roots.value, edges.value)


def family() -> Family:
    """The checks."""
    made = Family("graphs")
    covers = "cuStreamBeginCapture cuStreamEndCapture cuStreamIsCapturing cuGraphInstantiateWithFlags cuGraphLaunch cuGraphGetNodes"
    made.add("captured", f"{covers} cuGraphExecDestroy cuGraphDestroy", _captured, "u32", _captured_expected)
    made.add("capture errors", "cuStreamBeginCapture cuStreamEndCapture", _capture_errors)
    covers = "cuGraphCreate cuGraphAddMemsetNode cuGraphAddKernelNode cuGraphAddHostNode cuGraphExecKernelNodeSetParams"
    made.add("by hand", covers, _by_hand, "u32", lambda: words(103, 103, 140, 140, 77, 77, 0, 3))
    made.add("updated", "cuGraphExecUpdate", _updated, "u32", lambda: words(0, 0, 209, 910, 2, 209))
    covers = "cuGraphClone cuGraphNodeSetEnabled cuGraphGetRootNodes cuGraphNodeGetDependencies"
    made.add("cloned", covers, _cloned, "u32", lambda: words(2, 100, 103, 1, 1))
    return made
