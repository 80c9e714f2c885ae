"""A convolution's operands by the problem's fields: gradients under the names of what they are gradients of. Pure."""

from __future__ import annotations

from dnncore.descriptors import TensorDescriptor
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem

__all__ = ["operands_of"]

_NAMES = {
    Direction.FORWARD: ("x", "w", "y"),
    Direction.BACKWARD_DATA: ("w", "y", "x"),
    Direction.BACKWARD_FILTER: ("x", "y", "w"),
}


def operands_of(problem: ConvolutionProblem | FusedConvolutionProblem) -> dict[str, TensorDescriptor]:
    """All of them in the order of their places; the last one is the output."""
    if isinstance(problem, FusedConvolutionProblem):
        names: tuple[str, ...] = (*problem.input_names, *problem.output_names)
    else:
        names = _NAMES[problem.direction]
    return {name: getattr(problem, name) for name in names}
