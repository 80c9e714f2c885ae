from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dnncore import Handle, ops
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn import BATCH, Constant, Executor, Graph, NetBuilder, Node, Parameters, Role, Value
from dnncore.nn.gradient import differentiate
from dnncore.nn.operators import Activation, Reduce
from dnncore.nn.trainable import Trainable
from dnncore.nn.training import dropout_states, for_training, in_training
from dnncore.nn.zoo import lenet, resnet18
from dnncore.testing import tolerance

IMAGES = 6


def _net(norm: bool = True, dropout: bool = False) -> Graph:
    """Its second normalisation reads what is also added behind it."""
    net = NetBuilder("norms")
    x = net.convolution("conv", net.input("data", (BATCH, 2, 5, 5)), 4, 3, bias=False)
    if norm:
        x = net.relu("relu", net.batch_norm("first", x))
        x = net.plus("join", net.batch_norm("second", x, epsilon=1e-3), x)
    if dropout:
        x = net.dropout("drop1", net.dropout("drop0", x, 0.5), 0.25)
    return net.build(net.inner_product("logits", net.global_pooling("pool", x), 3))


def _batches(steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(4)
    return [
        (rng.standard_normal((IMAGES, 2, 5, 5)).astype(np.float32), rng.integers(0, 3, IMAGES).astype(np.int32))
        for _ in range(steps)
    ]


def _frozen(graph: Graph, norm: str) -> Graph:
    """The graph with a normalisation whose statistics nothing may change."""
    fixed = [
        replace(one, role=Role.FIXED) if one.name in (f"{norm}.mean", f"{norm}.variance") else one
        for one in graph.constants
    ]
    return graph.rewritten(graph.nodes, constants=fixed)


@pytest.mark.parametrize("frozen", ["", "first"], ids=["running", "frozen"])
def test_steps_with_batch_normalisation_are_pytorchs(handle: Handle, frozen: str) -> None:
    """Losses, gradients and statistics, over three updates with a large learning rate."""
    graph = _frozen(_net(), frozen)
    training = for_training(graph)
    weights = {name: array + np.float32(0.05) for name, array in graph.initialize(1).items()}
    f = torch.nn.functional
    theirs = {name: torch.tensor(array, dtype=torch.float64) for name, array in weights.items()}
    trainable = [name for name, constant in graph.constant.items() if constant.role is Role.TRAINABLE]

    def norm(x: torch.Tensor, name: str, epsilon: float) -> torch.Tensor:
        mean, variance, scale, bias = (theirs[f"{name}.{part}"] for part in ("mean", "variance", "scale", "bias"))
        return f.batch_norm(x, mean, variance, scale, bias, name != frozen, 0.1, epsilon)

    with (
        Parameters.upload(handle, training.graph, weights) as parameters,
        Executor(training.graph, handle, parameters, IMAGES) as executor,
    ):
        for x, labels in _batches(3):
            found = executor.run({"data": x, "labels": labels})
            for name in trainable:
                theirs[name].requires_grad_().grad = None
            y = torch.relu(norm(f.conv2d(torch.tensor(x).double(), theirs["conv.weight"]), "first", 1e-5))
            y = (norm(y, "second", 1e-3) + y).mean((2, 3))
            losses = f.cross_entropy(
                f.linear(y, theirs["logits.weight"], theirs["logits.bias"]),
                torch.tensor(labels).long(),
                reduction="none",
            )
            losses.mean().backward()
            allowed = len(training.graph.nodes) * tolerance(DType.FLOAT32, 400)
            assert np.abs(found["loss"] - losses.detach().numpy()).max() <= allowed * losses.max().item()
            for name in trainable:
                gradient = theirs[name].grad
                assert gradient is not None
                ours = found[training.gradients[name]]
                assert np.abs(ours - gradient.numpy()).max() <= allowed * gradient.abs().max().item() + 1e-7, name
                ops.add(handle, -0.5, executor.tensor(training.gradients[name]), 1.0, parameters.values[name])
                theirs[name] = (theirs[name] - 0.5 * gradient).detach()
            for name in graph.constant.keys() - set(trainable):
                running = parameters.values[name].numpy()
                np.testing.assert_allclose(running, theirs[name].numpy(), rtol=1e-4, err_msg=name)


def test_dropout_drops_in_both_directions_what_the_state_says(handle: Handle) -> None:
    graph = _net(norm=False, dropout=True)
    training = in_training(graph)
    seeds = {"logits": "dy"}
    dy = Value("dy", DType.FLOAT32, (BATCH, 3))
    derived = differentiate(
        training.rewritten(training.nodes, inputs=(*training.inputs, dy), outputs=("drop1", "conv")), seeds, ("conv",)
    )
    weights = graph.initialize(0)
    with (
        Parameters.upload(handle, derived.graph, weights) as parameters,
        Executor(derived.graph, handle, parameters, IMAGES) as executor,
    ):
        feeds = {"data": _batches(1)[0][0], "dy": np.ones((IMAGES, 3), np.float32)}
        kept = []
        for step in (0, 1, 0):
            found = executor.run(feeds | dict(dropout_states(derived.graph, 7, step)))
            conv, dropped, dx = found["conv"], found["drop1"], found[derived.gradients["conv"]]
            stays = dropped != 0
            np.testing.assert_allclose(dropped[stays], conv[stays] / (0.5 * 0.75), rtol=1e-5)
            assert np.array_equal(dx != 0, stays)
            kept.append(stays.copy())
        assert np.array_equal(kept[0], kept[2])
        assert not np.array_equal(kept[0], kept[1])
        assert abs(kept[0].mean() - 0.375) < 0.1


def test_nets_of_the_zoo_learn() -> None:
    """One batch, again and again: the loss of a ResNet falls."""
    graph = resnet18(3, (2, 8, 8))
    training = for_training(graph)
    x = np.random.default_rng(0).standard_normal((4, 2, 8, 8)).astype(np.float32)
    labels = np.arange(4, dtype=np.int32) % 3
    with (
        Handle("cpu") as handle,
        Parameters.upload(handle, training.graph, graph.initialize(0)) as parameters,
        Executor(training.graph, handle, parameters, 4) as executor,
    ):
        losses = []
        for _ in range(3):
            losses.append(float(executor.run({"data": x, "labels": labels}, ("loss",))["loss"].mean()))
            for name, gradient in training.gradients.items():
                ops.add(handle, -0.01, executor.tensor(gradient), 1.0, parameters.values[name])
        assert losses[-1] < 0.7 * losses[0], losses


def test_nothing_but_values_of_the_same_kind_takes_the_place_of_a_constant() -> None:
    relu = Node("relu", Activation("relu"), ("c",), ("y",))
    inputs, constant = (Value("x", DType.FLOAT32, (BATCH, 2)),), Constant("c", (2,))
    assert Graph("good", inputs, ("y",), (relu,), (constant,), updates={"c": "y"}).updates == {"c": "y"}
    for updates in ({"x": "y"}, {"c": "x"}, {"d": "y"}):
        with pytest.raises(BadParamError, match="cannot take the place of"):
            Graph("bad", inputs, ("y",), (relu,), (constant,), updates=updates)


def test_what_cannot_be_trained_is_refused_with_the_reason() -> None:
    net = NetBuilder("two")
    x = net.input("x", (BATCH, 3))
    a, b = net.inner_product("a", x, 2), net.inner_product("b", x, 2)
    with pytest.raises(BadParamError, match="2 outputs; a classifier has one"):
        for_training(net.build(a, b))
    with pytest.raises(BadParamError, match=r"no seed depends on 'b.weight', 'b.bias'"):
        for_training(net.build(a))
    largest = NetBuilder("largest")
    x = largest.inner_product("a", largest.input("x", (BATCH, 3)), 2)
    with pytest.raises(BadParamError, match=r"node 'product'.*reduce 'mul' has no gradient"):
        differentiate(largest.build(largest.add("product", Reduce("mul", (1,)), x)), {"product": "a"})
    assert dropout_states(for_training(lenet()).graph, 0, 0) == {}


def test_logits_that_are_given_with_their_softmax_are_one_head() -> None:
    net = NetBuilder("both")
    logits = net.inner_product("logits", net.input("data", (BATCH, 4)), 3)
    graph = net.build(logits, net.softmax("probabilities", logits))
    assert [head.logits for head in Trainable.of(graph).heads] == ["logits"]
