"""Softmax, forward and backward."""

from __future__ import annotations

from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode
from dnncore.descriptors.settings import member
from dnncore.handle import Handle
from dnncore.problems import SoftmaxBackwardProblem, SoftmaxForwardProblem
from dnncore.tensor import Tensor

__all__ = ["softmax_backward", "softmax_forward"]


def softmax_forward(
    handle: Handle,
    algorithm: SoftmaxAlgorithm | str,
    mode: SoftmaxMode | str,
    alpha: float,
    x: Tensor,
    beta: float,
    y: Tensor,
) -> None:
    """y = softmax of x [N, C, *spatial], or its logarithm; y may be x."""
    how, over = member(SoftmaxAlgorithm, algorithm), member(SoftmaxMode, mode)
    handle.execute(SoftmaxForwardProblem, (x.descriptor, y.descriptor, how, over), alpha, (x,), beta, (y,))


def softmax_backward(
    handle: Handle,
    algorithm: SoftmaxAlgorithm | str,
    mode: SoftmaxMode | str,
    alpha: float,
    y: Tensor,
    dy: Tensor,
    beta: float,
    dx: Tensor,
) -> None:
    """dx from what the forward operation wrote (y) and from dy; dx may be dy."""
    how, over = member(SoftmaxAlgorithm, algorithm), member(SoftmaxMode, mode)
    arguments = (y.descriptor, dy.descriptor, dx.descriptor, how, over)
    handle.execute(SoftmaxBackwardProblem, arguments, alpha, (y, dy), beta, (dx,))
