"""Convolution with scale, bias, residual and activation in one operation, and its gradients."""

from __future__ import annotations

from functools import lru_cache

from dnncore.descriptors import ActivationDescriptor, BinaryOperator, ConvolutionDescriptor, TensorDescriptor
from dnncore.descriptors.settings import number
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.ops.activation import activation_backward
from dnncore.ops.convolution import convolution_backward_bias, convolution_backward_data, convolution_backward_filter
from dnncore.ops.tensor import binary, transform
from dnncore.problems import FusedConvolutionProblem
from dnncore.tensor import Tensor

__all__ = ["convolution_bias_activation_backward", "convolution_bias_activation_forward"]


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
    alpha: float = 1.0,
    algorithm: str | None = None,
) -> None:
    """y = alpha * activation(alpha1 * conv(x, w) * scale + bias + alpha2 * z), in this order, rounded once unless `composed`.

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
        alpha: Factor of the whole: for an int8 y the reciprocal of what 1 stands for there.
        algorithm: Take the one of this name; None lets the handle's preference choose.

    Source: cuDNN's cudnnConvolutionBiasActivationForward, and a scale.
    """
    further = (scale, bias, z)
    arguments = (
        x.descriptor,
        w.descriptor,
        y.descriptor,
        conv,
        *(None if tensor is None else tensor.descriptor for tensor in further),
        activation,
        number(alpha1, "alpha1"),
        number(alpha2, "alpha2"),
        z is None or z.locate() != y.locate(),
    )
    inputs = (x, w, *(tensor for tensor in further if tensor is not None))
    handle.execute(FusedConvolutionProblem, arguments, alpha, inputs, 0.0, (y,), algorithm=algorithm)


def convolution_bias_activation_backward(
    handle: Handle,
    alpha1: float,
    x: Tensor,
    w: Tensor,
    conv: ConvolutionDescriptor,
    activation: ActivationDescriptor | None,
    y: Tensor,
    dy: Tensor,
    gradient: Tensor,
    *,
    activated: Tensor | None = None,
    scale: Tensor | None = None,
    alpha2: float = 1.0,
    beta: float = 0.0,
    dx: Tensor | None = None,
    dw: Tensor | None = None,
    dbias: Tensor | None = None,
    dz: Tensor | None = None,
    dscale: Tensor | None = None,
    filter_gradient: Tensor | None = None,
) -> None:
    """Gradients of `convolution_bias_activation_forward`, each where a tensor is given for it: a few operations in turn.

    The convolution's result need not be kept for the gradient of scale. It is linear in w: what its product with a gradient adds up
    to for a filter is also the product of that filter's weights with their own gradient.

    Args:
        alpha1: As forward; so are x, w, conv, activation and alpha2.
        activation: As forward: one whose slope y tells (`ActivationDescriptor.result_tells_slope`), None, or with `activated`
            any.
        y: What the forward operation wrote.
        dy: [N, K, *output].
        gradient: [N, K, *output], scratch of the dtype and strides of dy, which it may be: overwritten.
        activated: [N, K, *output], what went into the activation: what the forward operation writes with activation None. Not
            looked at where activation is None.
        scale: As forward, of x's dtype.
        beta: Each gradient becomes itself + beta * what it held.
        dx: [N, C, *input].
        dw: [K, C/G, *filter].
        dbias: [1, K, 1, ...].
        dz: [N, K, *output].
        dscale: [1, K, 1, ...], of w's dtype; summed in the compute type over products of w and `filter_gradient`.
        filter_gradient: [K, C/G, *filter], scratch of w's dtype that dscale needs; with beta 0 it may be dw. Overwritten.

    Raises:
        BadParamError: also for an activation whose slope y does not tell where `activated` is not given, for a dscale without a
            scale or without its scratch, and where the scratch is a dw that beta wants to keep.
    """
    alpha1, alpha2, beta = number(alpha1, "alpha1"), number(alpha2, "alpha2"), number(beta, "beta")
    if dscale is not None:
        _check_scratch(scale, filter_gradient, dw, beta)
    if activation is None:
        if gradient is not dy:
            transform(handle, 1.0, dy, 0.0, gradient)
    elif activated is not None:
        activation_backward(handle, activation, 1.0, y, dy, activated, 0.0, gradient)
    elif activation.result_tells_slope(y.descriptor.dtype):
        activation_backward(handle, activation, 1.0, y, dy, y, 0.0, gradient)
    else:
        raise BadParamError(
            f"the slope of {activation.mode.value} cannot be told from y, which is {y.descriptor.dtype.value}; give what went "
            "into the activation as `activated`"
        )
    if dbias is not None:
        convolution_backward_bias(handle, 1.0, gradient, beta, dbias)
    if dz is not None:
        transform(handle, alpha2, gradient, beta, dz)
    if dscale is not None and scale is not None and filter_gradient is not None:
        convolution_backward_filter(handle, 1.0, x, gradient, conv, 0.0, filter_gradient)
        _sum_of_products(handle, alpha1, w, filter_gradient, beta, dscale)
        if dw is not None:
            of_filters = _swapped(scale)
            binary(handle, BinaryOperator.MUL, alpha1, filter_gradient, 1.0, of_filters, beta, dw)
            dw = None
    if scale is not None and not (dx is None and dw is None):
        binary(handle, BinaryOperator.MUL, 1.0, gradient, 1.0, scale, 0.0, gradient)
    if dx is not None:
        convolution_backward_data(handle, alpha1, w, gradient, conv, beta, dx)
    if dw is not None:
        convolution_backward_filter(handle, alpha1, x, gradient, conv, beta, dw)


def _check_scratch(scale: Tensor | None, filter_gradient: Tensor | None, dw: Tensor | None, beta: float) -> None:
    if scale is None or filter_gradient is None:
        missing = "scale" if scale is None else "filter_gradient"
        raise BadParamError(f"dscale is given but {missing} is not")
    if dw is not None and beta != 0 and filter_gradient.pointer == dw.pointer:
        raise BadParamError(f"filter_gradient is dw, which beta {beta} keeps part of; give scratch of its own")


def _sum_of_products(handle: Handle, alpha: float, a: Tensor, b: Tensor, beta: float, y: Tensor) -> None:
    """y [1, K, 1, ...] = a times b, both [K, ...], summed over all but K.

    That is the filter gradient of a depthwise convolution with one tap, whose channels are K and whose batch is the next dimension:
    one launch, which takes any strides and rounds once.
    """
    if a.shape[0] == 0:
        return  # no groups at all are not a convolution
    one_tap = _one_tap(len(a.shape) - 2, a.shape[0])
    convolution_backward_filter(handle, alpha, _swapped(a), _swapped(b), one_tap, beta, _swapped(y))


def _swapped(tensor: Tensor) -> Tensor:
    """View a tensor with its first two dimensions in each other's place."""
    return tensor.view(_swapped_descriptor(tensor.descriptor))


_MOST_DESCRIPTORS = 1024
"""That are remembered: a call seen before describes nothing."""


@lru_cache(_MOST_DESCRIPTORS)
def _swapped_descriptor(descriptor: TensorDescriptor) -> TensorDescriptor:
    return descriptor.transposed(1, 0, *range(2, descriptor.ndim))


@lru_cache(_MOST_DESCRIPTORS)
def _one_tap(spatial_ndim: int, groups: int) -> ConvolutionDescriptor:
    return ConvolutionDescriptor.make(spatial_ndim, groups=groups)
