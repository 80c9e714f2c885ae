"""Graphs: stream capture, explicit nodes, updates, and what capture forbids."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from emulator.tests.driver_api import CudaError, Gate, Session, needs_driver, pointers, session

pytestmark = needs_driver

INVALID_VALUE, ILLEGAL_STATE, NOT_READY = 1, 401, 600
UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED_EVENT = range(900, 908)
WRONG_THREAD, UPDATE_FAILURE = 908, 910
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2


class KernelParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS."""

    _fields_ = [
        ("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("params", ctypes.c_void_p), ("extra", ctypes.c_void_p), ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p),
    ]  # fmt: skip


class MemsetParams(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = [
        ("to", ctypes.c_uint64), ("pitch", ctypes.c_size_t), ("value", ctypes.c_uint), ("element", ctypes.c_uint),
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]  # fmt: skip


class HostParams(ctypes.Structure):
    """CUDA_HOST_NODE_PARAMS."""

    _fields_ = [("function", ctypes.c_void_p), ("data", ctypes.c_void_p)]


def scale_params(s: Session, address: int, factor: float) -> KernelParams:
    """A kernel node that scales one float."""
    arguments = pointers((ctypes.c_uint64(address), ctypes.c_float(factor), ctypes.c_int(1)))
    params = KernelParams(s.function("scale"), (1, 1, 1), (32, 1, 1), 0, ctypes.addressof(arguments))
    params.kept = arguments
    return params


def end_capture(s: Session, stream: int) -> int:
    """The captured graph."""
    graph = ctypes.c_size_t()
    s.cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
    return graph.value


def instantiate(s: Session, graph: int) -> int:
    """An executable graph."""
    return s.cuda.handle("cuGraphInstantiateWithFlags", graph, 0)


def run(s: Session, executable: int, times: int = 1) -> None:
    """Launch and wait."""
    stream = s.stream()
    for _ in range(times):
        s.cuda.cuGraphLaunch(executable, stream)
    s.cuda.cuStreamSynchronize(stream)


def nodes_of(s: Session, graph: int) -> list[int]:
    """Handles of a graph's nodes."""
    count = ctypes.c_size_t()
    s.cuda.cuGraphGetNodes(graph, None, ctypes.byref(count))
    nodes = (ctypes.c_size_t * count.value)()
    s.cuda.cuGraphGetNodes(graph, nodes, ctypes.byref(count))
    return list(nodes)


def dependencies(s: Session, node: int) -> set[int]:
    """Handles of what a node waits for."""
    count = ctypes.c_size_t(8)
    nodes = (ctypes.c_size_t * 8)()
    s.cuda.cuGraphNodeGetDependencies(node, nodes, None, ctypes.byref(count))
    return set(nodes[: count.value])


def test_a_captured_stream_does_nothing_until_the_graph_runs() -> None:
    with session() as s:
        cuda, stream, x, host = s.cuda, s.stream(), s.ones(1), np.array([7], np.float32)
        cuda.cuStreamBeginCapture(stream, GLOBAL)
        assert cuda.code("cuStreamIsCapturing", stream, ctypes.byref(status := ctypes.c_int())) == 0
        assert status.value == 1
        assert s.scale(x, 3, 1, stream) == 0
        cuda.cuMemcpyDtoHAsync(host.ctypes.data, x, 4, stream)
        graph = end_capture(s, stream)
        assert s.floats(x, 1) == [1.0]
        executable = instantiate(s, graph)
        cuda.cuGraphDestroy(graph)  # the executable graph stays
        run(s, executable, times=2)
        assert s.floats(x, 1) == [9.0]
        assert host[0] == 9
        cuda.cuGraphExecDestroy(executable)
        assert cuda.code("cuGraphLaunch", executable, stream) == INVALID_VALUE


def test_events_capture_other_streams() -> None:
    with session() as s:
        cuda, first, second, fork, join, x, y = (
            s.cuda, s.stream(), s.stream(), s.event(), s.event(), s.ones(1), s.ones(1)
        )  # fmt: skip
        cuda.cuStreamBeginCapture(first, GLOBAL)
        s.scale(x, 2, 1, first)
        cuda.cuEventRecord(fork, first)
        cuda.cuStreamWaitEvent(second, fork, 0)
        s.scale(y, 5, 1, second)
        s.scale(x, 3, 1, first)
        cuda.cuEventRecord(join, second)
        cuda.cuStreamWaitEvent(first, join, 0)
        s.scale(y, 7, 1, first)
        graph = end_capture(s, first)
        root, beside, straight, last = nodes_of(s, graph)
        assert (dependencies(s, root), dependencies(s, beside), dependencies(s, straight)) == (set(), {root}, {root})
        assert dependencies(s, last) == {beside, straight}
        run(s, instantiate(s, graph))
        assert s.floats(x, 1) + s.floats(y, 1) == [6.0, 35.0]
        assert s.scale(x, 1, 1, second) == 0  # the second stream runs again
        cuda.cuStreamSynchronize(second)


def test_unjoined_stream() -> None:
    with session() as s:
        cuda, first, second, event, x = s.cuda, s.stream(), s.stream(), s.event(), s.ones(1)
        cuda.cuStreamBeginCapture(first, GLOBAL)
        cuda.cuEventRecord(event, first)
        cuda.cuStreamWaitEvent(second, event, 0)
        s.scale(x, 2, 1, second)
        assert cuda.code("cuStreamEndCapture", second, ctypes.byref(ctypes.c_size_t())) == UNMATCHED
        assert cuda.code("cuStreamEndCapture", first, ctypes.byref(ctypes.c_size_t())) == INVALIDATED
        cuda.cuStreamBeginCapture(first, GLOBAL)
        cuda.cuEventRecord(event, first)
        cuda.cuStreamWaitEvent(second, event, 0)
        s.scale(x, 2, 1, second)
        assert cuda.code("cuStreamEndCapture", first, ctypes.byref(ctypes.c_size_t())) == UNJOINED


def synchronise_stream(s: Session, stream: int, _x: int) -> int:
    return s.cuda.code("cuStreamSynchronize", stream)


def query_stream(s: Session, stream: int, _x: int) -> int:
    return s.cuda.code("cuStreamQuery", stream)


def synchronise_context(s: Session, _stream: int, _x: int) -> int:
    return s.cuda.code("cuCtxSynchronize")


def allocate(s: Session, _stream: int, _x: int) -> int:
    return s.cuda.code("cuMemAlloc", ctypes.byref(ctypes.c_size_t()), 4)


def free(s: Session, _stream: int, x: int) -> int:
    return s.cuda.code("cuMemFree", x)


def copy_now(s: Session, _stream: int, x: int) -> int:
    return s.cuda.code("cuMemcpyHtoD", x, np.zeros(1, np.float32).ctypes.data, 4)


def wait_outside(s: Session, stream: int, _x: int) -> int:
    event = s.event()
    s.cuda.cuEventRecord(event, s.stream())
    return s.cuda.code("cuStreamWaitEvent", stream, event, 0)


def query_captured_event(s: Session, stream: int, _x: int) -> int:
    event = s.event()
    s.cuda.cuEventRecord(event, stream)
    return s.cuda.code("cuEventQuery", event)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (synchronise_stream, UNSUPPORTED), (query_stream, UNSUPPORTED), (synchronise_context, UNSUPPORTED),
        (allocate, UNSUPPORTED), (free, UNSUPPORTED), (copy_now, IMPLICIT), (wait_outside, ISOLATION),
        (query_captured_event, CAPTURED_EVENT),
    ],
)  # fmt: skip
def test_what_capture_forbids(operation: Any, expected: int) -> None:
    with session() as s:
        cuda, stream, x = s.cuda, s.cuda.handle("cuStreamCreate", 0), s.ones(1)
        cuda.cuStreamBeginCapture(stream, GLOBAL)
        assert operation(s, stream, x) == expected
        assert s.scale(x, 2, 1, stream) == INVALIDATED
        assert cuda.code("cuStreamEndCapture", stream, ctypes.byref(ctypes.c_size_t())) == INVALIDATED
        assert s.scale(x, 2, 1, stream) == 0
        assert s.floats(x, 1) == [2.0]


