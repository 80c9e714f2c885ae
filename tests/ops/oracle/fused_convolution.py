"""Convolution with scale, bias, residual and activation."""

from __future__ import annotations

import math

import numpy as np
import torch

from dnncore.descriptors import TensorDescriptor
from dnncore.problems import ActivationForwardProblem, FusedConvolutionProblem
from tests.ops.oracle.answer import Tensor, Terms, answers
from tests.ops.oracle.convolution import convolve, plane_magnitudes

__all__ = ["fused_plane_magnitudes"]

_STEEPEST = 1.5
"""Largest slope of any activation, hard swish's: by so much it may enlarge an error of what goes into it."""


def _convolve(problem: FusedConvolutionProblem, x: Tensor, w: Tensor) -> Tensor:
    """PyTorch gives a convolution over no channels no filters either; it is a sum of nothing."""
    return convolve(x, w, problem.convolution) if w.numel() else torch.zeros(problem.y.shape, dtype=torch.float64)


def fused_plane_magnitudes(
    problem: FusedConvolutionProblem, x: np.ndarray, w: np.ndarray, *others: np.ndarray
) -> np.ndarray:
    """`plane_magnitudes` of the convolution, as its errors arrive in y. [N, K]."""
    given = dict(zip(problem.input_names[2:], others, strict=True))
    scale = np.abs(given["scale"].astype(np.float64)).reshape(1, -1) if "scale" in given else 1.0
    return np.asarray(_STEEPEST * abs(problem.alpha1) * plane_magnitudes(problem.plain, x, w) * scale)


@answers.register
def _(problem: FusedConvolutionProblem, x: Tensor, w: Tensor, *others: Tensor) -> Terms:
    given = dict(zip(problem.input_names[2:], others, strict=True))
    ones, zeros = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    scale, bias = given.get("scale", ones), given.get("bias", zeros)
    z = given["z"] if "z" in given and problem.alpha2 else zeros

    value = problem.alpha1 * _convolve(problem, x, w) * scale + bias + problem.alpha2 * z
    magnitude = abs(problem.alpha1) * _convolve(problem, x.abs(), w.abs()) * scale.abs()
    magnitude = _STEEPEST * (magnitude + bias.abs() + abs(problem.alpha2) * z.abs())
    if problem.activation is not None:
        packed = TensorDescriptor.packed(value.shape, "float64")
        found = answers(ActivationForwardProblem(packed, packed, problem.activation), value)
        assert isinstance(found, tuple)
        value = found[0]
    return value, magnitude.maximum(value.abs()), math.prod(problem.w.shape[1:]) + 3
