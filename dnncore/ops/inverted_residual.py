"""MobileNetV2's inverted residual in one operation."""

from __future__ import annotations

from dnncore.descriptors import ActivationDescriptor
from dnncore.handle import Handle
from dnncore.problems import InvertedResidualProblem
from dnncore.tensor import Tensor

__all__ = ["inverted_residual"]


def inverted_residual(
    handle: Handle,
    alpha: float,
    x: Tensor,
    depthwise: Tensor,
    project: Tensor,
    beta: float,
    y: Tensor,
    *,
    expand: Tensor | None = None,
    expand_bias: Tensor | None = None,
    depthwise_bias: Tensor | None = None,
    project_bias: Tensor | None = None,
    activation: ActivationDescriptor | None = None,
    stride: int = 1,
    residual: bool = False,
    algorithm: str | None = None,
) -> None:
    """y = conv(f(conv(f(conv(x, expand) + b), depthwise) + b), project) + b [+ x]: three fused convolutions, rounded alike.

    Args:
        x: float16 or bfloat16 [N, C, H, W].
        depthwise: [E, 1, 3, 3], padding 1.
        project: [K, E, 1, 1].
        y: [N, K, P, Q], not x.
        expand: [E, C, 1, 1]; None where E is C.
        expand_bias: [1, E, 1, 1], of x's dtype or float32; so are the others, that of `project` [1, K, 1, 1].
        depthwise_bias: See `expand_bias`.
        project_bias: See `expand_bias`.
        activation: f; None for the identity.
        stride: Of the depthwise convolution.
        residual: Whether x is added.
        algorithm: Take the one of this name; None lets the handle's preference choose.
    """
    optional = (expand, expand_bias, depthwise_bias, project_bias)
    arguments = (
        *(x.descriptor, depthwise.descriptor, project.descriptor, y.descriptor),
        *(None if tensor is None else tensor.descriptor for tensor in optional),
        *(activation, stride, residual),
    )
    possible = (x, expand, expand_bias, depthwise, depthwise_bias, project, project_bias)
    inputs = tuple(tensor for tensor in possible if tensor is not None)
    handle.execute(InvertedResidualProblem, arguments, alpha, inputs, beta, (y,), algorithm=algorithm)