def test_relaxed_capture_allows_allocations() -> None:
    with session() as s:
        stream = s.stream()
        s.cuda.cuStreamBeginCapture(stream, RELAXED)
        assert s.cuda.code("cuMemAlloc", ctypes.byref(ctypes.c_size_t()), 4) == 0
        assert nodes_of(s, end_capture(s, stream)) == []
        assert s.cuda.code("cuStreamEndCapture", stream, ctypes.byref(ctypes.c_size_t())) == ILLEGAL_STATE
        assert s.cuda.code("cuStreamBeginCapture", 0, GLOBAL) == UNSUPPORTED


def test_explicit_nodes_and_their_order() -> None:
    with session() as s:
        cuda, x = s.cuda, s.ones(1)
        called: list[int] = []
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: called.append(1))
        graph = cuda.handle("cuGraphCreate", 0)
        memset = MemsetParams(x, 0, 0x40000000, 4, 1, 1)  # 2.0
        host = HostParams(ctypes.cast(function, ctypes.c_void_p).value, None)
        kernel = cuda.handle("cuGraphAddKernelNode", graph, None, 0, ctypes.byref(scale_params(s, x, 3)))
        fill = cuda.handle("cuGraphAddMemsetNode", graph, None, 0, ctypes.byref(memset), s.context)
        empty = cuda.handle("cuGraphAddEmptyNode", graph, (ctypes.c_size_t * 1)(fill), 1)
        cuda.cuGraphAddHostNode(
            ctypes.byref(ctypes.c_size_t()), graph, (ctypes.c_size_t * 1)(kernel), 1, ctypes.byref(host)
        )
        cuda.cuGraphAddDependencies(graph, (ctypes.c_size_t * 1)(empty), (ctypes.c_size_t * 1)(kernel), None, 1)
        executable = instantiate(s, graph)
        run(s, executable, times=2)
        assert s.floats(x, 1) == [6.0]
        assert called == [1, 1]
        cuda.cuGraphAddDependencies(graph, (ctypes.c_size_t * 1)(kernel), (ctypes.c_size_t * 1)(fill), None, 1)
        with pytest.raises(CudaError):
            instantiate(s, graph)
        assert "cycle" in cuda.last_error()


