"""Layer, group and local response normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dnncore.descriptors import LRNDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems import (
    GroupNormBackwardProblem,
    GroupNormForwardProblem,
    LayerNormBackwardProblem,
    LayerNormForwardProblem,
    LRNBackwardProblem,
    LRNForwardProblem,
)
from dnncore.torch.bridge import operate
from dnncore.torch.functions.formats import (
    along_channels,
    like,
    mean_and_inv_std,
    new,
    parameters_for,
    statistics,
    vector,
    wants_gradient,
)
from dnncore.torch.functions.gradients import Function, first_derivative
from dnncore.torch.graph_breaks import breaks_graph
from dnncore.torch.operation import Operation

__all__ = ["group_norm", "layer_norm", "local_response_norm"]

_Given = TensorDescriptor | None


def _forward(problem: Any) -> Operation:
    """(x, weight, bias) -> y, `statistics`."""
    given = (0, *(place for place, parameter in ((1, problem.scale), (2, problem.bias)) if parameter is not None))
    both = statistics(problem.saved_mean)
    return Operation.of(problem, (*given, 3, *mean_and_inv_std(both, 4)), problem.y, both)


def _backward(problem: Any, shape: tuple[int, ...]) -> Operation:
    """(x, weight, `statistics`, dy) -> dx, and those of dweight and dbias, of this shape, that are wanted."""
    dx, *parameters = problem.outputs
    results = (dx, *(TensorDescriptor.packed(shape, each.dtype) for each in parameters))
    scale = () if problem.scale is None else (1,)
    both = mean_and_inv_std(statistics(problem.saved_mean), 2)
    return Operation.of(problem, (0, 3, *scale, *both, *range(4, 4 + len(results))), *results)


def _gradients(
    x: TensorDescriptor, wanted: tuple[bool, bool], like_x: tuple[bool, bool], seen: Callable[[DType], _Given]
) -> list[_Given]:
    """What the gradients of weight and bias that are wanted look like: of the dtype of x, or of its compute type."""
    return [
        seen(x.dtype if is_like_x else x.dtype.compute) if is_wanted else None
        for is_wanted, is_like_x in zip(wanted, like_x, strict=True)
    ]


def _at_the_end(parameter: _Given, ndim: int) -> _Given:
    """A parameter of the last dimensions as [1, ..., 1, *shape]."""
    if parameter is None:
        return None
    ones = (1,) * (ndim - parameter.ndim)
    return TensorDescriptor(parameter.dtype, (*ones, *parameter.shape), (*ones, *parameter.strides))


def _layer_statistic(shape: tuple[int, ...], x: TensorDescriptor) -> TensorDescriptor:
    return TensorDescriptor.packed((*x.shape[: x.ndim - len(shape)], *(1,) * len(shape)), x.dtype.compute)


def _layer_forward(
    shape: tuple[int, ...], epsilon: float, x: TensorDescriptor, weight: _Given, bias: _Given
) -> Operation:
    axis = x.ndim - len(shape)
    if x.shape[max(axis, 0) :] != shape:
        raise BadParamError(f"normalized_shape {shape} is not how x {x.shape} ends")
    statistic = _layer_statistic(shape, x)
    return _forward(
        LayerNormForwardProblem(
            x=x,
            y=TensorDescriptor.packed(x.shape, x.dtype),
            saved_mean=statistic,
            saved_inv_std=statistic,
            axis=axis,
            epsilon=epsilon,
            scale=_at_the_end(weight, x.ndim),
            bias=_at_the_end(bias, x.ndim),
        )
    )


def _layer_backward(
    shape: tuple[int, ...],
    wanted: tuple[bool, bool],
    like_x: tuple[bool, bool],
    x: TensorDescriptor,
    weight: _Given,
    _both: TensorDescriptor,
    dy: TensorDescriptor,
) -> Operation:
    dscale, dbias = _gradients(
        x, wanted, like_x, lambda dtype: _at_the_end(TensorDescriptor.packed(shape, dtype), x.ndim)
    )
    statistic = _layer_statistic(shape, x)
    problem = LayerNormBackwardProblem(
        x=x,
        dy=dy,
        saved_mean=statistic,
        saved_inv_std=statistic,
        dx=like(x),
        axis=x.ndim - len(shape),
        scale=_at_the_end(weight, x.ndim),
        dscale=dscale,
        dbias=dbias,
    )
    return _backward(problem, shape)


def _group_statistic(groups: int, x: TensorDescriptor) -> TensorDescriptor:
    return TensorDescriptor.packed((x.shape[0], groups, *(1,) * (x.ndim - 2)), x.dtype.compute)


def _group_forward(groups: int, epsilon: float, x: TensorDescriptor, weight: _Given, bias: _Given) -> Operation:
    statistic = _group_statistic(groups, x)
    return _forward(
        GroupNormForwardProblem(
            x=x,
            y=new(x.shape, x),
            saved_mean=statistic,
            saved_inv_std=statistic,
            groups=groups,
            epsilon=epsilon,
            scale=None if weight is None else along_channels(weight, x.ndim),
            bias=None if bias is None else along_channels(bias, x.ndim),
        )
    )


def _group_backward(
    groups: int,
    wanted: tuple[bool, bool],
    like_x: tuple[bool, bool],
    x: TensorDescriptor,
    weight: _Given,
    _both: TensorDescriptor,
    dy: TensorDescriptor,
) -> Operation:
    dscale, dbias = _gradients(x, wanted, like_x, lambda dtype: along_channels(vector(dtype, x.shape[1]), x.ndim))
    statistic = _group_statistic(groups, x)
    problem = GroupNormBackwardProblem(
        x=x,
        dy=dy,
        saved_mean=statistic,
        saved_inv_std=statistic,
        dx=new(x.shape, x),
        groups=groups,
        scale=None if weight is None else along_channels(weight, x.ndim),
        dscale=dscale,
        dbias=dbias,
    )
    return _backward(problem, x.shape[1:2])


class _Normalization(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, directions: Any, cut: Any, epsilon: float
    ) -> Tensor:
        forward, ctx.backward_operation = directions
        y, both = operate(forward, (cut, epsilon), (x, weight, bias))
        ctx.save_for_backward(x, weight, both)
        ctx.cut = cut
        ctx.like_x = tuple(parameter is not None and parameter.dtype is x.dtype for parameter in (weight, bias))
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[1:3]
        dx, *found = operate(ctx.backward_operation, (ctx.cut, wanted, ctx.like_x), (*ctx.saved_tensors, dy))
        gradients = iter(found)
        return dx, *(next(gradients) if is_wanted else None for is_wanted in wanted), None, None, None


_Directions = tuple[Callable[..., Operation], Callable[..., Operation]]
_LAYER: _Directions = (_layer_forward, _layer_backward)
_GROUP: _Directions = (_group_forward, _group_backward)


def _normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, directions: _Directions, cut: Any, epsilon: float
) -> Tensor:
    weight, bias = parameters_for(x, weight, bias)
    if wants_gradient(x, weight, bias):
        y: Tensor = _Normalization.apply(x, weight, bias, directions, cut, epsilon)
        return y
    return operate(directions[0], (cut, epsilon), (x, weight, bias))[0]


@breaks_graph
def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalisation over the last dimensions, with the arguments of torch's; parameters of any floating dtype."""
    return _normalize(x, weight, bias, _LAYER, tuple(normalized_shape), eps)


