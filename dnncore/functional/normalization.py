"""Batch, layer, RMS, group and local response normalisation.

Parameters and running statistics may be of any floating dtype; where it is neither that of x nor its compute type, copies serve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dnncore.descriptors import BatchNormMode, LRNDescriptor, LRNMode, TensorDescriptor
from dnncore.descriptors.settings import whole, wholes
from dnncore.errors import BadParamError
from dnncore.formats import along_channels, like, with_leading
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.problems import (
    AddProblem,
    BatchNormForwardProblem,
    BatchNormInferenceProblem,
    GroupNormForwardProblem,
    LayerNormForwardProblem,
    LRNForwardProblem,
)
from dnncore.tensor import Tensor

__all__ = ["batch_norm", "group_norm", "layer_norm", "local_response_norm", "rms_norm"]


@remembered
def _batch_norm(
    training: bool,
    momentum: float,
    epsilon: float,
    x: TensorDescriptor,
    mean: TensorDescriptor | None,
    variance: TensorDescriptor | None,
    scale: TensorDescriptor | None,
    bias: TensorDescriptor | None,
) -> Operation:
    """(x, mean, variance, scale, bias) -> y; in training mean and variance are written."""
    if x.ndim < 2:
        raise BadParamError(f"input has shape {x.shape}; [N, C, *spatial] is needed")
    if (mean is None) != (variance is None) or (mean is None and not training):
        raise BadParamError(
            f"running_mean is {mean} and running_var {variance}; outside training both are needed, in training both or neither"
        )
    y = like(x)
    draft = Draft(5, y)
    vector = TensorDescriptor.packed((x.shape[1],), x.dtype.compute)
    located = [
        (draft.filled(default, vector), vector) if given is None else _taken(draft, x, place, given)
        for place, given, default in ((3, scale, 1.0), (4, bias, 0.0))
    ]
    running = [(place, one) for place, one in ((1, mean), (2, variance)) if one is not None]
    located += [_taken(draft, x, place, one) for place, one in running]
    read = [place for place, _ in located]
    weight, offset, *statistics = (along_channels(one, x.ndim) for _, one in located)
    if not training:
        inference = BatchNormInferenceProblem(
            x, weight, offset, statistics[0], statistics[1], y, BatchNormMode.SPATIAL, epsilon
        )
        draft.step(inference, 0, *read, *draft.results)
        return draft.operation()
    means, variances = statistics or (None, None)
    saved = TensorDescriptor.packed(weight.shape, vector.dtype)
    problem = BatchNormForwardProblem(
        x=x,
        scale=weight,
        bias=offset,
        y=y,
        saved_mean=saved,
        saved_inv_std=saved,
        mode=BatchNormMode.SPATIAL,
        epsilon=epsilon,
        momentum=momentum if statistics else 0.0,
        running_mean=means,
        running_variance=variances,
        new_running_mean=means,
        new_running_variance=variances,
    )
    draft.step(problem, 0, *read, *draft.results, *_scratch(draft, problem), *read[2:])
    for place, (given, original) in zip(read[2:], running, strict=True):
        if place != given:
            draft.step(AddProblem(vector, original), place, given)
    return draft.operation()


def _taken(draft: Draft, x: TensorDescriptor, place: int, parameter: TensorDescriptor) -> tuple[int, TensorDescriptor]:
    """A parameter as a normalisation of x takes it: copied where it is neither in the dtype of x nor in its compute type."""
    return (place, parameter) if parameter.dtype is x.dtype else draft.in_dtype(place, parameter, x.dtype.compute)


def _scratch(
    draft: Draft, problem: BatchNormForwardProblem | GroupNormForwardProblem | LayerNormForwardProblem
) -> list[int]:
    """Places for the statistics that the backward operation would read."""
    saved = (problem.saved_mean, problem.saved_inv_std)
    return [draft.scratch(descriptor) for descriptor in saved if descriptor is not None]


def batch_norm(
    input: Operand,
    running_mean: Operand | None,
    running_var: Operand | None,
    weight: Operand | None = None,
    bias: Operand | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """weight * (x - m) / sqrt(v + eps) + bias of x [N, C, *spatial]; all others are [C].

    Args:
        input: [N, C, *spatial].
        running_mean: m outside training. In training, where m and v are those of the batch, it is updated in place, if it is there:
            (1 - momentum) * itself + momentum * m.
        running_var: Likewise with v, in training the unbiased variance of the batch.
        weight: None for 1.
        bias: None for 0.
        training: Whether to use the statistics of the batch.
        momentum: Weight of this batch.
        eps: Added to variances.
    """
    settings = (bool(training), momentum, eps)
    return compute(_batch_norm, settings, input, running_mean, running_var, weight, bias, optional=4)[0]


def _affine(
    draft: Draft,
    x: TensorDescriptor,
    parameters: Sequence[TensorDescriptor | None],
    seen: Callable[[TensorDescriptor], TensorDescriptor],
) -> tuple[list[int], list[TensorDescriptor | None]]:
    """Where scale and bias are, given after x, and how they are seen; None for one that is missing."""
    places: list[int] = []
    descriptors: list[TensorDescriptor | None] = []
    for given, parameter in enumerate(parameters, start=1):
        if parameter is None:
            descriptors.append(None)
            continue
        place, taken = _taken(draft, x, given, parameter)
        places.append(place)
        descriptors.append(seen(taken))
    return places, descriptors


@remembered
def _layer_norm(
    normalized_shape: int | Sequence[int],
    epsilon: float,
    has_mean: bool,
    x: TensorDescriptor,
    scale: TensorDescriptor | None,
    bias: TensorDescriptor | None,
) -> Operation:
    """(x, scale, bias) -> y; without a mean it is RMS normalisation."""
    extents = (normalized_shape,) if isinstance(normalized_shape, int) else wholes(normalized_shape, "normalized_shape")
    axis = x.ndim - len(extents)
    if not extents or x.shape[max(axis, 0) :] != extents:
        raise BadParamError(f"normalized_shape {extents} is not how x {x.shape} ends")
    y = like(x)
    draft = Draft(3, y)
    places, affine = _affine(draft, x, (scale, bias), lambda parameter: with_leading(parameter, x.ndim))
    saved = TensorDescriptor.packed((*x.shape[:axis], *(1,) * len(extents)), x.dtype.compute)
    problem = LayerNormForwardProblem(x, y, saved, axis, epsilon, saved if has_mean else None, *affine)
    draft.step(problem, 0, *places, *draft.results, *_scratch(draft, problem))
    return draft.operation()


def layer_norm(
    input: Operand,
    normalized_shape: int | Sequence[int],
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """weight * (x - m) / sqrt(v + eps) + bias, m and v over the last dimensions of x.

    Args:
        input: [..., *normalized_shape].
        normalized_shape: Extents of the last dimensions.
        weight: [*normalized_shape]; None for 1.
        bias: Likewise; None for 0.
        eps: Added to variances.
    """
    return compute(_layer_norm, (normalized_shape, eps, True), input, weight, bias, optional=2)[0]


def rms_norm(
    input: Operand, normalized_shape: int | Sequence[int], weight: Operand | None = None, eps: float | None = None
) -> Tensor:
    """weight * x / sqrt(mean of x^2 + eps), the mean over the last dimensions of x.

    Args:
        input: [..., *normalized_shape].
        normalized_shape: Extents of the last dimensions.
        weight: [*normalized_shape]; None for 1.
        eps: None for the distance from 1 to the next number of the compute type.
    """
    return compute(_rms_norm, (normalized_shape, eps), input, weight, None, optional=2)[0]


@remembered
def _rms_norm(
    normalized_shape: int | Sequence[int],
    epsilon: float | None,
    x: TensorDescriptor,
    scale: TensorDescriptor | None,
    bias: None,
) -> Operation:
    if epsilon is None:
        epsilon = float(np.finfo(x.dtype.compute.numpy).eps)
    return _layer_norm(normalized_shape, epsilon, False, x, scale, bias)


@remembered
def _group_norm(
    groups: int,
    epsilon: float,
    x: TensorDescriptor,
    scale: TensorDescriptor | None,
    bias: TensorDescriptor | None,
) -> Operation:
    """(x, scale, bias) -> y."""
    if x.ndim < 2:
        raise BadParamError(f"input has shape {x.shape}; [N, C, *spatial] is needed")
    y = like(x)
    draft = Draft(3, y)
    places, affine = _affine(draft, x, (scale, bias), lambda parameter: along_channels(parameter, x.ndim))
    saved = TensorDescriptor.packed((x.shape[0], whole(groups, "num_groups"), *(1,) * (x.ndim - 2)), x.dtype.compute)
    problem = GroupNormForwardProblem(x, y, saved, saved, groups, epsilon, *affine)
    draft.step(problem, 0, *places, *draft.results, *_scratch(draft, problem))
    return draft.operation()


def group_norm(
    input: Operand, num_groups: int, weight: Operand | None = None, bias: Operand | None = None, eps: float = 1e-5
) -> Tensor:
    """weight * (x - m) / sqrt(v + eps) + bias, m and v over a group's channels and places.

    A group for each channel is instance normalisation.

    Args:
        input: [N, C, *spatial].
        num_groups: A divisor of C.
        weight: [C]; None for 1.
        bias: [C]; None for 0.
        eps: Added to variances.
    """
    return compute(_group_norm, (num_groups, eps), input, weight, bias, optional=2)[0]


@remembered
def _local_response_norm(size: int, alpha: float, beta: float, k: float, x: TensorDescriptor) -> Operation:
    if whole(size, "size") % 2 == 0:
        raise BadParamError(
            f"size {size} is even, and PyTorch's window is then not cuDNN's; dnncore.ops.lrn_forward has that"
        )
    y = like(x)
    draft = Draft(1, y)
    draft.step(LRNForwardProblem(x, y, LRNDescriptor(LRNMode.ACROSS_CHANNELS, size, alpha, beta, k)), 0, *draft.results)
    return draft.operation()


def local_response_norm(input: Operand, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha / size * sum of x^2 over `size` neighbouring channels)^beta of x [N, C, *spatial].

    Args:
        input: [N, C, *spatial].
        size: Channels of a window, an odd number.
        alpha: Weight of the sum.
        beta: Exponent, at least 0.01.
        k: What is added, at least 1e-5.
    """
    return compute(_local_response_norm, (size, alpha, beta, k), input)[0]
