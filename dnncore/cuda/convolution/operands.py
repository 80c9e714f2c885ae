"""A convolution's operands by the problem's fields: gradients under the names of what they are gradients of. Pure."""

from __future__ import annotations

from dnncore.descriptors import TensorDescriptor
from dnncore.problems import ConvolutionProblem, FusedConvolutionProblem

__all__ = ["operands_of"]

_FIELDS = {"dx": "x", "dw": "w", "dy": "y"}


def operands_of(problem: ConvolutionProblem | FusedConvolutionProblem) -> dict[str, TensorDescriptor]:
    """All of them in the order of their places; the last one is the output."""
    names = (*problem.input_names, *problem.output_names)
    return dict(zip((_FIELDS.get(name, name) for name in names), (*problem.inputs, *problem.outputs), strict=True))
