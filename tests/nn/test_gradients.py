"""Gradients of operators, as nodes, against PyTorch's: random shapes, operands that are views, values with several readers."""

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
from dnncore.nn.operator import Operator
from dnncore.nn.operators import (
    Activation,
    ArgMax,
    BatchNorm,
    Binary,
    Cast,
    Concat,
    ConvolutionBackwardData,
    Expand,
    GroupNorm,
    LayerNorm,
    MatrixProduct,
    Ones,
    Pad,
    PoolingWithIndices,
    Reduce,
    Reshape,
    RMSNorm,
    Slice,
    Softmax,
    Split,
    TopK,
    Transpose,
)
from dnncore.testing import tolerance

f = torch.nn.functional

Shape = tuple[int, ...]
Rng = np.random.Generator


class Drawn(NamedTuple):
    """An operator with random settings, the shapes of its operands (None for one that is left out), and the same in PyTorch."""

    operator: Operator
    shapes: tuple[Shape | None, ...]
    function: Callable[..., torch.Tensor]
    outputs: int = 1


def _shape(rng: Rng, least: int, most: int = 4) -> Shape:
    return tuple(map(int, rng.integers(1, 6, rng.integers(least, most + 1))))


def _axes(rng: Rng, ndim: int) -> tuple[int, ...]:
    return tuple(sorted(map(int, rng.choice(ndim, rng.integers(1, ndim + 1), replace=False))))


def _parameters(rng: Rng, shape: Shape, count: int) -> tuple[Shape | None, ...]:
    return tuple(shape if rng.integers(4) else None for _ in range(count))


def _layer_norm(rng: Rng) -> Drawn:
    shape = (*_shape(rng, 1, 3), int(rng.integers(2, 9)))
    axis = int(rng.integers(1, len(shape)))
    over = shape[axis:]
    operands = (shape, *_parameters(rng, over, 2))
    return Drawn(LayerNorm(axis, 0.1), operands, lambda x, w, b: f.layer_norm(x, over, w, b, 0.1), 3)


def _rms_norm(rng: Rng) -> Drawn:
    shape = (*_shape(rng, 1, 3), int(rng.integers(2, 9)))
    axis = int(rng.integers(1, len(shape)))
    over = shape[axis:]
    operands = (shape, *_parameters(rng, over, 1))
    return Drawn(RMSNorm(axis, 0.1), operands, lambda x, w: f.rms_norm(x, over, w, 0.1), 2)


