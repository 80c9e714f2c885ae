"""Convolutions of signals, and fully connected layers, as convolutions of images of one row. Pure.

A fully connected layer is a convolution of signals of one element: each is a pixel, with as many channels as there are inputs.
"""

from __future__ import annotations

from dataclasses import replace

from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.problems import ConvolutionProblem, FusedConvolutionProblem

__all__ = ["with_one_row"]


def with_one_row(
    problem: ConvolutionProblem | FusedConvolutionProblem,
) -> ConvolutionProblem | FusedConvolutionProblem:
    """The same convolution of the same memory, with a dimension of extent 1 more where there is one spatial dimension."""
    if problem.convolution.spatial_ndim != 1:
        return problem
    x, w, y, convolution = _row(problem.x), _row(problem.w), _row(problem.y), _beside_no_others(problem.convolution)
    if isinstance(problem, ConvolutionProblem):
        return replace(problem, x=x, w=w, y=y, convolution=convolution)
    scale, bias, z = (None if one is None else _row(one) for one in (problem.scale, problem.bias, problem.z))
    return replace(problem, x=x, w=w, y=y, convolution=convolution, scale=scale, bias=bias, z=z)


def _row(signals: TensorDescriptor) -> TensorDescriptor:
    (n, c, length), (of_n, of_c, step) = signals.shape, signals.strides
    return TensorDescriptor(signals.dtype, (n, c, 1, length), (of_n, of_c, length * step, step))


def _beside_no_others(convolution: ConvolutionDescriptor) -> ConvolutionDescriptor:
    return replace(
        convolution,
        padding=((0, 0), *convolution.padding),
        stride=(1, *convolution.stride),
        dilation=(1, *convolution.dilation),
    )
