"""Batch normalisation, in training and outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dnncore.descriptors import ActivationDescriptor, BatchNormMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems import (
    BatchNormBackwardProblem,
    BatchNormForwardProblem,
    BatchNormInferenceProblem,
    FillProblem,
)
from dnncore.torch.bridge import operate
from dnncore.torch.functions.draft import Draft
from dnncore.torch.functions.formats import (
    along_channels,
    mean_and_inv_std,
    new,
    parameters_for,
    statistics,
    statistics_dtype,
    vector,
    wants_gradient,
)
from dnncore.torch.functions.gradients import Function, first_derivative
from dnncore.torch.functions.link import DY, NotLinkedError, Settings
from dnncore.torch.graph_breaks import breaks_graph
from dnncore.torch.operation import Operation

__all__ = ["LINK", "batch_norm", "batch_norm_in_training"]


def _per_channel(x: TensorDescriptor, dtype: DType) -> TensorDescriptor:
    """[1, C, 1, ...]."""
    return TensorDescriptor.packed((1, x.shape[1], *(1,) * (x.ndim - 2)), dtype)


def _parameter(
    draft: Draft, x: TensorDescriptor, given: TensorDescriptor | None, place: int, default: float
) -> tuple[TensorDescriptor, int]:
    """A parameter as [1, C, 1, ...] and its place: one that is given there, or a constant in its stead."""
    if given is not None:
        return along_channels(given, x.ndim), place
    made = _per_channel(x, x.dtype.compute)
    return made, draft.constant(default, made)


def _trained(
    momentum: float,
    epsilon: float,
    activation: ActivationDescriptor | None,
    x: TensorDescriptor,
    weight: TensorDescriptor | None,
    bias: TensorDescriptor | None,
    running_mean: TensorDescriptor | None,
    running_variance: TensorDescriptor | None,
    *residuals: TensorDescriptor,
) -> Operation:
    """(x, weight, bias, running statistics, which are updated, a residual where there is one) -> y, `statistics`.

    An empty batch has no statistics.
    """
    draft, y, statistic = Draft(5 + len(residuals)), new(x.shape, x), _per_channel(x, x.dtype.compute)
    both = statistics(statistic)
    outputs = draft.make(y), *mean_and_inv_std(both, draft.make(both))
    if x.size == 0:
        return draft.operation()
    scale, scale_at = _parameter(draft, x, weight, 1, 1.0)
    offset, offset_at = _parameter(draft, x, bias, 2, 0.0)
    mean = variance = None
    running_at: tuple[int, ...] = ()
    if running_mean is not None and running_variance is not None:
        mean, variance = (along_channels(statistic, x.ndim) for statistic in (running_mean, running_variance))
        running_at = (3, 4)
    problem = BatchNormForwardProblem(
        x=x,
        scale=scale,
        bias=offset,
        y=y,
        saved_mean=statistic,
        saved_inv_std=statistic,
        mode=BatchNormMode.SPATIAL,
        epsilon=epsilon,
        momentum=momentum if running_at else 0.0,
        running_mean=mean,
        running_variance=variance,
        new_running_mean=mean,
        new_running_variance=variance,
        z=residuals[0] if residuals else None,
        activation=activation,
    )
    residual_at = (5,) if residuals else ()
    draft.step(problem, 0, scale_at, offset_at, *residual_at, *running_at, *outputs, *running_at)
    return draft.operation()


def _gradients(
    bias_is_like_x: bool,
    activation: ActivationDescriptor | None,
    has_residual: bool,
    dy: TensorDescriptor,
    x: TensorDescriptor,
    weight: TensorDescriptor | None,
    both: TensorDescriptor,
    y: TensorDescriptor | None = None,
    bias: TensorDescriptor | None = None,
) -> Operation:
    """(dy, x, weight, `statistics`, y, bias) -> dx, dweight, dbias in the dtypes of their parameters, and the residual's.

    y is there where an activation followed, and bias where no residual came before that. An empty batch has gradients of 0.
    """
    given = 4 if activation is None else 5 if has_residual else 6
    draft, dx, statistic = Draft(given), new(x.shape, x), _per_channel(x, x.dtype.compute)
    dscale = statistic if weight is None else _per_channel(x, weight.dtype)
    dbias = _per_channel(x, x.dtype) if bias_is_like_x else statistic
    outputs = (draft.make(dx), *(draft.make(vector(each.dtype, x.shape[1])) for each in (dscale, dbias)))
    if has_residual:
        outputs = (*outputs, draft.make(dx))
    if x.size == 0:
        for place, gradient in zip(outputs[1:3], (dscale, dbias), strict=True):
            draft.step(FillProblem(gradient), place, alpha=0.0)
        return draft.operation()
    scale, scale_at = _parameter(draft, x, weight, 2, 1.0)
    offset: TensorDescriptor | None = None
    of_activation: tuple[int, ...] = () if y is None else (4,)
    if y is not None and not has_residual:
        offset, offset_at = _parameter(draft, x, bias, 5, 0.0)
        of_activation = (offset_at, 4)
    problem = BatchNormBackwardProblem(
        x=x,
        dy=dy,
        scale=scale,
        saved_mean=statistic,
        saved_inv_std=statistic,
        dx=dx,
        dscale=dscale,
        dbias=dbias,
        mode=BatchNormMode.SPATIAL,
        bias=offset,
        y=y,
        dz=dx if has_residual else None,
        activation=activation,
    )
    draft.step(problem, 1, 0, scale_at, *mean_and_inv_std(both, 3), *of_activation, *outputs)
    return draft.operation()


def _inferred(
    epsilon: float,
    x: TensorDescriptor,
    weight: TensorDescriptor | None,
    bias: TensorDescriptor | None,
    mean: TensorDescriptor,
    variance: TensorDescriptor,
) -> Operation:
    """(x, weight, bias, running statistics) -> y."""
    draft, y = Draft(5), new(x.shape, x)
    result = draft.make(y)
    scale, scale_at = _parameter(draft, x, weight, 1, 1.0)
    offset, offset_at = _parameter(draft, x, bias, 2, 0.0)
    problem = BatchNormInferenceProblem(
        x=x,
        scale=scale,
        bias=offset,
        mean=along_channels(mean, x.ndim),
        variance=along_channels(variance, x.ndim),
        y=y,
        mode=BatchNormMode.SPATIAL,
        epsilon=epsilon,
    )
    draft.step(problem, 0, scale_at, offset_at, 3, 4, result)
    return draft.operation()


_Training = tuple[float, float, ActivationDescriptor | None]
"""momentum, eps, and the activation."""


def _caller(weight: Tensor | None, mean: Tensor | None) -> int | None:
    """Who calls (`operate`): None where tensors are missing, whose form nothing compares."""
    return None if weight is None or mean is None else id(weight)


class _BatchNormTraining(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running: tuple[Tensor | None, Tensor | None],
        settings: _Training,
        residual: Tensor | None = None,
    ) -> Tensor:
        mean, variance = running
        given = (x, weight, bias, mean, variance) if residual is None else (x, weight, bias, mean, variance, residual)
        caller = _caller(weight, mean)
        found = operate(_trained, settings, given, caller)
        y, activation = found[0], settings[2]
        if activation is None:
            ctx.save_for_backward(x, weight, found[1])
        elif residual is None:
            ctx.save_for_backward(x, weight, found[1], y, bias)
        else:
            ctx.save_for_backward(x, weight, found[1], y)
        bias_is_like_x = bias is not None and bias.dtype is x.dtype
        ctx.settings = (bias_is_like_x, activation, residual is not None), caller
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        settings, caller = ctx.settings
        found = operate(_gradients, settings, (dy, *ctx.saved_tensors), caller)
        _, of_weight, of_bias, *of_others = ctx.needs_input_grad
        return (
            found[0],
            found[1] if of_weight else None,
            found[2] if of_bias else None,
            None,
            None,
            found[3] if of_others[-1] else None,
        )


class _BatchNormInference(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        epsilon: float,
    ) -> Tensor:
        y = operate(_inferred, (epsilon,), (x, weight, bias, mean, variance), _caller(weight, mean))[0]
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.epsilon = epsilon
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance = ctx.saved_tensors
        dtype = statistics_dtype(x)
        mean, factor = mean.to(dtype), (variance.to(dtype) + ctx.epsilon).rsqrt()
        dx = dweight = dbias = None
        along = (1, -1, *(1,) * (x.dim() - 2))
        places = [axis for axis in range(x.dim()) if axis != 1]
        if ctx.needs_input_grad[0]:
            slope = factor if weight is None else weight * factor
            dx = (dy * slope.view(along)).to(x.dtype)
        if ctx.needs_input_grad[1]:
            dweight = (dy * ((x - mean.view(along)) * factor.view(along))).sum(places)
        if ctx.needs_input_grad[2]:
            dbias = dy.sum(places, dtype=factor.dtype)
        return dx, dweight, dbias, None, None, None


class _Link:
    """Batch normalisation in training as one of several layers: settings are this, momentum, eps and the activation. Immutable."""

    def forward(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> Operation:  # noqa: ARG002
        """(x, weight, bias, running statistics, residual) -> y, `statistics`; all but x in the dtype of x or its compute type."""
        if len(given) > _RESIDUAL and (given[_RESIDUAL].shape, given[_RESIDUAL].dtype) != (
            given[0].shape,
            given[0].dtype,
        ):
            raise NotLinkedError
        return _trained(*settings[1:], *given)

    def reads(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> tuple[int, ...]:  # noqa: ARG002
        """As `_gradients` has it."""
        y = len(given)
        if settings[3] is None:
            return DY, 0, 1, y + 1
        return (DY, 0, 1, y + 1, y) if y > _RESIDUAL else (DY, 0, 1, y + 1, y, 2)

    def backward(
        self,
        settings: Settings,
        given: Sequence[TensorDescriptor],
        read: Sequence[TensorDescriptor],
        wanted: Sequence[bool],  # noqa: ARG002 (all are computed together)
    ) -> tuple[Operation, tuple[int, ...]]:
        """Those of x, weight and bias, and that of the residual."""
        has_residual = len(given) > _RESIDUAL
        operation = _gradients(given[2].dtype is given[0].dtype, settings[3], has_residual, *read)
        return operation, (0, 1, 2, _RESIDUAL) if has_residual else (0, 1, 2)


_RESIDUAL = 5
"""Its number among what the forward is given."""

LINK = _Link()


@breaks_graph
def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch normalisation of x [N, C, *spatial] over batch and places, with the arguments of torch's.

    Args:
        running_mean, running_var: [C]; updated in training, but not by an empty batch.

    Parameters and running statistics may be of any floating dtype; the arithmetic is in the compute type of x. They are copied
    where they are neither in that nor in the dtype of x.
    """
    if training:
        return batch_norm_in_training(x, running_mean, running_var, weight, bias, (momentum, eps, None))
    scale, offset, mean, variance = parameters_for(x, weight, bias, running_mean, running_var)
    if mean is None or variance is None:
        raise BadParamError("batch_norm outside training needs running_mean and running_var")
    if wants_gradient(x, scale, offset):
        y: Tensor = _BatchNormInference.apply(x, scale, offset, mean, variance, eps)
        return y
    return operate(_inferred, (eps,), (x, scale, offset, mean, variance), _caller(scale, mean))[0]


def batch_norm_in_training(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    settings: _Training,
    residual: Tensor | None = None,
) -> Tensor:
    """activation(batch_norm(x) + residual) with statistics of the batch, by which the running ones are updated.

    Args:
        settings: momentum, eps, and the activation; None for the identity.
        residual: Like x, in shape and dtype; None for 0.
    """
    scale, offset, mean, variance = parameters_for(x, weight, bias, running_mean, running_var)
    y: Tensor
    running = mean, variance
    if wants_gradient(x, scale, offset, residual):
        apply = _BatchNormTraining.apply
        given = (x, scale, offset, running, settings)
        y = apply(*given) if residual is None else apply(*given, residual)
    else:
        plain = (x, scale, offset, mean, variance)
        tensors = plain if residual is None else (*plain, residual)
        y = operate(_trained, settings, tensors, _caller(scale, mean))[0]
    if mean is not running_mean or variance is not running_var:
        _update(running_mean, mean)
        _update(running_var, variance)
    return y


def _update(statistic: Tensor | None, updated: Tensor | None) -> None:
    """Copy a running statistic back that a launch has updated in another dtype."""
    if statistic is not updated and statistic is not None and updated is not None:
        statistic.copy_(updated)
