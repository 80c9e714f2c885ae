"""What blocks of layers are made of: fused convolutions, of which one reads what another gave."""

from __future__ import annotations

from typing import NamedTuple

from dnncore.problems.fused_convolution import FusedConvolutionProblem

__all__ = ["Layer", "layer"]


class Layer(NamedTuple):
    """A layer of a block. Immutable.

    Args:
        problem: What it computes.
        operands: Names of what it reads, in the problem's order: operands of the block, and results of layers before.
        result: The name of what it gives: the block's output, or what layers behind it read.
    """

    problem: FusedConvolutionProblem
    operands: tuple[str, ...]
    result: str


def layer(problem: FusedConvolutionProblem, x: str, filters: str, result: str, z: str | None = None) -> Layer:
    """A layer whose filters are called so, and its bias, where it has one, `filters` with `_bias` behind."""
    bias = () if problem.bias is None else (f"{filters}_bias",)
    return Layer(problem, (x, filters, *bias, *(() if z is None else (z,))), result)
