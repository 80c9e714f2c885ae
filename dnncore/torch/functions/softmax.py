"""Softmax and its logarithm."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode, TensorDescriptor
from dnncore.problems import SoftmaxBackwardProblem, SoftmaxForwardProblem
from dnncore.torch.bridge import operate
from dnncore.torch.functions.formats import wants_gradient, widened
from dnncore.torch.functions.gradients import Function, first_derivative
from dnncore.torch.graph_breaks import breaks_graph
from dnncore.torch.operation import Operation

__all__ = ["log_softmax", "softmax"]


def _as_channels(tensor: TensorDescriptor, dim: int) -> TensorDescriptor:
    """The same memory with a dimension in the place of C in [N, C, *spatial].

    Raises:
        IndexError: there is no such dimension; in PyTorch's words.
    """
    least, most = -tensor.ndim, tensor.ndim - 1
    if not least <= dim <= most:
        raise IndexError(f"Dimension out of range (expected to be in range of [{least}, {most}], but got {dim})")
    if tensor.ndim == 1:
        return TensorDescriptor(tensor.dtype, (1, *tensor.shape), (0, *tensor.strides))
    axes = list(range(tensor.ndim))
    axes[1], axes[dim] = axes[dim], axes[1]
    return tensor.transposed(*axes)


def _forward(algorithm: SoftmaxAlgorithm, dim: int, x: TensorDescriptor) -> Operation:
    """x -> y."""
    y = TensorDescriptor.packed(x.shape, x.dtype)
    problem = SoftmaxForwardProblem(_as_channels(x, dim), _as_channels(y, dim), algorithm, SoftmaxMode.CHANNEL)
    return Operation.of(problem, (0, 1), y)


def _backward(algorithm: SoftmaxAlgorithm, dim: int, y: TensorDescriptor, dy: TensorDescriptor) -> Operation:
    """(y, dy) -> dx."""
    dx = TensorDescriptor.packed(y.shape, y.dtype)
    problem = SoftmaxBackwardProblem(
        _as_channels(y, dim), _as_channels(dy, dim), _as_channels(dx, dim), algorithm, SoftmaxMode.CHANNEL
    )
    return Operation.of(problem, (0, 1, 2), dx)


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, algorithm: SoftmaxAlgorithm, dim: int) -> Tensor:
        (y,) = operate(_forward, (algorithm, dim), (x,))
        ctx.save_for_backward(y)
        ctx.settings = algorithm, dim
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (dx,) = operate(_backward, ctx.settings, (*ctx.saved_tensors, dy))
        return dx, None, None


def _softmax(x: Tensor, dim: int, algorithm: SoftmaxAlgorithm) -> Tensor:
    x = widened(x)
    scalar = x.dim() == 0
    if scalar:
        x = x.reshape(1)
    y: Tensor = _Softmax.apply(x, algorithm, dim) if wants_gradient(x) else operate(_forward, (algorithm, dim), (x,))[0]
    return y.reshape(()) if scalar else y


@breaks_graph
def softmax(x: Tensor, dim: int) -> Tensor:
    """exp(x) over its sum along a dimension, computed so that it does not overflow; in float32 under `torch.autocast`.

    Raises:
        IndexError: x has no such dimension.
    """
    return _softmax(x, dim, SoftmaxAlgorithm.ACCURATE)


@breaks_graph
def log_softmax(x: Tensor, dim: int) -> Tensor:
    """The logarithm of softmax; in float32 under `torch.autocast`.

    Raises:
        IndexError: x has no such dimension.
    """
    return _softmax(x, dim, SoftmaxAlgorithm.LOG)
