"""Graphs: captured from streams, built by hand, launched, updated."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance.checks import Family
from emulator.conformance.cuda import Arguments, Buffer, Driver, Handle
from emulator.conformance.cuda_types import (
    MEMORY_DEVICE,
    MEMORY_HOST,
    NODE_EMPTY,
    NODE_HOST,
    NODE_KERNEL,
    NODE_MEMCPY,
    NODE_MEMSET,
    Copy3D,
    HostFunction,
    HostOfType,
    KernelNode,
    MemsetNode,
    NodeOfType,
    UpdateResult,
)
from emulator.conformance.families.driver import SOURCE, pointer, size, words
from emulator.conformance.sources import cuda_library

if TYPE_CHECKING:
    from emulator.conformance.bench import Bench
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
    host, description = Handle(), HostOfType(ctypes.cast(called, ctypes.c_void_p), 77)
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


def _line(to: Buffer, source: Buffer, bytes_: int, **more: int) -> Copy3D:
    """A copy within the device."""
    fields = {"src_type": MEMORY_DEVICE, "dst_type": MEMORY_DEVICE, "width": bytes_, "height": 1, "depth": 1} | more
    return Copy3D(src_device=source.address, dst_device=to.address, **fields)


def _add_any(bench: Bench, graph: Handle, after: Handle | None, node: NodeOfType) -> Handle:
    made = Handle()
    before = (None, size(0)) if after is None else (ctypes.byref(after), size(1))
    bench.driver.call("cuGraphAddNode_v2", ctypes.byref(made), graph, before[0], None, before[1], ctypes.byref(node))
    return made


def _any_type(bench: Bench) -> Array:
    """Nodes of each type through cuGraphAddNode; then other parameters, for the executable graph and for those made later."""
    driver, add = bench.driver, bench.kernel(cuda_library("driver"), "add")
    data, other, spare = (bench.upload(np.full(64, value, np.uint32)) for value in (0, 1, 2))
    calls: list[int] = []
    called = HostFunction(lambda argument: calls.append(argument or 0))
    kept: list[Arguments] = []

    def memset(buffer: Buffer, value: int) -> NodeOfType:
        node = NodeOfType(type=NODE_MEMSET)
        node.memset.destination, node.memset.value, node.memset.element_size = buffer.address, value, 4
        node.memset.width, node.memset.height, node.memset.context = 64, 1, driver.context
        return node

    def kernel(buffer: Buffer, value: int) -> NodeOfType:
        kept.append(Arguments([buffer, value]))
        return NodeOfType(type=NODE_KERNEL, kernel=_kernel_node(add, kept[-1]))

    def copy(to: Buffer, source: Buffer) -> NodeOfType:
        node = NodeOfType(type=NODE_MEMCPY)
        node.memcpy.context, node.memcpy.copy = driver.context, _line(to, source, 128)
        return node

    host = NodeOfType(type=NODE_HOST, host=HostOfType(ctypes.cast(called, ctypes.c_void_p), 55))
    graph, kinds = Handle(), []
    driver.call("cuGraphCreate", ctypes.byref(graph), 0)
    nodes: list[Handle] = []
    for node in (memset(data, 100), kernel(data, 3), copy(other, data), host, NodeOfType(type=NODE_EMPTY)):
        nodes.append(_add_any(bench, graph, nodes[-1] if nodes else None, node))
        kind = ctypes.c_int()
        driver.call("cuGraphNodeGetType", nodes[-1], ctypes.byref(kind))
        kinds.append(kind.value)
    found, stream = [words(*kinds)], driver.stream()

    def run(executable: Handle) -> None:
        driver.call("cuGraphLaunch", executable, stream)
        driver.call("cuStreamSynchronize", stream)
        found.extend(bench.read(buffer)[::33] for buffer in (data, other, spare))

    executable = _instantiate(driver, graph)
    run(executable)
    for place, node in ((0, memset(spare, 200)), (1, kernel(spare, 4)), (2, copy(data, spare))):
        driver.call("cuGraphExecNodeSetParams", executable, nodes[place], ctypes.byref(node))
    run(executable)
    driver.call("cuGraphNodeSetParams", nodes[1], ctypes.byref(kernel(data, 5)))
    run(_instantiate(driver, graph))
    return np.concatenate([*found, words(*calls)])


def _changed(bench: Bench) -> Array:
    """Copies and memsets of an executable graph get other memory, wherever it begins, and another value."""
    driver = bench.driver
    data, other = bench.upload(SOURCE[:64]), bench.output(64)
    graph, fill, line = Handle(), Handle(), Handle()
    driver.call("cuGraphCreate", ctypes.byref(graph), 0)

    def memset(offset: int, value: int, width: int) -> MemsetNode:
        return MemsetNode(destination=data.address + offset, value=value, element_size=1, width=width, height=1)

    node, copy = memset(16, 0x11, 32), _line(other, data, 96)
    driver.call("cuGraphAddMemsetNode", ctypes.byref(fill), graph, None, size(0), ctypes.byref(node), driver.context)
    before = (ctypes.byref(fill), size(1))
    driver.call("cuGraphAddMemcpyNode", ctypes.byref(line), graph, *before, ctypes.byref(copy), driver.context)
    executable, stream = _instantiate(driver, graph), driver.stream()
    found = []
    for offset, value, to in ((16, 0x11, 0), (67, 0x22, 5), (128, 0x33, 129)):
        node, copy = memset(offset, value, 32), _line(other, data, 96, dst_x=to, src_x=offset - 16)
        codes = (
            driver.code("cuGraphExecMemsetNodeSetParams", executable, fill, ctypes.byref(node), driver.context),
            driver.code("cuGraphExecMemcpyNodeSetParams", executable, line, ctypes.byref(copy), driver.context),
        )
        driver.call("cuGraphLaunch", executable, stream)
        driver.call("cuStreamSynchronize", stream)
        found += [words(*codes), bench.read(data), bench.read(other)]
    return np.concatenate(found)


def _changed_expected() -> Array:
    data, other = SOURCE[:64].copy().view(np.uint8), np.full(256, 0xCD, np.uint8)
    found = []
    for offset, value, to in ((16, 0x11, 0), (67, 0x22, 5), (128, 0x33, 129)):
        data[offset : offset + 32] = value
        other[to : to + 96] = data[offset - 16 : offset + 80]
        found += [words(0, 0), data.view(np.uint32).copy(), other.view(np.uint32).copy()]
    return np.concatenate(found)


def _refused(bench: Bench) -> Array:
    """What cuGraphAddNode and changes of executable graphs do not take."""
    driver = bench.driver
    data, other = bench.upload(SOURCE), bench.upload(SOURCE)
    host = np.zeros(64, np.uint32)
    graph, fill, line, made = Handle(), Handle(), Handle(), Handle()
    driver.call("cuGraphCreate", ctypes.byref(graph), 0)

    def memset(width: int = 64, height: int = 1) -> MemsetNode:
        return MemsetNode(destination=data.address, pitch=512, value=1, element_size=4, width=width, height=height)

    def refer(node: ctypes.Structure) -> tuple[object, Handle]:
        return ctypes.byref(node), driver.context

    driver.call("cuGraphAddMemsetNode", ctypes.byref(fill), graph, None, size(0), *refer(memset()))
    copy = _line(other, data, 256)
    driver.call("cuGraphAddMemcpyNode", ctypes.byref(line), graph, None, size(0), *refer(copy))
    executable = _instantiate(driver, graph)

    def add(node: NodeOfType, *after: Handle) -> int:
        before = (Handle * 2)(*after)
        return driver.code(
            "cuGraphAddNode_v2", ctypes.byref(made), graph, before, None, size(len(after)), ctypes.byref(node)
        )

    flagged, unclean = NodeOfType(type=NODE_MEMCPY), NodeOfType(type=NODE_EMPTY)
    flagged.memcpy.flags, flagged.memcpy.context, flagged.memcpy.copy = 1, driver.context, copy
    unclean.reserved0[1] = 1
    two_lines = _line(other, data, 64, height=2, src_pitch=256, dst_pitch=256)
    from_host = Copy3D(src_type=MEMORY_HOST, src_host=host.ctypes.data, dst_type=MEMORY_DEVICE)
    from_host.dst_device, from_host.width, from_host.height, from_host.depth = other.address, 256, 1, 1

    def set_memset(place: Handle, node: MemsetNode) -> int:
        return driver.code("cuGraphExecMemsetNodeSetParams", executable, place, *refer(node))

    def set_copy(place: Handle, node: Copy3D) -> int:
        return driver.code("cuGraphExecMemcpyNodeSetParams", executable, place, *refer(node))

    found = [
        add(NodeOfType(type=NODE_EMPTY), fill, fill),
        add(NodeOfType(type=99)),
        add(flagged),
        add(unclean),
        driver.code("cuGraphExecNodeSetParams", executable, fill, ctypes.byref(NodeOfType(type=NODE_EMPTY))),
        set_memset(fill, memset(width=0)),
        set_memset(fill, memset(height=2)),
        set_memset(line, memset()),
        set_copy(line, _line(other, data, 0)),
        set_copy(line, two_lines),
        set_copy(line, _line(other, data, 128)),
        set_copy(line, from_host),
        set_copy(fill, copy),
        driver.code("cuCtxSynchronize"),
    ]
    return words(*found)


def _other_memory(bench: Bench) -> Array:
    """Between which kinds of memory a copy and a memset of an executable graph may change: cuMemAlloc's, a pool's, the host's."""
    driver, stream, fixed = bench.driver, bench.driver.stream(), bench.upload(SOURCE[:64])
    pool = []
    for _ in range(2):
        address = ctypes.c_uint64()
        driver.call("cuMemAllocAsync", ctypes.byref(address), size(256), stream)
        pool.append(Buffer(address.value, 256))
    host = Handle()
    driver.call("cuMemAllocHost_v2", ctypes.byref(host), size(512))
    at = host.value or 0
    first = (bench.upload(SOURCE[:64]), pool[0], Buffer(at, 256))
    second = (bench.upload(SOURCE[:64]), pool[1], Buffer(at + 256, 256))
    driver.call("cuStreamSynchronize", stream)
    found = []

    def nodes(buffer: Buffer) -> tuple[MemsetNode, Copy3D]:
        unified = 4  # CU_MEMORYTYPE_UNIFIED: the address says whose it is
        memset = MemsetNode(destination=buffer.address, value=1, element_size=4, width=64, height=1)
        return memset, _line(fixed, buffer, 256, src_type=unified, dst_type=unified)

    for before in first:
        graph, fill, line = Handle(), Handle(), Handle()
        driver.call("cuGraphCreate", ctypes.byref(graph), 0)
        memset, copy = nodes(before)
        alone = (graph, None, size(0))
        driver.call("cuGraphAddMemsetNode", ctypes.byref(fill), *alone, ctypes.byref(memset), driver.context)
        driver.call("cuGraphAddMemcpyNode", ctypes.byref(line), *alone, ctypes.byref(copy), driver.context)
        executable = _instantiate(driver, graph)
        for after in second:
            memset, copy = nodes(after)
            found += [
                driver.code("cuGraphExecMemsetNodeSetParams", executable, fill, ctypes.byref(memset), driver.context),
                driver.code("cuGraphExecMemcpyNodeSetParams", executable, line, ctypes.byref(copy), driver.context),
            ]
            driver.call("cuGraphLaunch", executable, stream)
            driver.call("cuStreamSynchronize", stream)
    for buffer in pool:
        driver.call("cuMemFreeAsync", pointer(buffer), stream)
    driver.call("cuMemFreeHost", host)
    return words(*found)


