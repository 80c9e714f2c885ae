"""Element-wise arithmetic on two tensors, or on a tensor and a number, and sums and means over dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from dnncore.dtypes import DType
from dnncore.errors import NotSupportedError
from dnncore.nn.graph import Value
from dnncore.nn.operators import Binary, Cast, GlobalPooling, Reduce, Scale
from dnncore.torch.export.call import Call
from dnncore.torch.export.rules.shapes import axis_of, reshaped

__all__ = ["RULES", "both", "of_two"]

_aten = torch.ops.aten

_Operand = Value | float


def _add(call: Call, x: _Operand, other: _Operand, alpha: float = 1) -> str:
    return call.add(Binary("add", 1.0, float(alpha)), *both(call, x, other))


def _subtract(call: Call, x: _Operand, other: _Operand, alpha: float = 1) -> str:
    return call.add(Binary("sub", 1.0, float(alpha)), *both(call, x, other))


def _subtract_from(call: Call, x: _Operand, other: _Operand, alpha: float = 1) -> str:
    return call.add(Binary("sub", 1.0, float(alpha)), *both(call, other, x))


def _multiply(call: Call, x: _Operand, other: _Operand) -> str:
    for value, factor in ((x, other), (other, x)):
        if isinstance(value, Value) and value.dtype is not DType.BOOL and isinstance(factor, int | float):
            return call.add(Scale(float(factor)), value)
    return call.add(Binary("mul"), *both(call, x, other))


def of_two(operator: str, call: Call, x: _Operand, other: _Operand) -> str:
    """An operator of two tensors, of which one may be a number."""
    return call.add(Binary(operator), *both(call, x, other))


def both(call: Call, *operands: _Operand) -> list[str]:
    """Their names; a number becomes a constant, and bool beside floating point a number of that dtype."""
    found = (each.dtype for each in operands if isinstance(each, Value) and each.dtype.is_floating)
    floating = next(found, DType.FLOAT32 if any(isinstance(each, float) for each in operands) else None)
    return [_operand(call, each, floating) for each in operands]


def _operand(call: Call, operand: _Operand, floating: DType | None) -> str:
    if not isinstance(operand, Value):
        return call.number(_number(operand))
    if operand.dtype is DType.BOOL and floating is not None:
        return call.add(Cast(floating.value), operand, part="cast")
    return operand.name


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise NotSupportedError(f"operand {value!r} depends on the number of images")
    return float(value)


def _negative(call: Call, x: Value) -> str:
    return call.add(Scale(-1.0), x)


def _reduce(
    operator: str, call: Call, x: Value, dim: Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
) -> str:
    """Over some dimensions, or all; a mean over all spatial ones is a pooling."""
    axes = tuple(sorted(axis_of(axis, x) for axis in dim)) if dim else tuple(range(len(x.shape)))
    if operator == "avg" and len(x.shape) > 2 and axes == tuple(range(2, len(x.shape))):
        y = call.add(GlobalPooling("average"), x)
        return y if keepdim else reshaped(call, y, call.shape, x.shape[:2])
    return call.add(Reduce(operator, axes, keepdim), x)


RULES: dict[Any, Callable[..., str]] = {
    _aten.add.Scalar: _add,
    _aten.add.Tensor: _add,
    _aten.amax.default: partial(_reduce, "max"),
    _aten.amin.default: partial(_reduce, "min"),
    _aten.div.Scalar: partial(of_two, "div"),
    _aten.div.Tensor: partial(of_two, "div"),
    _aten.maximum.default: partial(of_two, "max"),
    _aten.mean.default: partial(_reduce, "avg"),
    _aten.mean.dim: partial(_reduce, "avg"),
    _aten.minimum.default: partial(of_two, "min"),
    _aten.mul.Scalar: _multiply,
    _aten.mul.Tensor: _multiply,
    _aten.neg.default: _negative,
    _aten.rsub.Scalar: _subtract_from,
    _aten.rsub.Tensor: _subtract_from,
    _aten.sub.Scalar: _subtract,
    _aten.sub.Tensor: _subtract,
    _aten.sum.default: partial(_reduce, "add"),
    _aten.sum.dim_IntList: partial(_reduce, "add"),
}
"""By operator."""
