"""Pooling, forward and backward."""

from __future__ import annotations

from dnncore.descriptors import PoolingDescriptor
from dnncore.handle import Handle
from dnncore.problems import PoolingBackwardProblem, PoolingForwardProblem
from dnncore.tensor import Tensor

__all__ = ["pooling_backward", "pooling_forward"]


def pooling_forward(
    handle: Handle, alpha: float, x: Tensor, pooling: PoolingDescriptor, beta: float, y: Tensor
) -> None:
    """y [N, C, *output] = maximum or average of x [N, C, *input] under each window; a maximum propagates NaN."""
    handle.run(handle.plan(PoolingForwardProblem(x.descriptor, y.descriptor, pooling)), alpha, (x,), beta, (y,))


def pooling_backward(
    handle: Handle,
    alpha: float,
    y: Tensor,
    dy: Tensor,
    x: Tensor,
    pooling: PoolingDescriptor,
    beta: float,
    dx: Tensor,
) -> None:
    """dx from what the forward operation read (x) and wrote (y) and from dy; of equal maxima the first takes all."""
    problem = PoolingBackwardProblem(y.descriptor, dy.descriptor, x.descriptor, dx.descriptor, pooling)
    handle.run(handle.plan(problem), alpha, (y, dy, x), beta, (dx,))