@breaks_graph
def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalisation over groups of channels, with the arguments of torch's; parameters of any floating dtype."""
    return _normalize(x, weight, bias, _GROUP, num_groups, eps)


def _lrn_forward(lrn: LRNDescriptor, x: TensorDescriptor) -> Operation:
    """x -> y."""
    y = like(x)
    return Operation.of(LRNForwardProblem(x, y, lrn), (0, 1), y)


def _lrn_backward(lrn: LRNDescriptor, x: TensorDescriptor, y: TensorDescriptor, dy: TensorDescriptor) -> Operation:
    """(x, y, dy) -> dx."""
    dx = like(x)
    return Operation.of(LRNBackwardProblem(y, dy, x, dx, lrn), (1, 2, 0, 3), dx)


class _LRN(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lrn: LRNDescriptor) -> Tensor:
        (y,) = operate(_lrn_forward, (lrn,), (x,))
        ctx.save_for_backward(x, y)
        ctx.lrn = lrn
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (dx,) = operate(_lrn_backward, (ctx.lrn,), (*ctx.saved_tensors, dy))
        return dx, None


@breaks_graph
def local_response_norm(x: Tensor, lrn: LRNDescriptor) -> Tensor:
    """y = x / (k + alpha / n * sum of x^2 over a window)^beta of x [N, C, *spatial]."""
    if wants_gradient(x):
        y: Tensor = _LRN.apply(x, lrn)
        return y
    return operate(_lrn_forward, (lrn,), (x,))[0]
