"""Executors of one net on streams of their own: runs that are in flight at a time, with one set of parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from dnncore import Handle, ops
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn import Executor, Graph, NetBuilder, Parameters, SharedMemory
from dnncore.nn.graph import BATCH
from dnncore.nn.training import for_training
from dnncore.nn.zoo import lenet
from dnncore.tensor import Tensor
from dnncore.testing import tolerance
from tests.conftest import CUDA_DEVICES
from tests.unit.foreign import Device

_GRAPH = lenet()
_WEIGHTS = _GRAPH.initialize(1)
_IMAGES = np.random.default_rng(0).standard_normal((6, 2, 1, 8, 8)).astype(np.float32)


@contextmanager
def _pair(handle: Handle) -> Iterator[tuple[Parameters, list[Executor]]]:
    """Two executors of one net, each on a stream of its own."""
    with ExitStack() as stack:
        parameters = stack.enter_context(Parameters.upload(handle, _GRAPH, _WEIGHTS))
        streams = [handle.device.create_stream() for _ in range(2)]
        for stream in streams:
            stack.callback(stream.close)
        pair = [stack.enter_context(Executor(_GRAPH, handle, parameters, 2, stream=stream)) for stream in streams]
        yield parameters, pair


def _expected(handle: Handle) -> np.ndarray:
    """What each pair of images gives by itself."""
    with (
        Parameters.upload(handle, _GRAPH, _WEIGHTS) as parameters,
        Executor(_GRAPH, handle, parameters, 2) as executor,
    ):
        return np.stack([executor.run({"data": images})["logits"].copy() for images in _IMAGES])


def _room(handle: Handle, array: np.ndarray) -> np.ndarray:
    room = handle.device.host_buffer(array.nbytes).view(array.dtype).reshape(array.shape)
    room[...] = array
    return room


def test_graphs_of_one_net_are_in_flight_on_two_streams_and_share_parameters(handle: Handle) -> None:
    expected = _expected(handle)
    with _pair(handle) as (parameters, pair):
        given, found = _room(handle, _IMAGES), _room(handle, np.full_like(expected, np.nan))
        for number in range(len(_IMAGES)):
            pair[number % 2].launch(sources={"data": given[number]}, into={"logits": found[number]})
        for executor in pair:
            executor.stream.synchronize()
        assert np.array_equal(found, expected)
        assert not np.array_equal(found[0], found[1])
        for name, tensor in parameters.values.items():
            assert {executor.tensor(name).pointer for executor in pair} == {tensor.pointer}
        ends = [executor.tensor("logits") for executor in pair]
        assert abs(ends[0].pointer - ends[1].pointer) >= ends[0].nbytes


def test_the_handles_stream_writes_inputs_between_two_runs(handle: Handle) -> None:
    expected = _expected(handle)
    with _pair(handle) as (_, pair), handle.upload(_IMAGES / 2) as halves:
        found = _room(handle, np.full_like(expected, np.nan))
        for number in range(len(_IMAGES)):

            def write(data: Tensor, number: int = number) -> None:
                half = halves.view(data.descriptor, number * data.size)
                ops.transform(handle, 2.0, half, 0.0, data)

            pair[number % 2].launch(sources={"data": write}, into={"logits": found[number]})
        for executor in pair:
            executor.stream.synchronize()
        assert np.array_equal(found, expected)


def test_what_is_on_the_device_is_ordered_by_events(handle: Handle) -> None:
    expected = _expected(handle)
    with _pair(handle) as (_, pair):
        for executor, images in zip(pair, _IMAGES[2:4], strict=True):
            executor.tensor("data").assign(images)
            executor.stream.wait(handle.record_event())
            executor.enqueue()
        for executor, logits in zip(pair, expected[2:4], strict=True):
            handle.wait(executor.stream.record_event())
            assert np.array_equal(executor.tensor("logits").numpy(), logits)


def test_an_executor_that_is_closed_has_run(handle: Handle) -> None:
    with _pair(handle) as (_, pair):
        stream = pair[0].stream
        pair[0].launch({"data": _IMAGES[0]})
        event = stream.record_event()
        pair[0].close()
        assert event.query()


def test_executors_that_share_memory_take_turns_on_its_stream(handle: Handle) -> None:
    expected = _expected(handle)
    stream = handle.device.create_stream()
    with (
        Parameters.upload(handle, _GRAPH, _WEIGHTS) as parameters,
        SharedMemory(handle, stream) as memory,
        Executor(_GRAPH, handle, parameters, 2, memory=memory) as two,
        Executor(_GRAPH, handle, parameters, 1, memory=memory) as one,
    ):
        assert two.stream is one.stream is stream
        given, found = _room(handle, _IMAGES), _room(handle, np.full_like(expected, np.nan))
        two.launch(sources={"data": given[0]}, into={"logits": found[0]})
        one.launch(sources={"data": given[1, :1]}, into={"logits": found[1, :1]})
        two.launch(sources={"data": given[2]}, into={"logits": found[2]})
        stream.synchronize()
        assert np.array_equal(found[[0, 2]], expected[[0, 2]])
        allowed = len(_GRAPH.nodes) * tolerance(DType.FLOAT32, 400) * np.abs(expected).max()
        assert np.abs(found[1, :1] - expected[1, :1]).max() <= allowed
        with pytest.raises(BadParamError, match="give `SharedMemory` the stream"):
            Executor(_GRAPH, handle, parameters, 1, memory=memory, stream=stream)
    stream.close()


def _normalized() -> Graph:
    net = NetBuilder("normalized")
    x = net.batch_norm("norm", net.input("data", (BATCH, 3, 4, 4)))
    return net.build(net.inner_product("logits", net.global_pooling("pool", x), 5))


def test_what_updates_constants_stays_on_the_handles_stream(handle: Handle) -> None:
    graph = for_training(_normalized()).graph
    stream = handle.device.create_stream()
    with (
        Parameters.upload(handle, graph, graph.initialize(0)) as parameters,
        pytest.raises(BadParamError, match=r"updates norm\.mean, .*it runs on the handle's stream"),
    ):
        Executor(graph, handle, parameters, 2, stream=stream)
    stream.close()


@pytest.mark.parametrize("name", [*CUDA_DEVICES[:1]])
def test_one_graph_ends_while_another_of_its_net_waits(name: str) -> None:
    gpu = Device(0)
    with Handle(name) as handle, ExitStack() as stack:
        expected = _expected(handle)
        _, (first, second) = stack.enter_context(_pair(handle))
        assert first.stream.handle
        with gpu.blocked(first.stream.handle) as opening:
            waiting = first.launch({"data": _IMAGES[0]})["logits"]
            end = first.stream.record_event()
            assert np.array_equal(second.run({"data": _IMAGES[1]})["logits"], expected[1])
            assert not end.query()
            opening.set()
            end.synchronize()
            assert np.array_equal(waiting, expected[0])
