"""Operators that importers need, against NumPy and PyTorch; gradients, where there are some, against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch

from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn import BATCH, Constant, Executor, Graph, NetBuilder, Node, Parameters, Value
from dnncore.nn.gradient import differentiate
from dnncore.nn.graph import Extent
from dnncore.nn.model import Model
from dnncore.nn.operator import Operator, Spec
from dnncore.nn.operators import (
    Binary,
    Expand,
    GroupNorm,
    LayerNorm,
    MatrixProduct,
    Pad,
    Reduce,
    Reshape,
    RMSNorm,
    Slice,
    TopK,
    Unary,
    Where,
)
from dnncore.nn.passes import channels_last
from dnncore.testing import tolerance

f = torch.nn.functional


class Case(NamedTuple):
    """An operator of a constant and maybe more of them, and the same in PyTorch."""

    name: str
    operator: Operator
    shapes: tuple[tuple[int, ...], ...]
    function: Callable[..., torch.Tensor]
    outputs: int = 1
    has_gradient: bool = True


CASES = (
    Case("sum", Reduce("add", (1, 3)), ((2, 3, 4, 5),), lambda x: x.sum((1, 3), keepdim=True)),
    Case("mean-gone", Reduce("avg", (2,), keep=False), ((2, 3, 4),), lambda x: x.mean(2)),
    Case("all", Reduce("add", (0, 1), keep=False), ((2, 3),), lambda x: x.sum()),
    Case("norm", Reduce("norm2", (1,)), ((2, 5),), lambda x: x.norm(dim=1, keepdim=True)),
    Case("expand", Expand((3, 1, 4)), ((2, 1, 5, 1),), lambda x: x.expand(2, 3, 5, 4)),
    Case("expand-leading", Expand((2, 3, 1)), ((3, 4),), lambda x: x.expand(2, 3, 4)),
    Case("pad", Pad(((0, 0), (1, 2), (0, 1)), 0.5), ((2, 3, 4),), lambda x: f.pad(x, (0, 1, 1, 2), value=0.5)),
    Case("largest", TopK(3, 2), ((2, 3, 7),), lambda x: x.topk(3, 2).values, 2, has_gradient=False),
    Case("steps", Slice(1, 1, 6, 2), ((2, 7, 3),), lambda x: x[:, 1:6:2]),
    Case("matrices", MatrixProduct(0.5), ((2, 1, 3, 4), (5, 4, 2)), lambda a, b: a @ b / 2),
    Case("rows", MatrixProduct(), ((2, 3, 4), (4, 5)), lambda a, b: a @ b),
    Case("matrices-of-one", MatrixProduct(), ((3, 4), (2, 4, 5)), lambda a, b: a @ b),
    Case("layer", LayerNorm(2), ((2, 3, 8), (8,), (8,)), lambda x, w, b: f.layer_norm(x, (8,), w, b), 3),
    Case("rms", RMSNorm(1), ((2, 3, 4), (3, 4)), lambda x, w: f.rms_norm(x, (3, 4), w, 1e-5), 2),
    Case("group", GroupNorm(2), ((2, 4, 3), (4,), (4,)), lambda x, w, b: f.group_norm(x, 2, w, b), 3),
    *(
        Case(name, Unary(name), ((2, 3),), getattr(torch, name))
        for name in ("abs", "cos", "erf", "exp", "log", "neg", "reciprocal", "rsqrt", "sin", "sqrt", "square")
    ),
    Case("softplus", Unary("softplus"), ((2, 3),), f.softplus),
    Case("max", Binary("max", 2.0), ((2, 1, 3), (2, 1)), lambda a, b: torch.maximum(2 * a, b)),
    Case("min", Binary("min"), ((4, 3), (4, 3)), torch.minimum),
    Case("mod", Binary("mod", 2.0, -0.5), ((2, 1, 3), (2, 1)), lambda a, b: (2 * a).remainder(-0.5 * b)),
    Case("fmod", Binary("fmod", -1.0, 0.5), ((2, 1, 3), (2, 1)), lambda a, b: (-a).fmod(0.5 * b)),
    Case("pow", Binary("pow", 1.0, 2.0), ((2, 1, 3), (2, 1)), lambda a, b: a ** (2 * b)),
    Case("div", Binary("div", 2.0, -3.0), ((2, 1, 3), (2, 1)), lambda a, b: 2 * a / (-3 * b)),
)


def _graph(case: Case) -> Graph:
    names = tuple(f"c{number}" for number in range(len(case.shapes)))
    outputs = ("y", "saved", "more")[: case.outputs]
    constants = tuple(Constant(name, shape) for name, shape in zip(names, case.shapes, strict=True))
    return Graph(case.name, (), outputs, (Node("node", case.operator, names, outputs),), constants)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operator_agrees_with_pytorch(handle: Handle, case: Case) -> None:
    graph, rng = _graph(case), np.random.default_rng(1)
    weights = {one.name: rng.standard_normal(one.shape).astype(np.float32) for one in graph.constants}
    leaves = [torch.tensor(weights[one.name], dtype=torch.float64, requires_grad=True) for one in graph.constants]
    expected = case.function(*leaves)
    seed, gradients = rng.standard_normal(expected.shape).astype(np.float32), {}
    if case.has_gradient:
        given = Value("dy", DType.FLOAT32, graph.values["y"].shape)
        derived = differentiate(graph.rewritten(graph.nodes, inputs=(given,)), {"y": "dy"})
        graph, gradients = derived.graph, derived.gradients
        expected.backward(torch.tensor(seed, dtype=torch.float64))
    with Parameters.upload(handle, graph, weights) as parameters, Executor(graph, handle, parameters, 1) as executor:
        found = executor.run({"dy": seed} if gradients else {})
        allowed = tolerance(DType.FLOAT32, 100)
        assert found["y"].shape == tuple(expected.shape)
        np.testing.assert_allclose(found["y"], expected.detach().numpy(), atol=10 * allowed)
        for constant, leaf in zip(graph.constants, leaves, strict=True):
            if gradients:
                assert leaf.grad is not None
                np.testing.assert_allclose(found[gradients[constant.name]], leaf.grad.numpy(), atol=10 * allowed)


def test_the_gradient_of_a_choice_goes_to_what_was_chosen(handle: Handle) -> None:
    nodes = (
        Node("compare", Binary("less"), ("a", "b"), ("condition",)),
        Node("choose", Where(), ("condition", "a", "b"), ("y",)),
    )
    graph = Graph(
        "choice", (Value("dy", DType.FLOAT32, (2, 2)),), ("y",), nodes, (Constant("a", (2, 2)), Constant("b", (2,)))
    )
    derived = differentiate(graph, {"y": "dy"})
    weights = {"a": np.array([[1, 2], [3, 4]], np.float32), "b": np.array([2, 1], np.float32)}
    with (
        Parameters.upload(handle, derived.graph, weights) as parameters,
        Executor(derived.graph, handle, parameters, 1) as executor,
    ):
        found = executor.run({"dy": np.array([[10, 20], [30, 40]], np.float32)})
        assert found["y"].tolist() == [[1, 1], [2, 1]]
        assert found[derived.gradients["a"]].tolist() == [[10, 0], [0, 0]]
        assert found[derived.gradients["b"]].tolist() == [30, 60]


def _input(*shape: Extent) -> tuple[Value, ...]:
    return (Value("x", DType.FLOAT32, shape),)


def test_a_constant_is_broadcast_to_the_batch_and_its_gradient_is_summed(handle: Handle) -> None:
    graph = Graph(
        "token",
        _input(BATCH, 3),
        ("y",),
        (Node("y", Expand((2, 3)), ("token", "x"), ("y",)),),
        (Constant("token", (1, 1, 3)),),
    )
    assert graph.values["y"].shape == (BATCH, 2, 3)
    weights = {"token": np.arange(3, dtype=np.float32).reshape(1, 1, 3)}
    with Parameters.upload(handle, graph, weights) as parameters, Executor(graph, handle, parameters, 4) as executor:
        found = executor.run({"x": np.zeros((4, 3), np.float32)})["y"]
    assert np.array_equal(found, np.broadcast_to(weights["token"], (4, 2, 3)))


def test_what_is_reshaped_between_convolutions_is_the_same_channels_last(handle: Handle) -> None:
    net = NetBuilder("reshaped")
    x = net.convolution("before", net.input("x", (BATCH, 3, 4, 6)), 4, 1)
    x = net.add("apart", Reshape((0, 4, 2, 12)), x)
    y = net.add("back", Reshape((0, 4, 2, 12)), net.add("other", Reshape((0, 2, 4, 12)), net.relu("relu", x)))
    graph = net.build(net.convolution("behind", net.concat("whole", x, y), 2, 1))
    model = Model(graph, graph.initialize(0))
    feeds, found = {"x": np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32)}, []
    for one in (model, channels_last(model)):
        with (
            Parameters.upload(handle, one.graph, one.weights) as parameters,
            Executor(one.graph, handle, parameters, 2) as executor,
        ):
            found.append(executor.run(feeds)["behind"].copy())
    np.testing.assert_allclose(found[1], found[0], atol=10 * tolerance(DType.FLOAT32, 100))


def test_numbers_without_dimensions_go_in_and_out(handle: Handle) -> None:
    graph = Graph("number", _input(), ("y",), (Node("y", Reduce("add", ()), ("x",), ("y",)),))
    with Parameters.upload(handle, graph, {}) as parameters, Executor(graph, handle, parameters, 1) as executor:
        found = executor.run({"x": np.array(2.5, np.float32)})["y"]
    assert found.shape == ()
    assert found == 2.5


@pytest.mark.parametrize(
    ("operator", "shapes", "message"),
    [
        (Reduce("add", (2,)), [(2, 3)], "no dimensions"),
        (Reduce("median"), [(2, 3)], "median"),
        (Expand((2,)), [(3,)], "cannot be broadcast"),
        (Pad(((0, -1),)), [(3,)], "a pair of places for each dimension"),
        (MatrixProduct(), [(2, 3), (2, 3)], "do not fit"),
        (MatrixProduct(), [(2, 2, 3), (3, 3, 2)], "leading dimensions"),
        (LayerNorm(0), [(2, 3)], "no dimension 0 behind the first"),
        (LayerNorm(1), [(2, 3), (2,)], r"scale float32\[2\] must have the shape \[3\]"),
        (GroupNorm(2), [(2, 3)], "cannot be cut into 2 groups"),
        (TopK(4), [(2, 3)], "no 4 elements along dimension 1"),
        (Slice(1, 0, 2, 0), [(2, 3)], "no elements 0 to 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(operator: Operator, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(BadParamError, match=message):
        operator.infer_checked([Spec(DType.FLOAT32, shape) for shape in shapes])