def _group_norm(rng: Rng) -> Drawn:
    groups, each = map(int, rng.integers(1, 4, 2))
    channels = groups * each
    shape = (int(rng.integers(1, 4)), channels, *_shape(rng, 1, 2), 2)
    operands = (shape, *_parameters(rng, (channels,), 2))
    ones = torch.ones(channels, dtype=torch.float64)  # which PyTorch needs where there is a bias

    def function(x: torch.Tensor, w: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor:
        return f.group_norm(x, groups, ones if w is None else w, b, 0.1)

    return Drawn(GroupNorm(groups, 0.1), operands, function, 3)


def _batch_norm(rng: Rng) -> Drawn:
    """Whose statistics are computed too; epsilon is larger than any that may be below 0."""
    shape = _shape(rng, 2)
    channels = (shape[1], *(1,) * (len(shape) - 2))

    def function(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        scale, bias, mean, variance = (one.reshape(channels) for one in parameters)
        return scale * (x - mean) / (variance + 9).sqrt() + bias

    return Drawn(BatchNorm(9.0), (shape, *[shape[1:2]] * 4), function)


def _transposed_convolution(rng: Rng) -> Drawn:
    """As importers have one: the gradient of a convolution with respect to its data, of which a stride hides some."""
    groups, c, k, kernel, stride, dilation = map(int, rng.integers(1, 4, 6))
    padding = int(rng.integers(0, dilation * (kernel - 1) // 2 + 1))
    more = int(rng.integers(0, stride))
    places = tuple(map(int, rng.integers(1, 5, 2)))
    spatial = tuple(stride * (extent - 1) + dilation * (kernel - 1) + 1 - 2 * padding + more for extent in places)

    def function(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return f.conv_transpose2d(x, w, None, stride, padding, more, groups, dilation)

    operator = ConvolutionBackwardData(stride, padding, dilation, groups, spatial)
    return Drawn(operator, ((k * groups, c, kernel, kernel), (2, k * groups, *places)), function)


def _matrix_product(rng: Rng) -> Drawn:
    m, k, n = map(int, rng.integers(1, 6, 3))
    lead = _shape(rng, 0, 3)

    def broadcast() -> Shape:
        """Some extents as 1, some of the first ones left out."""
        some = tuple(1 if rng.integers(3) == 0 else extent for extent in lead)
        return some[rng.integers(0, len(lead) + 1) :] if rng.integers(2) else some

    return Drawn(MatrixProduct(0.5), ((*broadcast(), m, k), (*broadcast(), k, n)), lambda a, b: 0.5 * (a @ b))


def _slice(rng: Rng) -> Drawn:
    shape = _shape(rng, 1)
    axis = int(rng.integers(len(shape)))
    start, stop = sorted(map(int, rng.choice(shape[axis] + 1, 2, replace=False)))
    step = int(rng.integers(1, 4))

    def taken(x: torch.Tensor) -> torch.Tensor:
        return x[(*[slice(None)] * axis, slice(start, stop, step))]

    return Drawn(Slice(axis, start, stop, step), (shape,), taken)


def _reduce(operator: str, function: Callable[[torch.Tensor, Shape, bool], torch.Tensor]) -> Callable[[Rng], Drawn]:
    def draw(rng: Rng) -> Drawn:
        shape = _shape(rng, 1)
        axes, keep = _axes(rng, len(shape)), bool(rng.integers(2))
        return Drawn(Reduce(operator, axes, keep), (shape,), lambda x: function(x, axes, keep))

    return draw


def _softmax(rng: Rng) -> Drawn:
    shape, log = _shape(rng, 2), bool(rng.integers(2))
    axis = int(rng.integers(-len(shape), len(shape)))
    return Drawn(Softmax(axis, log), (shape,), lambda x: (f.log_softmax if log else f.softmax)(x, axis))


def _binary(rng: Rng) -> Drawn:
    name = str(rng.choice(["add", "sub", "mul", "max"]))
    shape = _shape(rng, 1)
    other = tuple(1 if rng.integers(3) == 0 else extent for extent in shape)[rng.integers(len(shape)) :]
    shapes = (shape, other) if rng.integers(2) else (other, shape)
    functions = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "max": torch.maximum}
    return Drawn(Binary(name, 2.0, -0.5), shapes, lambda a, b: functions[name](2 * a, -0.5 * b))


def _expand(rng: Rng) -> Drawn:
    whole = _shape(rng, 1)
    shape = tuple(1 if rng.integers(2) else extent for extent in whole)[rng.integers(len(whole)) :]
    return Drawn(Expand(whole), (shape,), lambda x: x.expand(whole))


def _transpose(rng: Rng) -> Drawn:
    shape = _shape(rng, 1)
    axes = tuple(map(int, rng.permutation(len(shape))))
    return Drawn(Transpose(axes), (shape,), lambda x: x.permute(axes))


def _reshape(rng: Rng) -> Drawn:
    shape = _shape(rng, 1)
    new = (*shape[2:], -1) if rng.integers(2) else (-1, *shape[1:][::-1])
    return Drawn(Reshape(new), (shape,), lambda x: x.reshape(new))


def _concat(rng: Rng) -> Drawn:
    shape = _shape(rng, 1)
    axis = int(rng.integers(len(shape)))
    shapes = tuple((*shape[:axis], int(rng.integers(1, 4)), *shape[axis + 1 :]) for _ in range(rng.integers(1, 4)))
    return Drawn(Concat(axis), shapes, lambda *parts: torch.cat(parts, axis))


def _split(rng: Rng) -> Drawn:
    """Of which one piece is read."""
    shape = _shape(rng, 1)
    axis, sizes = int(rng.integers(len(shape))), tuple(map(int, rng.integers(1, 4, 3)))
    whole = (*shape[:axis], sum(sizes), *shape[axis + 1 :])
    return Drawn(Split(sizes, axis), (whole,), lambda x: x.split(sizes, axis)[0], 3)


def _pad(rng: Rng) -> Drawn:
    shape = _shape(rng, 1)
    padding = tuple((int(a), int(b)) for a, b in rng.integers(0, 3, (len(shape), 2)))
    flat = [places for pair in reversed(padding) for places in pair]
    return Drawn(Pad(padding, 0.5), (shape,), lambda x: f.pad(x, flat, value=0.5))


def _pooling_with_indices(rng: Rng) -> Drawn:
    shape = (*_shape(rng, 2, 3)[:2], *map(int, rng.integers(3, 7, 2)))
    operator = PoolingWithIndices("max", (3, 2), (1, 2), (1, 0), True)
    return Drawn(operator, (shape,), lambda x: f.max_pool2d(x, (3, 2), (1, 2), (1, 0), ceil_mode=True), 2)


def _activation(rng: Rng) -> Drawn:
    modes = {"gelu": f.gelu, "silu": f.silu, "hard_swish": f.hardswish, "tanh": torch.tanh}
    mode = str(rng.choice(list(modes)))
    return Drawn(Activation(mode), (_shape(rng, 1),), modes[mode])


DRAWS: dict[str, Callable[[Rng], Drawn]] = {
    "activation": _activation,
    "batch_norm": _batch_norm,
    "binary": _binary,
    "concat": _concat,
    "expand": _expand,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "matrix_product": _matrix_product,
    "pad": _pad,
    "pooling_with_indices": _pooling_with_indices,
    "reduce_add": _reduce("add", lambda x, axes, keep: x.sum(axes, keep)),
    "reduce_avg": _reduce("avg", lambda x, axes, keep: x.mean(axes, keep)),
    "reduce_max": _reduce("max", lambda x, axes, keep: x.amax(axes, keep)),
    "reduce_min": _reduce("min", lambda x, axes, keep: x.amin(axes, keep)),
    "reduce_norm1": _reduce("norm1", lambda x, axes, keep: x.norm(1, axes, keep)),
    "reduce_norm2": _reduce("norm2", lambda x, axes, keep: x.norm(2, axes, keep)),
    "reshape": _reshape,
    "rms_norm": _rms_norm,
    "slice": _slice,
    "softmax": _softmax,
    "split": _split,
    "transpose": _transpose,
    "transposed_convolution": _transposed_convolution,
}


class _Net:
    """An operator of constants, some of which it sees as views, applied twice: y + y / 2, so that all gradients have two parts."""

    def __init__(self, drawn: Drawn, rng: Rng, dtype: DType) -> None:
        nodes: list[Node] = []
        self.weights: dict[str, np.ndarray] = {}
        self.views: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        operands: list[str | None] = []
        for number, shape in enumerate(drawn.shapes):
            if shape is None:
                operands.append(None)
                continue
            constant, name = f"c{number}", f"x{number}"
            whole, view, see = self._view(shape, rng)
            self.weights[constant] = rng.standard_normal(whole).astype(dtype.numpy)
            self.views[constant] = see
            operands.append(name if view else constant)
            if view:
                nodes.append(Node(name, view, (constant,), (name,)))
        while operands[-1] is None:
            operands.pop()
        for name in ("first", "second"):
            outputs = (name, *(f"{name}.{number}" for number in range(1, drawn.outputs)))
            nodes.append(Node(name, drawn.operator, tuple(operands), outputs))
        nodes.append(Node("y", Binary("add", 1.0, 0.5), ("first", "second"), ("y",)))
        constants = tuple(Constant(name, array.shape, dtype) for name, array in self.weights.items())
        graph = Graph("random", (), ("y",), tuple(nodes), constants)
        dy = Value("dy", dtype, graph.values["y"].shape)
        self.derived = differentiate(graph.rewritten(graph.nodes, inputs=(dy,)), {"y": "dy"})

    @staticmethod
    def _view(shape: Shape, rng: Rng) -> tuple[Shape, Operator | None, Callable[[torch.Tensor], torch.Tensor]]:
        """A shape to take an operand from, how, and the same in PyTorch: as it is, every other element, or transposed."""
        axis = int(rng.integers(len(shape)))
        match int(rng.integers(3)):
            case 0:
                whole = (*shape[:axis], 2 * shape[axis] + 1, *shape[axis + 1 :])
                places = slice(1, 2 * shape[axis], 2)
                return whole, Slice(axis, 1, 2 * shape[axis], 2), lambda x: x[(*[slice(None)] * axis, places)]
            case 1:
                axes = tuple(map(int, rng.permutation(len(shape))))
                whole = tuple(shape[axes.index(place)] for place in range(len(shape)))
                return whole, Transpose(axes), lambda x: x.permute(axes)
        return shape, None, lambda x: x


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", DRAWS)
def test_gradients_of_random_operators_are_pytorchs(handle: Handle, name: str, seed: int) -> None:
    """In float32 and, for every other seed, in float64."""
    dtype = DType.FLOAT64 if seed % 2 else DType.FLOAT32
    rng = np.random.default_rng([seed, *name.encode()])
    drawn = DRAWS[name](rng)
    net = _Net(drawn, rng, dtype)
    leaves = {name: torch.tensor(array, dtype=torch.float64) for name, array in net.weights.items()}
    seen = {name: net.views[name](leaf.requires_grad_()) for name, leaf in leaves.items()}
    expected = 1.5 * drawn.function(*(seen.get(f"c{number}") for number in range(len(drawn.shapes))))
    dy = rng.standard_normal(expected.shape).astype(dtype.numpy)
    expected.backward(torch.tensor(dy, dtype=torch.float64))
    graph, gradients = net.derived
    with (
        Parameters.upload(handle, graph, net.weights) as parameters,
        Executor(graph, handle, parameters, 1) as executor,
    ):
        found = executor.run({"dy": dy})
        allowed = 20 * tolerance(dtype, max(100, dy.size))
        np.testing.assert_allclose(found["y"], expected.detach().numpy(), rtol=allowed, atol=allowed)
        for constant, leaf in leaves.items():
            assert leaf.grad is not None
            ours = found[gradients[constant]]
            assert ours.shape == tuple(leaf.shape)
            np.testing.assert_allclose(ours, leaf.grad.numpy(), rtol=allowed, atol=allowed, err_msg=constant)


def _run(
    handle: Handle, graph: Graph, weights: dict[str, np.ndarray], feeds: dict[str, np.ndarray], batch: int
) -> dict[str, np.ndarray]:
    """The gradients of constants by their names, where "dy" is that of y."""
    dy = Value("dy", DType.FLOAT32, graph.values["y"].shape)
    derived = differentiate(graph.rewritten(graph.nodes, inputs=(*graph.inputs, dy)), {"y": "dy"})
    with (
        Parameters.upload(handle, derived.graph, weights) as parameters,
        Executor(derived.graph, handle, parameters, batch) as executor,
    ):
        found = executor.run(feeds)
        return {name: found[gradient].copy() for name, gradient in derived.gradients.items()}


@pytest.mark.parametrize("batch", [1, 3])
def test_what_is_broadcast_to_the_images_is_summed_over_them_wherever_they_lie(handle: Handle, batch: int) -> None:
    """A token and embeddings for every image, and the images second between two transpositions, as attention has them."""
    net = NetBuilder("tokens")
    x = net.input("x", (BATCH, 2, 4))
    token, places = net.constant("token", (1, 1, 4)), net.constant("places", (1, 3, 4))
    gain, matrix = net.constant("gain", (3, 1, 4)), net.constant("matrix", (3, 4, 4))
    x = net.add("joined", Concat(1), net.add("tokens", Expand((1, 1)), token, x), x)
    x = net.add("turned", Transpose((1, 0, 2)), net.add("placed", Binary("add"), x, places))  # [3, N, 4]
    x = net.add("heads", Reshape((3, -1, 2)), net.add("gained", Binary("mul"), x, gain))  # [3, 2N, 2]
    x = net.add("product", MatrixProduct(), net.add("back", Reshape((3, -1, 4)), x), matrix)
    y = net.add("y", Reduce("avg", (1,)), net.add("tanh", Activation("tanh"), x))  # over the images
    graph, rng = net.build(y), np.random.default_rng(0)
    weights = {one.name: rng.standard_normal(one.shape).astype(np.float32) for one in graph.constants}
    feeds = {"x": rng.standard_normal((batch, 2, 4)), "dy": rng.standard_normal((3, 1, 4))}
    found = _run(handle, graph, weights, {name: array.astype(np.float32) for name, array in feeds.items()}, batch)
    leaves = {name: torch.tensor(array).double().requires_grad_() for name, array in weights.items()}
    z = torch.cat([leaves["token"].expand(batch, -1, -1), torch.tensor(feeds["x"])], 1) + leaves["places"]
    z = (z.transpose(0, 1) * leaves["gain"]) @ leaves["matrix"]
    z.tanh().mean(1, keepdim=True).backward(torch.tensor(feeds["dy"]))
    assert found.keys() == leaves.keys()
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        np.testing.assert_allclose(
            found[name], leaf.grad.numpy(), atol=20 * tolerance(DType.FLOAT32, 100), err_msg=name
        )


def test_what_other_readers_gave_is_not_copied_over_what_is_still_read(handle: Handle) -> None:
    """d.r is free when the gradient of b is computed from it, and what y gave of that is not: dy is needed again, for a."""
    nodes = (
        Node("b", Activation("tanh"), ("c",), ("b",)),
        Node("a", Activation("sigmoid"), ("b",), ("a",)),
        Node("r", Activation("tanh"), ("b",), ("r",)),
        Node("sum", Binary("add"), ("a", "b"), ("sum",)),
        Node("scaled", Binary("mul"), ("r", "factor"), ("scaled",)),
        Node("y", Binary("add"), ("sum", "scaled"), ("y",)),
    )
    graph = Graph("readers", (Value("factor", DType.FLOAT32, (4, 5)),), ("y",), nodes, (Constant("c", (4, 5)),))
    c, factor, dy = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    found = _run(handle, graph, {"c": c}, {"factor": factor, "dy": dy}, 1)["c"]
    leaf = torch.tensor(c).double().requires_grad_()
    b = leaf.tanh()
    (b.sigmoid() + b + b.tanh() * torch.tensor(factor)).backward(torch.tensor(dy))
    assert leaf.grad is not None
    np.testing.assert_allclose(found, leaf.grad.numpy(), atol=20 * tolerance(DType.FLOAT32, 100))


def test_nothing_flows_through_what_only_shapes_and_steps_depend_on(handle: Handle) -> None:
    """Ones in the shape of a value, and a comparison as numbers: of the product with both only the other factor has a gradient."""
    nodes = (
        Node("ones", Ones(), ("c",), ("ones",)),
        Node("less", Binary("less"), ("c", "ones"), ("less",)),
        Node("mask", Cast("float32"), ("less",), ("mask",)),
        Node("largest", ArgMax(1), ("c",), ("largest", "index")),
        Node("number", Cast("float32"), ("index",), ("number",)),
        Node("factor", Binary("add"), ("mask", "number"), ("factor",)),
        Node("y", Binary("mul"), ("factor", "c"), ("y",)),
    )
    graph = Graph("steps", (), ("y",), nodes, (Constant("c", (2, 3)),))
    weights = {"c": np.array([[0.5, 2, -1], [3, 0, 1.5]], np.float32)}
    dy = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    found = _run(handle, graph, weights, {"dy": dy}, 1)["c"]
    assert np.array_equal(found, dy * ((weights["c"] < 1) + np.array([[1], [0]])))


@pytest.mark.parametrize("operator", ["max", "norm2"])
def test_equal_extremes_share_a_gradient_and_nothing_but_zeros_has_none(handle: Handle, operator: str) -> None:
    net = NetBuilder("equal")
    graph = net.build(net.add("y", Reduce(operator, (1,)), net.constant("c", (2, 4))))
    weights = {"c": np.array([[0, 0, 0, 0], [1, 3, 3, -3]], np.float32)}
    found = _run(handle, graph, weights, {"dy": np.array([[2], [4]], np.float32)}, 1)["c"]
    leaf = torch.tensor(weights["c"], requires_grad=True)
    y = leaf.amax(1, keepdim=True) if operator == "max" else leaf.norm(2, 1, keepdim=True)
    y.backward(torch.tensor([[2.0], [4.0]]))
    assert leaf.grad is not None
    np.testing.assert_allclose(found, leaf.grad.numpy(), rtol=tolerance(DType.FLOAT32, 100))


def test_a_parameter_may_be_part_of_something_else(handle: Handle) -> None:
    """Every other element of a constant as scale and bias, which then have gaps."""
    nodes = (
        Node("scale", Slice(0, 0, 7, 2), ("whole",), ("scale",)),
        Node("bias", Slice(0, 1, 8, 2), ("whole",), ("bias",)),
        Node("norm", GroupNorm(2), ("x", "scale", "bias"), ("y", "mean", "inv_std")),
    )
    graph = Graph("gaps", (Value("x", DType.FLOAT32, (BATCH, 4, 3)),), ("y",), nodes, (Constant("whole", (8,)),))
    rng = np.random.default_rng(0)
    weights = {"whole": rng.standard_normal(8).astype(np.float32)}
    feeds = {name: rng.standard_normal((2, 4, 3)).astype(np.float32) for name in ("x", "dy")}
    found = _run(handle, graph, weights, feeds, 2)["whole"]
    leaf = torch.tensor(weights["whole"]).double().requires_grad_()
    y = f.group_norm(torch.tensor(feeds["x"]).double(), 2, leaf[::2], leaf[1::2])
    y.backward(torch.tensor(feeds["dy"]).double())
    assert leaf.grad is not None
    np.testing.assert_allclose(found, leaf.grad.numpy(), atol=20 * tolerance(DType.FLOAT32, 100))


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (Slice(0, 0, 2), r"'x' has extents \[N, 3\]: a gradient along dimension 0, which depends on the batch"),
        (Reduce("mul", (1,)), "reduce 'mul' has no gradient"),
        (TopK(2), "top_k has no gradient"),
    ],
    ids=["slice", "product", "top_k"],
)
def test_what_has_no_gradient_is_refused_with_the_reason(operator: Operator, message: str) -> None:
    outputs = ("y", "indices")[: 1 + isinstance(operator, TopK)]
    nodes = (Node("x", Binary("mul"), ("data", "c"), ("x",)), Node("y", operator, ("x",), outputs))
    graph = Graph("refused", (Value("data", DType.FLOAT32, (BATCH, 3)),), ("y",), nodes, (Constant("c", (3,)),))
    with pytest.raises(BadParamError, match=f"net 'refused': node 'y': {message}"):
        differentiate(graph, {"y": "x"})


def test_statistics_of_a_normalisation_have_no_gradient() -> None:
    norm = Node("norm", LayerNorm(1), ("c",), ("normalized", "mean", "inv_std"))
    y = Node("y", Binary("mul"), ("normalized", "mean"), ("y",))
    graph = Graph("statistics", (), ("y",), (norm, y), (Constant("c", (2, 3)),))
    with pytest.raises(BadParamError, match="no gradient of the statistics"):
        differentiate(graph, {"y": "normalized"})