def test_parameters_of_a_kernel_node_change_in_the_executable_graph() -> None:
    with session() as s:
        cuda, stream, x, y = s.cuda, s.stream(), s.ones(1), s.ones(1)
        cuda.cuStreamBeginCapture(stream, GLOBAL)
        s.scale(x, 2, 1, stream)
        graph = end_capture(s, stream)
        (node,) = nodes_of(s, graph)
        params = KernelParams()
        cuda.cuGraphKernelNodeGetParams(node, ctypes.byref(params))
        assert (params.function, list(params.block)) == (s.function("scale"), [32, 1, 1])
        first = ctypes.cast(params.params, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64)))
        assert first[0][0] == x
        executable = instantiate(s, graph)
        cuda.cuGraphExecKernelNodeSetParams(executable, node, ctypes.byref(scale_params(s, y, 5)))
        run(s, executable)
        assert s.floats(x, 1) + s.floats(y, 1) == [1.0, 5.0]


def test_update_from_another_graph() -> None:
    with session() as s:
        cuda, stream, x = s.cuda, s.stream(), s.ones(1)

        def capture(factors: list[float]) -> int:
            cuda.cuStreamBeginCapture(stream, GLOBAL)
            for factor in factors:
                s.scale(x, factor, 1, stream)
            return end_capture(s, stream)

        executable = instantiate(s, capture([2, 3]))
        info = (ctypes.c_uint64 * 3)()
        cuda.cuGraphExecUpdate(executable, capture([5, 7]), info)
        run(s, executable)
        assert s.floats(x, 1) == [35.0]
        assert cuda.code("cuGraphExecUpdate", executable, capture([5]), info) == UPDATE_FAILURE


