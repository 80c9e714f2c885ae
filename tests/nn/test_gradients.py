"""Gradients of operators, as nodes, against PyTorch's: random shapes, operands that are views, values with several readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    Binary,
    Cast,
    Concat,
    Expand,
    GroupNorm,
    LayerNorm,
    MatrixProduct,
    Ones,
    Pad,
    Reduce,
    Reshape,
    RMSNorm,
    Slice,
    Softmax,
    Split,
    Transpose,
    Where,
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


def _activation(rng: Rng) -> Drawn:
    modes = {"gelu": f.gelu, "silu": f.silu, "hard_swish": f.hardswish, "tanh": torch.tanh}
    mode = str(rng.choice(list(modes)))
    return Drawn(Activation(mode), (_shape(rng, 1),), modes[mode])


DRAWS: dict[str, Callable[[Rng], Drawn]] = {
    "activation": _activation,
    "binary": _binary,
    "concat": _concat,
    "expand": _expand,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "matrix_product": _matrix_product,
    "pad": _pad,
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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", DRAWS)
def test_gradients_of_random_operators_are_pytorchs(handle: Handle, name: str, seed: int) -> None:
    """In float64 where it is not a device whose kernels take long for that, and in float32 on it too."""
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
    with Parameters.upload(handle, graph, net.weights) as parameters, Executor(graph, handle, parameters, 1) as executor:
        found = executor.run({"dy": dy})
        allowed = 20 * tolerance(dtype, max(100, dy.size))
        np.testing.assert_allclose(found["y"], expected.detach().numpy(), rtol=allowed, atol=allowed)
        for constant, leaf in leaves.items():
            assert leaf.grad is not None
            ours = found[gradients[constant]]
            assert ours.shape == tuple(leaf.shape)
            np.testing.assert_allclose(ours, leaf.grad.numpy(), rtol=allowed, atol=allowed, err_msg=constant)
