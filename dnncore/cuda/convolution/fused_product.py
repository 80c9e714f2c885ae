"""A fused convolution as a product with an epilogue. Pure: nothing knows of a device."""

from __future__ import annotations

from dataclasses import replace

from dnncore.cuda.convolution.product import convolution_outline, convolution_product
from dnncore.cuda.gemm import Epilogue, Outline, Product, product_or_reason
from dnncore.descriptors import TensorDescriptor
from dnncore.problems import FusedConvolutionProblem

__all__ = ["epilogue_of", "fused_outline", "fused_product", "why_unlike"]


def epilogue_of(problem: FusedConvolutionProblem) -> Epilogue:
    """What follows the convolution."""

    def stride(parameter: TensorDescriptor | None) -> int:
        return 0 if parameter is None else parameter.strides[1]

    return Epilogue(
        alpha1=problem.alpha1,
        alpha2=problem.alpha2,
        activation=problem.activation,
        scale_stride=stride(problem.scale),
        bias_stride=stride(problem.bias),
        widened=problem.parameter_dtype is problem.x.dtype.compute,
    )


def fused_product(problem: FusedConvolutionProblem) -> Product | str:
    """Describe it as a product; a reason instead where tiles do not suit it."""
    reason = why_unlike(problem)
    if reason is not None:
        return reason
    product = product_or_reason(convolution_product, problem.plain)  # which its convolution alone may be asked for, too
    if isinstance(product, str):
        return product
    names = (*product.inputs, *problem.input_names[2:])
    return replace(product, inputs=names, epilogue=epilogue_of(problem))


def fused_outline(problem: FusedConvolutionProblem) -> Outline | None:
    """What is known of that product without making it; None where there is none."""
    return convolution_outline(problem.plain) if why_unlike(problem) is None else None


def why_unlike(problem: FusedConvolutionProblem) -> str | None:
    """None where a residual lies as y does, which kernels with an epilogue rely on; else the reason against them."""
    z, y = problem.z, problem.y
    if z is None or _alike(z, y):
        return None
    return f"z has strides {z.strides}, y {y.strides}; a kernel with an epilogue reads z where it writes y"


def _alike(z: TensorDescriptor, y: TensorDescriptor) -> bool:
    """Whether every index is at the same place of both; where there is but one index a stride is never taken."""
    return all(extent == 1 or a == b for extent, a, b in zip(y.shape, z.strides, y.strides, strict=True))
