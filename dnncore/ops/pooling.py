"""Pooling, forward and backward."""

from __future__ import annotations

from dnncore.descriptors import PoolingDescriptor
from dnncore.handle import Handle
from dnncore.problems import PoolingBackwardIndicesProblem, PoolingBackwardProblem, PoolingForwardProblem
from dnncore.tensor import Tensor

__all__ = ["pooling_backward", "pooling_backward_indices", "pooling_forward"]


def pooling_forward(
    handle: Handle,
    alpha: float,
    x: Tensor,
    pooling: PoolingDescriptor,
    beta: float,
    y: Tensor,
    indices: Tensor | None = None,
) -> None:
    """y [N, C, *output] = maximum or average of x [N, C, *input] under each window.

    Args:
        x: Floating-point, or int8, whose averages are rounded to even.
        y: Of the dtype of x.
        indices: int32 [N, C, *output], for maxima only: overwritten with the place of each among those of x[n, c], in row-major
            order (PyTorch's `return_indices`). Of equal maxima it is the first.

    A maximum propagates NaN; with `propagate_nan=False` NaN counts as minus infinity.
    """
    arguments = (x.descriptor, y.descriptor, pooling, None if indices is None else indices.descriptor)
    handle.execute(PoolingForwardProblem, arguments, alpha, (x,), beta, (y,) if indices is None else (y, indices))


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
    """dx from what the forward operation read (x) and wrote (y) and from dy; of equal maxima the first takes all.

    The maxima are looked for in x again: `pooling_backward_indices` spares that. Both add in a fixed order, so that equal inputs
    give equal bits.
    """
    arguments = (y.descriptor, dy.descriptor, x.descriptor, dx.descriptor, pooling)
    handle.execute(PoolingBackwardProblem, arguments, alpha, (y, dy, x), beta, (dx,))


def pooling_backward_indices(
    handle: Handle,
    alpha: float,
    dy: Tensor,
    indices: Tensor,
    pooling: PoolingDescriptor,
    beta: float,
    dx: Tensor,
) -> None:
    """dx [N, C, *input] from dy and from the indices that `pooling_forward` wrote; x and y are not needed.

    Each dy goes to the place that its index names; an index outside its own window is passed over.
    """
    arguments = (dy.descriptor, indices.descriptor, dx.descriptor, pooling)
    handle.execute(PoolingBackwardIndicesProblem, arguments, alpha, (dy, indices), beta, (dx,))