def _captured_launch(bench: Bench) -> Array:
    """A graph that is launched into a captured stream."""
    driver, stream, other = bench.driver, bench.driver.stream(), Handle()
    graph, _kernel, _data, _arguments = _built(bench)
    executable = _instantiate(driver, graph)
    driver.call("cuStreamBeginCapture_v2", stream, CAPTURE_RELAXED)
    found = [driver.code("cuGraphLaunch", executable, stream), driver.code("cuGraphUpload", executable, stream)]
    found.append(driver.code("cuStreamEndCapture", stream, ctypes.byref(other)))
    return words(*found, driver.code("cuGraphLaunch", executable, stream), driver.code("cuStreamSynchronize", stream))


def _launched_in_order(bench: Bench) -> Array:
    """Launches of one executable graph run one after the other, on whatever streams."""
    driver, data = bench.driver, bench.upload(np.zeros(64, np.uint32))
    graph, kernel = Handle(), Handle()
    driver.call("cuGraphCreate", ctypes.byref(graph), 0)
    arguments = Arguments([data])
    node = _kernel_node(bench.kernel(cuda_library("driver"), "slow"), arguments)
    node.block = (1, 1, 1)
    driver.call("cuGraphAddKernelNode_v2", ctypes.byref(kernel), graph, None, size(0), ctypes.byref(node))
    executable, first, second = _instantiate(driver, graph), driver.stream(), driver.stream()
    for _ in range(5):
        driver.call("cuGraphLaunch", executable, first)
    driver.call("cuGraphLaunch", executable, second)
    driver.call("cuStreamSynchronize", second)
    return words(driver.code("cuStreamQuery", first), int(bench.read(data)[0]))


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
    covers = "cuGraphAddNode cuGraphNodeSetParams cuGraphExecNodeSetParams cuGraphNodeGetType"
    kinds = (NODE_MEMSET, NODE_KERNEL, NODE_MEMCPY, NODE_HOST, NODE_EMPTY)
    of_runs = ((103, 103), (103, 1), (2, 2), (204, 103), (103, 1), (204, 204), (105, 105), (105, 1), (204, 204))
    any_type = words(*kinds, *(word for run in of_runs for word in run), 55, 55, 55)
    made.add("nodes of any type", covers, _any_type, "u32", lambda: any_type)
    covers = "cuGraphExecMemsetNodeSetParams cuGraphExecMemcpyNodeSetParams cuGraphAddMemcpyNode"
    made.add("changed", covers, _changed, "u32", _changed_expected)
    covers = "cuGraphAddNode cuGraphExecNodeSetParams cuGraphExecMemsetNodeSetParams cuGraphExecMemcpyNodeSetParams"
    made.add("refused nodes", covers, _refused)
    covers = "cuGraphExecMemsetNodeSetParams cuGraphExecMemcpyNodeSetParams cuMemAllocAsync cuMemAllocHost"
    made.add("changed memory", covers, _other_memory)
    made.add("graph in a capture", "cuGraphLaunch cuGraphUpload cuStreamBeginCapture", _captured_launch)
    made.add("launched in order", "cuGraphLaunch cuGraphAddKernelNode", _launched_in_order, "u32", lambda: words(0, 6))
    return made
