"""im2col and col2im: PyTorch's unfold where it knows the geometry, a loop over every place elsewhere."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F

from dnncore.descriptors import ConvolutionMode
from dnncore.problems import Col2ImProblem, Im2ColProblem
from tests.ops.oracle.answer import Tensor, Terms, answers
from tests.ops.oracle.padding import pad

__all__: list[str] = []


def _unfold(x: Tensor, problem: Im2ColProblem | Col2ImProblem) -> Tensor:
    conv, window = problem.convolution, problem.filter_shape
    padded = pad(x, conv.padding)
    channels, taps = x.shape[1], math.prod(window)
    if conv.spatial_ndim == 2 and x.numel():
        columns = F.unfold(padded, window, dilation=conv.dilation, stride=conv.stride)
    else:
        columns = torch.stack([patch.reshape(x.shape[0], channels * taps) for patch in _patches(padded, problem)], -1)
    if conv.mode is ConvolutionMode.CONVOLUTION:
        columns = columns.reshape(x.shape[0], channels, taps, -1).flip(2).reshape(columns.shape)
    return columns


def _patches(padded: Tensor, problem: Im2ColProblem | Col2ImProblem) -> list[Tensor]:
    conv = problem.convolution
    spans = [(extent - 1) * d + 1 for extent, d in zip(problem.filter_shape, conv.dilation, strict=True)]
    starts = [
        range(0, extent - span + 1, stride)
        for extent, span, stride in zip(padded.shape[2:], spans, conv.stride, strict=True)
    ]
    return [
        padded[(..., *(slice(p, p + span, d) for p, span, d in zip(place, spans, conv.dilation, strict=True)))]
        for place in itertools.product(*starts)
    ]


@answers.register
def _(problem: Im2ColProblem, x: Tensor) -> Terms:
    columns = _unfold(x, problem)
    return columns, columns.abs(), 1


@answers.register
def _(problem: Col2ImProblem, columns: Tensor) -> Terms:
    def folded(seed: Tensor) -> Tensor:
        x = torch.zeros(problem.x.shape, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(_unfold(x, problem), x, seed)[0]

    return folded(columns), folded(columns.abs()), math.prod(problem.filter_shape)
