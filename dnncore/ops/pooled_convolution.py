"""Convolution with bias, activation and max pooling in one operation."""

from __future__ import annotations

from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor
from dnncore.handle import Handle
from dnncore.problems import PooledConvolutionProblem
from dnncore.tensor import Tensor

__all__ = ["pooled_convolution"]


def pooled_convolution(
    handle: Handle,
    alpha: float,
    x: Tensor,
    w: Tensor,
    convolution: ConvolutionDescriptor,
    beta: float,
    y: Tensor,
    *,
    bias: Tensor | None = None,
    activation: ActivationDescriptor | None = None,
    algorithm: str | None = None,
) -> None:
    """y = alpha * maximum of every 2 x 2 places of activation(conv(x, w) + bias) + beta * y; NaN is the maximum of its window.

    It is what a convolution and a pooling give one after the other: what is pooled is rounded to the dtype before. With an alpha
    other than 1, or a beta, an algorithm may scale and blend the maximum before it is rounded.

    Args:
        x: float16, bfloat16 or float32 [N, C, H, W].
        w: [K, C/G, R, S].
        convolution: One that gives [N, K, P, Q], P and Q even.
        y: [N, K, P/2, Q/2].
        bias: [1, K, 1, 1], of x's dtype or float32; None for 0.
        activation: None for the identity.
        algorithm: Take the one of this name; None lets the handle's preference choose.
    """
    arguments = (
        *(x.descriptor, w.descriptor, y.descriptor, convolution),
        *(None if bias is None else bias.descriptor, activation),
    )
    inputs = (x, w) if bias is None else (x, w, bias)
    handle.execute(PooledConvolutionProblem, arguments, alpha, inputs, beta, (y,), algorithm=algorithm)
