from __future__ import annotations

import numpy as np
import pytest
import torch

from dnncore import Handle, ops
from dnncore.backend import Memory
from dnncore.dtypes import DType
from dnncore.errors import BadParamError, ClosedError, OutOfMemoryError
from dnncore.nn import Constant, Executor, Graph, Node, Parameters, Role, Value
from dnncore.nn.gradient import differentiate
from dnncore.nn.heads import with_probabilities
from dnncore.nn.operators import Binary, Cast
from dnncore.nn.training import for_training
from dnncore.nn.zoo import lenet
from dnncore.testing import tolerance
from tests.nn.nets import TWINS, Twin, residual, torch_residual

BATCH = 4


def _close(found: np.ndarray, expected: np.ndarray, graph: Graph, what: str = "") -> None:
    """Rounding grows through the nodes; each adds its own part."""
    allowed = len(graph.nodes) * tolerance(DType.FLOAT32, 400) * np.abs(expected).max()
    assert np.abs(found - expected).max() <= allowed, what


def _weights(graph: Graph, seed: int = 3) -> dict[str, np.ndarray]:
    """None of them zero, and variances positive."""
    rng = np.random.default_rng(seed)
    return {
        name: (np.abs(array) if name.endswith("variance") else array) + rng.uniform(0.01, 0.1, array.shape).astype("f4")
        for name, array in graph.initialize(seed).items()
    }


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.graph.name)
def test_outputs_and_gradients_agree_with_pytorch(handle: Handle, twin: Twin) -> None:
    rng, graph = np.random.default_rng(3), twin.graph
    weights = _weights(graph)
    seeds = {name: f"{name}.gradient" for name in graph.outputs}
    given = tuple(Value(seed, graph.values[name].dtype, graph.values[name].shape) for name, seed in seeds.items())
    derived = differentiate(graph.rewritten(graph.nodes, inputs=(*graph.inputs, *given)), seeds)
    feeds = {
        value.name: rng.standard_normal(value.spec(BATCH).shape).astype(np.float32) for value in derived.graph.inputs
    }
    parameters = Parameters.upload(handle, derived.graph, weights)
    executor = Executor(derived.graph, handle, parameters, BATCH)
    found = {name: array.copy() for name, array in executor.run(feeds).items()}
    again = executor.run(feeds)
    assert all(np.array_equal(again[name], array) for name, array in found.items())
    executor.close()
    parameters.close()

    leaves = {name: torch.tensor(w, dtype=torch.float64, requires_grad=True) for name, w in weights.items()}
    expected = twin.function(torch.tensor(feeds["data"], dtype=torch.float64), leaves)
    torch.autograd.backward(expected, [torch.tensor(feeds[seeds[name]], dtype=torch.float64) for name in graph.outputs])
    for name, value in zip(graph.outputs, expected, strict=True):
        _close(found[name], value.detach().numpy(), derived.graph, name)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        _close(found[derived.gradients[name]], leaf.grad.numpy(), derived.graph, name)


def test_batch_normalisations_with_given_statistics_agree_with_pytorch(handle: Handle) -> None:
    graph = residual()
    weights = _weights(graph)
    x = np.random.default_rng(1).standard_normal((BATCH, 3, 8, 8)).astype(np.float32)
    with (
        Parameters.upload(handle, graph, weights) as parameters,
        Executor(graph, handle, parameters, BATCH) as executor,
    ):
        found = executor.run({"data": x})["probabilities"]
        (expected,) = torch_residual(
            torch.tensor(x, dtype=torch.float64), {n: torch.tensor(w, dtype=torch.float64) for n, w in weights.items()}
        )
        _close(found, expected.numpy(), graph)


