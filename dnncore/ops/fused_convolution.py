"""Convolution with scale, bias, residual and activation in one operation."""

from __future__ import annotations

from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor
from dnncore.handle import Handle
from dnncore.problems import FusedConvolutionProblem
from dnncore.tensor import Tensor

__all__ = ["convolution_bias_activation_forward"]


def convolution_bias_activation_forward(
    handle: Handle,
    alpha1: float,
    x: Tensor,
    w: Tensor,
    conv: ConvolutionDescriptor,
    bias: Tensor | None,
    activation: ActivationDescriptor | None,
    y: Tensor,
    *,
    scale: Tensor | None = None,
    z: Tensor | None = None,
    alpha2: float = 1.0,
    algorithm: str | None = None,
) -> None:
    """y = activation(alpha1 * conv(x, w) * scale + bias + alpha2 * z), in this order, rounded once unless `composed`.

    Args:
        alpha1: Factor of the convolution. It is part of the problem, so another value is another plan; so is alpha2.
        x: [N, C, *input].
        w: [K, C/G, *filter].
        bias: [1, K, 1, ...], of x's dtype or its compute type (float32 where x is int8).
        activation: None for the identity.
        y: [N, K, *output], written without being read; it may be z.
        scale: Like bias: a batch normalisation's that was folded, or what turns int8 products into numbers.
        z: [N, K, *output], a residual, of y's dtype; not read where alpha2 is 0.
        alpha2: Factor of z.
        algorithm: Take the one of this name; None lets the handle's preference choose.

    Source: cuDNN's cudnnConvolutionBiasActivationForward, and a scale.
    """
    operands = {"scale": scale, "bias": bias, "z": z}
    given = {name: tensor for name, tensor in operands.items() if tensor is not None}
    problem = FusedConvolutionProblem(
        x.descriptor,
        w.descriptor,
        y.descriptor,
        conv,
        **{name: tensor.descriptor for name, tensor in given.items()},
        activation=activation,
        alpha1=alpha1,
        alpha2=alpha2,
    )
    handle.run(handle.plan(problem, algorithm=algorithm), 1.0, (x, w, *given.values()), 0.0, (y,))
