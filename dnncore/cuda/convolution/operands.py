"""A convolution's operands by the problem's fields: gradients under the names of what they are gradients of. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem

__all__ = ["is_wide", "narrowed", "operands_of"]


@lru_cache(maxsize=16)  # what is composed of others asks for them again and again
def operands_of(problem: ConvolutionProblem | FusedConvolutionProblem) -> Mapping[str, TensorDescriptor]:
    """All of them in the order of their places; the last one is the output."""
    if isinstance(problem, FusedConvolutionProblem):
        return {name: getattr(problem, name) for name in (*problem.input_names, *problem.output_names)}
    x, w, y = problem.x, problem.w, problem.y
    if problem.direction is Direction.FORWARD:
        return {"x": x, "w": w, "y": y}
    return {"w": w, "y": y, "x": x} if problem.direction is Direction.BACKWARD_DATA else {"x": x, "y": y, "w": w}


def is_wide(problem: ConvolutionProblem) -> bool:
    """Whether it is a filter gradient in the compute type of operands in 16 bits."""
    return problem.w.dtype is DType.FLOAT32 and problem.x.dtype in (DType.FLOAT16, DType.BFLOAT16)


def narrowed(problem: ConvolutionProblem) -> ConvolutionProblem:
    """The same with a filter gradient in the dtype of the operands."""
    return replace(problem, w=problem.w.with_dtype(problem.x.dtype)) if is_wide(problem) else problem