def test_a_graph_for_training_gives_the_loss_and_its_gradients(handle: Handle) -> None:
    graph, rng = lenet(), np.random.default_rng(2)
    weights, training = _weights(graph), for_training(graph)
    x, labels = rng.standard_normal((BATCH, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, BATCH).astype(np.int32)
    with (
        Parameters.upload(handle, training.graph, weights) as parameters,
        Executor(training.graph, handle, parameters, BATCH) as executor,
    ):
        found = executor.run({"data": x, "labels": labels})
        leaves = {name: torch.tensor(w, dtype=torch.float64, requires_grad=True) for name, w in weights.items()}
        (logits,) = TWINS[1].function(torch.tensor(x, dtype=torch.float64), leaves)
        losses = torch.nn.functional.cross_entropy(logits, torch.tensor(labels).long(), reduction="none")
        losses.mean().backward()
        _close(found["loss"], losses.detach().numpy(), training.graph)
        for name, leaf in leaves.items():
            assert leaf.grad is not None
            _close(found[training.gradients[name]], leaf.grad.numpy(), training.graph, name)


def test_executors_of_several_batch_sizes_share_parameters_and_agree(handle: Handle) -> None:
    graph = with_probabilities(lenet())
    x = np.random.default_rng(0).standard_normal((5, 1, 8, 8)).astype(np.float32)
    with (
        Parameters.upload(handle, graph, graph.initialize(0)) as parameters,
        Executor(graph, handle, parameters, 5) as big,
        Executor(graph, handle, parameters, 1) as single,
    ):
        together = big.run({"data": x})["probabilities"].copy()
        apart = np.concatenate([single.run({"data": x[i : i + 1]})["probabilities"].copy() for i in range(5)])
    assert np.abs(together - apart).max() < 1e-6
    assert np.allclose(together.sum(1), 1, atol=1e-6)


def test_what_is_on_the_device_can_be_run_without_the_host(handle: Handle) -> None:
    graph = lenet()
    x = np.random.default_rng(0).standard_normal((2, 1, 8, 8)).astype(np.float32)
    with (
        Parameters.upload(handle, graph, graph.initialize(0)) as parameters,
        Executor(graph, handle, parameters, 2) as executor,
    ):
        turned = x[::-1].copy()
        expected = executor.run({"data": turned})["logits"].copy()
        assert not np.array_equal(executor.run({"data": x})["logits"], expected)
        executor.tensor("data").assign(turned)
        executor.enqueue()
        assert np.array_equal(executor.tensor("logits").numpy(), expected)
        with pytest.raises(BadParamError, match="no input, output or constant 'relu1'"):
            executor.tensor("relu1")


def test_an_input_may_come_from_memory_of_another_or_be_written_on_the_device(handle: Handle) -> None:
    graph = lenet(4, (1, 8, 8))
    rows = np.random.default_rng(8).standard_normal((BATCH, 1, 8, 8)).astype(np.float32)
    shared = handle.device.host_buffer(2 * rows.nbytes)
    place = shared[rows.nbytes :].view(np.float32).reshape(rows.shape)
    place[...] = rows
    with (
        Parameters.upload(handle, graph, graph.initialize(2)) as parameters,
        Executor(graph, handle, parameters, BATCH) as executor,
        handle.upload(rows / 2) as half,
    ):
        (output,) = graph.outputs
        expected = executor.run({"data": rows})[output].copy()
        executor.inputs["data"][...] = 0
        assert np.array_equal(executor.run(sources={"data": place})[output], expected)
        assert not executor.inputs["data"].any()
        doubled = executor.run(sources={"data": lambda x: ops.transform(handle, 2.0, half, 0.0, x)})[output]
        assert np.array_equal(doubled, expected)
        with pytest.raises(BadParamError, match="takes float32"):
            executor.run(sources={"data": place[:1]})
        with pytest.raises(BadParamError, match="no input 'image'"):
            executor.run(sources={"image": place})


def test_a_binding_that_finds_no_room_gives_back_what_it_took(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = lenet()
    parameters = Parameters.upload(handle, graph, graph.initialize(0))
    before, allocate, taken = repr(handle), handle.device.allocate, 0

    def small(nbytes: int) -> Memory:
        nonlocal taken
        taken += 1
        if taken > 1:  # all activations and nothing else
            raise OutOfMemoryError("full")
        return allocate(nbytes)

    with monkeypatch.context() as patch:
        patch.setattr(handle.device, "allocate", small)
        patch.setattr(
            handle.device, "capture", lambda _: (_ for _ in ()).throw(OutOfMemoryError("no room for the graph"))
        )
        with pytest.raises(OutOfMemoryError):
            Executor(graph, handle, parameters, 2)
    assert repr(handle) == before
    parameters.close()


def test_feeds_that_do_not_fit_are_refused_by_name(handle: Handle) -> None:
    graph = lenet()
    parameters = Parameters.upload(handle, graph, graph.initialize(0))
    executor = Executor(graph, handle, parameters, 2)
    with pytest.raises(BadParamError, match="no input 'image'; it has data"):
        executor.run({"image": np.zeros((2, 1, 8, 8), np.float32)})
    with pytest.raises(
        BadParamError, match=r"data is float32\[1, 1, 8, 8\], this executor takes float32\[2, 1, 8, 8\]"
    ):
        executor.run({"data": np.zeros((1, 1, 8, 8), np.float32)})
    executor.close()
    for use in (executor.run, executor.enqueue):
        with pytest.raises(ClosedError, match="was closed"):
            use()
    executor.close()
    parameters.close()
    with pytest.raises(BadParamError, match="batch 0"):
        Executor(graph, handle, parameters, 0)


def test_weights_that_do_not_fit_are_named(handle: Handle) -> None:
    graph = lenet()
    weights = graph.initialize(0)
    with pytest.raises(BadParamError, match=r"lack \['conv1.bias'\] and have unknown \['conv9.bias'\]"):
        Parameters.upload(handle, graph, {("conv9.bias" if k == "conv1.bias" else k): v for k, v in weights.items()})
    with pytest.raises(BadParamError, match=r"'ip1.bias' is float32\[3\], the net needs float32\[64\]"):
        Parameters.upload(handle, graph, {**weights, "ip1.bias": np.zeros(3, np.float32)})


def test_constants_of_other_dtypes_and_without_dimensions(handle: Handle) -> None:
    graph = Graph(
        "scaled",
        (Value("x", DType.FLOAT32, ("N", 3)),),
        ("y",),
        (Node("narrow", Cast("float16"), ("x",), ("narrow",)), Node("y", Binary("mul"), ("narrow", "factor"), ("y",))),
        (Constant("factor", (), DType.FLOAT16, Role.FIXED),),
    )
    with (
        Parameters.upload(handle, graph, {"factor": np.array(0.5, np.float16)}) as parameters,
        Executor(graph, handle, parameters, 2) as executor,
    ):
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        assert np.array_equal(executor.run({"x": x})["y"], (x / 2).astype(np.float16))
