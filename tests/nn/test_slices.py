"""Executors that share memory, and those that compute their batch in slices."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dnncore import Handle
from dnncore.backend import TICKET_BYTES
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn import BATCH, Executor, Graph, Node, Parameters, SharedMemory, Value
from dnncore.nn.heads import with_probabilities
from dnncore.nn.model import Model
from dnncore.nn.operators import Activation, Cast, Reduce, Softmax
from dnncore.nn.passes import for_inference
from dnncore.nn.training import in_training
from dnncore.nn.zoo import lenet
from tests.nn.nets import residual

IMAGES = np.random.default_rng(5).standard_normal((6, 3, 8, 8)).astype(np.float32)


def _model(precision: DType = DType.FLOAT32) -> Model:
    graph = with_probabilities(residual())
    return for_inference(Model(graph, graph.initialize(1)), precision)


def _run(executor: Executor, images: np.ndarray) -> np.ndarray:
    return executor.run({"data": images})["probabilities"].copy()


@pytest.mark.parametrize("precision", [DType.FLOAT32, DType.FLOAT16], ids=str)
def test_an_image_has_the_same_bits_alone_and_in_any_company(handle: Handle, precision: DType) -> None:
    model = _model(precision)
    with Parameters.upload(handle, model.graph, model.weights) as parameters, SharedMemory(handle) as memory:
        executors = {
            batch: Executor(model.graph, handle, parameters, batch, slice_images=1, memory=memory)
            for batch in (6, 3, 1)
        }
        alone = np.concatenate([_run(executors[1], image[None]) for image in IMAGES])
        together = _run(executors[6], IMAGES)
        backwards = _run(executors[6], IMAGES[::-1].copy())[::-1]
        halves = np.concatenate([_run(executors[3], IMAGES[i : i + 3]) for i in (0, 3)])
        for executor in executors.values():
            executor.close()
    assert all(np.array_equal(one, other) for one, other in pairwise((alone, together, backwards, halves)))
    assert len(np.unique(alone, axis=0)) == len(IMAGES)


def test_a_slice_is_computed_as_a_batch_of_its_size(handle: Handle) -> None:
    model = _model()
    with (
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        Executor(model.graph, handle, parameters, 6, slice_images=2) as sliced,
        Executor(model.graph, handle, parameters, 2) as pair,
    ):
        expected = np.concatenate([_run(pair, IMAGES[i : i + 2]) for i in (0, 2, 4)])
        assert np.array_equal(_run(sliced, IMAGES), expected)
        sliced.tensor("data").assign(IMAGES[::-1].copy())
        sliced.enqueue()
        assert np.array_equal(sliced.tensor("probabilities").numpy()[4:], _run(pair, IMAGES[1::-1].copy()))
        assert sliced.arena_bytes < 2 * pair.arena_bytes


def test_what_a_batch_does_not_cut_is_refused_by_name() -> None:
    with Handle("cpu") as handle:
        mean = Graph(
            "mean", (Value("x", DType.FLOAT32, (BATCH, 3)),), ("y",), (Node("y", Reduce("avg", (0,)), ("x",), ("y",)),), ()
        )  # fmt: skip
        for graph, batch, images, message in (
            (lenet(), 6, 4, "slices of 4 images do not make a batch of 6"),
            (lenet(), 6, 0, "slices of 0 images"),
            (mean, 4, 1, r"'mean' cannot run in slices of a batch: y: float32\[1, 3\]"),
            (in_training(residual()), 4, 2, "running_mean is updated|mean is updated"),
        ):
            with (
                Parameters.upload(handle, graph, graph.initialize(0)) as parameters,
                pytest.raises(BadParamError, match=message),
            ):
                Executor(graph, handle, parameters, batch, slice_images=images)


def test_whole_numbers_and_what_is_handed_through_are_cut_too(handle: Handle) -> None:
    graph = Graph(
        "several",
        (Value("x", DType.FLOAT32, (BATCH, 3)), Value("n", DType.INT32, (BATCH, 5))),
        ("y", "n", "z"),
        (
            Node("y", Softmax(), ("x",), ("y",)),
            Node("m", Cast("float32"), ("n",), ("m",)),
            Node("z", Activation("relu"), ("m",), ("z",)),
        ),
        (),
    )
    x, n = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(-10, 10, dtype=np.int32).reshape(4, 5)
    with Parameters.upload(handle, graph, {}) as parameters:
        with Executor(graph, handle, parameters, 4) as executor:
            expected = {name: array.copy() for name, array in executor.run({"x": x, "n": n}).items()}
        with Executor(graph, handle, parameters, 4, slice_images=2) as executor:
            found = executor.run({"x": x, "n": n})
            assert all(np.array_equal(found[name], expected[name]) for name in graph.outputs)


def test_executors_that_share_memory_take_turns(handle: Handle) -> None:
    model = _model()
    with Parameters.upload(handle, model.graph, model.weights) as parameters, SharedMemory(handle) as memory:
        own = {batch: Executor(model.graph, handle, parameters, batch) for batch in (6, 2, 1)}
        shared = {batch: Executor(model.graph, handle, parameters, batch, memory=memory) for batch in own}
        assert memory.nbytes == own[6].arena_bytes + TICKET_BYTES
        for batch in (1, 6, 2, 6, 1):
            assert np.array_equal(_run(shared[batch], IMAGES[:batch]), _run(own[batch], IMAGES[:batch])), batch
        for use in (shared[2].enqueue, lambda: shared[2].tensor("data"), lambda: shared[2].tensor("probabilities")):
            with pytest.raises(BadParamError, match="only `run` uses it; make the executor without `memory`"):
                use()
        assert shared[2].tensor(model.graph.constants[0].name).shape
        for executor in (*own.values(), *shared.values()):
            executor.close()
        assert memory.nbytes
    assert not memory.nbytes


def test_one_that_needs_more_than_there_is_makes_room_for_itself(handle: Handle) -> None:
    model = _model()
    with (
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        SharedMemory(handle) as memory,
        Executor(model.graph, handle, parameters, 1, memory=memory) as first,
        Executor(model.graph, handle, parameters, 6, memory=memory) as second,
    ):
        assert memory.nbytes >= first.arena_bytes + second.arena_bytes
        together = _run(second, IMAGES)
        assert np.allclose(_run(first, IMAGES[:1]), together[:1], atol=1e-5)


def test_page_locked_arrays_are_made_when_they_are_asked_for(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, host_buffer = lenet(), handle.device.host_buffer
    made: list[int] = []

    def counted(nbytes: int) -> np.ndarray:
        made.append(nbytes)
        return host_buffer(nbytes)

    monkeypatch.setattr(handle.device, "host_buffer", counted)
    with (
        Parameters.upload(handle, graph, graph.initialize(0)) as parameters,
        Executor(graph, handle, parameters, 2) as executor,
    ):
        executor.tensor("data").assign(np.ones((2, 1, 8, 8), np.float32))
        executor.enqueue()
        handle.synchronize()
        assert (made, list(executor.inputs), len(executor.inputs)) == ([], ["data"], 1)
        assert not executor.inputs["data"].any()
        assert executor.inputs["data"] is executor.inputs["data"]
        assert made == [2 * 64 * 4]