def test_a_broken_kernel_in_a_graph_breaks_the_context() -> None:
    with session() as s:
        cuda, stream = s.cuda, s.stream()
        cuda.cuStreamBeginCapture(stream, GLOBAL)
        s.launch(s.function("broken"), stream=stream)
        cuda.cuGraphLaunch(instantiate(s, end_capture(s, stream)), stream)
        assert cuda.code("cuStreamSynchronize", stream) == 719


def test_a_capture_ends_with_its_stream() -> None:
    with session() as s:
        cuda, stream, event = s.cuda, s.stream(), s.event()
        cuda.cuStreamBeginCapture(stream, GLOBAL)
        cuda.cuEventRecord(event, stream)
        cuda.cuStreamDestroy(stream)
        assert cuda.code("cuMemAlloc", ctypes.byref(ctypes.c_size_t()), 4) == 0  # no capture forbids it any more
        assert cuda.code("cuStreamWaitEvent", s.stream(), event, 0) == CAPTURED_EVENT
        cuda.cuEventRecord(event, s.stream())
        cuda.cuEventSynchronize(event)


def memset_graph(s: Session, address: int) -> tuple[int, int]:
    """A graph of one memset, and the node."""
    graph, params = s.cuda.handle("cuGraphCreate", 0), MemsetParams(address, 0, 0, 4, 1, 1)
    return graph, s.cuda.handle("cuGraphAddMemsetNode", graph, None, 0, ctypes.byref(params), s.context)


def test_a_graph_must_outlive_changes_to_what_was_made_of_it() -> None:
    with session() as s:
        x = s.ones(1)
        graph, node = memset_graph(s, x)
        executable, params = instantiate(s, graph), MemsetParams(x, 0, 5, 4, 1, 1)
        change = ("cuGraphExecMemsetNodeSetParams", executable, node, ctypes.byref(params), s.context)
        assert s.cuda.code(*change) == 0
        s.cuda.cuGraphDestroy(graph)
        assert s.cuda.code(*change) == INVALID_VALUE
        assert "must outlive" in s.cuda.last_error()


def test_launches_of_a_graph_wait_for_each_other() -> None:
    with session() as s:
        cuda, first, second, x = s.cuda, s.stream(), s.stream(), s.ones(1)
        executable = instantiate(s, memset_graph(s, x)[0])
        gate = Gate(cuda, first)
        cuda.cuGraphLaunch(executable, first)
        cuda.cuGraphLaunch(executable, second)
        assert cuda.code("cuStreamQuery", second) == NOT_READY
        gate.open()
        cuda.cuStreamSynchronize(second)
        assert cuda.code("cuStreamQuery", first) == 0


def test_a_programmatic_edge_joins_two_kernels_and_nothing_else() -> None:
    with session() as s:
        cuda, x = s.cuda, s.ones(1)
        graph, memset = memset_graph(s, s.ones(1))
        early, other = (ctypes.c_ubyte * 8)(1, 0, 1), (ctypes.c_ubyte * 8)(2, 0, 1)  # CUgraphEdgeData: from, to, type
        first, second = [
            cuda.handle("cuGraphAddKernelNode", graph, None, 0, ctypes.byref(scale_params(s, x, factor)))
            for factor in (2, 3)
        ]

        def joined(before: int, after: int, data: Any) -> int:
            ends = ((ctypes.c_size_t * 1)(node) for node in (before, after))
            return int(cuda.code("cuGraphAddDependencies_v2", graph, *ends, data, 1))

        assert joined(memset, first, early) == INVALID_VALUE
        assert joined(first, second, other) == 801
        assert "edge data" in cuda.last_error()
        assert joined(first, second, early) == 0
        assert joined(memset, second, None) == INVALID_VALUE  # a plain one beside it, from another kind of node
        data, count = (ctypes.c_ubyte * 8)(), ctypes.c_size_t(1)
        cuda.cuGraphNodeGetDependencies(second, (ctypes.c_size_t * 1)(), data, ctypes.byref(count))
        assert bytes(data) == bytes(early)
        run(s, instantiate(s, graph))
        assert s.floats(x, 1) == [6.0]
