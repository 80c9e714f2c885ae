"""Convolution in its three directions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F

from dnncore.descriptors import ConvolutionDescriptor, ConvolutionMode
from dnncore.problems import ConvolutionProblem, Direction
from tests.ops.oracle.answer import Tensor, Terms, answers
from tests.ops.oracle.padding import pad

__all__ = ["convolve", "plane_magnitudes"]


def convolve(x: Tensor, w: Tensor, conv: ConvolutionDescriptor) -> Tensor:
    if conv.mode is ConvolutionMode.CONVOLUTION:
        w = w.flip(tuple(range(2, w.ndim)))
    padded = pad(x, conv.padding)
    if conv.spatial_ndim <= 3:
        function = (F.conv1d, F.conv2d, F.conv3d)[conv.spatial_ndim - 1]
        return function(padded, w, stride=conv.stride, dilation=conv.dilation, groups=conv.groups)
    y = torch.zeros(conv.output_shape(x.shape, w.shape), dtype=x.dtype)
    per_group = w.shape[0] // conv.groups
    for n, k in itertools.product(range(y.shape[0]), range(y.shape[1])):
        first = k // per_group * w.shape[1]
        for place in itertools.product(*map(range, y.shape[2:])):
            patch = tuple(
                slice(p * s, p * s + (r - 1) * d + 1, d)
                for p, s, r, d in zip(place, conv.stride, w.shape[2:], conv.dilation, strict=True)
            )
            y[(n, k, *place)] = (padded[(n, slice(first, first + w.shape[1]), *patch)] * w[k]).sum()
    return y


@answers.register
def _(problem: ConvolutionProblem, *inputs: Tensor) -> Terms:
    w_taps = math.prod(problem.w.shape[2:])
    if problem.direction is Direction.FORWARD:
        x, w = inputs
        length = problem.w.shape[1] * w_taps
        conv = problem.convolution
        return convolve(x, w, conv), convolve(x.abs(), w.abs(), conv), length

    def gradient(first: Tensor, second: Tensor) -> Tensor:
        if problem.direction is Direction.BACKWARD_DATA:
            x, w, wanted = torch.zeros(problem.x.shape, dtype=torch.float64, requires_grad=True), first, "x"
        else:
            x, w, wanted = first, torch.zeros(problem.w.shape, dtype=torch.float64, requires_grad=True), "w"
        y = convolve(x, w, problem.convolution)
        leaf = x if wanted == "x" else w
        return torch.autograd.grad(y, leaf, second)[0] if y.requires_grad else torch.zeros_like(leaf)

    by_data = problem.w.shape[0] // problem.convolution.groups * w_taps
    by_filter = problem.x.shape[0] * math.prod(problem.y.shape[2:])
    length = by_data if problem.direction is Direction.BACKWARD_DATA else by_filter
    return gradient(*inputs), gradient(*(t.abs() for t in inputs)), max(length, 1)


def plane_magnitudes(problem: ConvolutionProblem, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """For each plane of the output, the largest sum of absolute terms that the planes of the operands could give.

    That is the largest value of one times the sum of the other, added up over what is summed besides places: what an output would
    be if all taps met the largest value. A plane's own terms may all be tiny, where its taps meet mostly padding.
    """
    groups = problem.convolution.groups
    a, b = (
        np.abs(operand.astype(np.float64)).reshape(*operand.shape[:2], math.prod(operand.shape[2:]))
        for operand in (first, second)
    )
    if problem.direction is Direction.BACKWARD_DATA:
        a, b = b, a  # dy, w

    def grouped(planes: np.ndarray) -> np.ndarray:
        """[N, channels] -> [N, G, channels of a group]; of a filter [K, C/G] -> [G, K/G, C/G]."""
        return planes.reshape(planes.shape[0], groups, planes.shape[1] // groups)

    largest, sums = a.max(2, initial=0.0), b.sum(2)
    match problem.direction:
        case Direction.FORWARD:
            w = sums.reshape(groups, sums.shape[0] // groups, sums.shape[1])
            found = np.einsum("ngc,gkc->ngk", grouped(largest), w)
        case Direction.BACKWARD_DATA:
            w = sums.reshape(groups, sums.shape[0] // groups, sums.shape[1])
            found = np.einsum("ngk,gkc->ngc", grouped(largest), w)
        case Direction.BACKWARD_FILTER:
            found = np.einsum("ngc,ngk->gkc", grouped(largest), grouped(sums)).reshape(problem.w.shape[:2])
    planes: np.ndarray = found.reshape(problem.outputs[0].shape[:2])
    return planes
