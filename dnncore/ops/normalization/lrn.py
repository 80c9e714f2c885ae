"""Local response normalisation, forward and backward."""

from __future__ import annotations

from dnncore.descriptors import LRNDescriptor
from dnncore.handle import Handle
from dnncore.problems import LRNBackwardProblem, LRNForwardProblem
from dnncore.tensor import Tensor

__all__ = ["lrn_backward", "lrn_forward"]


def lrn_forward(handle: Handle, lrn: LRNDescriptor, alpha: float, x: Tensor, beta: float, y: Tensor) -> None:
    """y = x / (k + alpha / size * sum of x^2 over a window)^beta of x [N, C, *spatial]; y must not be x."""
    handle.execute(LRNForwardProblem, (x.descriptor, y.descriptor, lrn), alpha, (x,), beta, (y,))


def lrn_backward(
    handle: Handle, lrn: LRNDescriptor, alpha: float, y: Tensor, dy: Tensor, x: Tensor, beta: float, dx: Tensor
) -> None:
    """dx from what the forward operation read (x) and wrote (y) and from dy; dx must be none of them."""
    arguments = (y.descriptor, dy.descriptor, x.descriptor, dx.descriptor, lrn)
    handle.execute(LRNBackwardProblem, arguments, alpha, (y, dy, x), beta, (dx,))
