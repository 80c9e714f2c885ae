"""Functions of elements: roots, powers and the like, comparisons, choices, and norms, which are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from dnncore.errors import NotSupportedError
from dnncore.nn.graph import Value
from dnncore.nn.operator import Operator
from dnncore.nn.operators import Activation, Binary, Reduce, Scale, Unary, Where
from dnncore.torch.export.call import Call
from dnncore.torch.export.rules.arithmetic import both, of_two
from dnncore.torch.export.rules.shapes import axis_of

__all__ = ["RULES"]

_aten = torch.ops.aten

_POWERS: dict[float, tuple[Operator, ...]] = {
    -1.0: (Unary("reciprocal"),),
    -0.5: (Unary("rsqrt"),),
    0.5: (Unary("sqrt"),),
    1.0: (),
    2.0: (Unary("square"),),
    4.0: (Unary("square"), Unary("square")),
}
"""Exponents for which there is something simpler."""

_NORMS = {1.0: "norm1", 2.0: "norm2", math.inf: "amax"}


def _of_one(operator: str, call: Call, x: Value) -> str:
    return call.add(Unary(operator), x)


def _softplus(call: Call, x: Value, beta: float, threshold: float) -> str:
    """log(1 + exp(beta x)) / beta; where PyTorch gives x itself, beyond the threshold, that is x in float32."""
    if threshold < 20:
        raise NotSupportedError(f"threshold {threshold} is less than 20")
    if beta == 1:
        return call.add(Unary("softplus"), x)
    y = call.add(Unary("softplus"), call.add(Scale(float(beta)), x, part="scaled"), part="softplus")
    return call.add(Scale(1 / beta), y)


def _mish(call: Call, x: Value) -> str:
    """x tanh(softplus(x))."""
    gate = call.add(Activation("tanh"), call.add(Unary("softplus"), x, part="softplus"), part="gate")
    return call.add(Binary("mul"), x, gate)


def _power(call: Call, x: Value | float, exponent: Value | float) -> str:
    if isinstance(x, Value) and exponent in _POWERS:
        y = x.name
        for operator in _POWERS[float(exponent)]:
            y = call.add(operator, y)
        return y
    return call.add(Binary("pow"), *both(call, x, exponent))


def _not(call: Call, x: Value) -> str:
    return call.add(Binary("equal"), x, call.constant("zero", np.zeros(1, x.dtype.numpy)))


def _where(call: Call, condition: Value, x: Value | float, other: Value | float) -> str:
    return call.add(Where(), condition, *both(call, x, other))


def _masked_fill(call: Call, x: Value, mask: Value, value: float) -> str:
    return call.add(Where(), mask, call.number(value), x)


def _vector_norm(
    call: Call,
    x: Value,
    ord: float = 2,  # noqa: A002 (PyTorch's names)
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> str:
    """The root of a sum of squares, a sum of absolute values or the largest of them."""
    if ord not in _NORMS:
        raise NotSupportedError(f"ord {ord} is none of {', '.join(map(str, _NORMS))}")
    axes = range(len(x.shape)) if dim is None else sorted(axis_of(axis, x) for axis in dim)
    return call.add(Reduce(_NORMS[ord], tuple(axes), keepdim), x)


_COMPARISONS = {
    "eq": "equal",
    "ge": "greater_equal",
    "gt": "greater",
    "le": "less_equal",
    "lt": "less",
    "ne": "not_equal",
}

RULES: dict[Any, Callable[..., str]] = {
    **{
        getattr(getattr(_aten, name), form): partial(of_two, operator)
        for name, operator in _COMPARISONS.items()
        for form in ("Scalar", "Tensor")
    },
    **{
        getattr(_aten, name).default: partial(_of_one, name)
        for name in ("abs", "ceil", "cos", "erf", "exp", "floor", "log", "reciprocal", "round", "rsqrt", "sign", "sin")
    },
    _aten.__and__.Tensor: partial(of_two, "and"),
    _aten.__or__.Tensor: partial(of_two, "or"),
    _aten.bitwise_not.default: _not,
    _aten.fmod.Scalar: partial(of_two, "fmod"),
    _aten.linalg_vector_norm.default: _vector_norm,
    _aten.logical_and.default: partial(of_two, "and"),
    _aten.logical_not.default: _not,
    _aten.logical_or.default: partial(of_two, "or"),
    _aten.masked_fill.Scalar: _masked_fill,
    _aten.mish.default: _mish,
    _aten.pow.Scalar: _power,
    _aten.pow.Tensor_Scalar: _power,
    _aten.pow.Tensor_Tensor: _power,
    _aten.remainder.Scalar: partial(of_two, "mod"),
    _aten.softplus.default: _softplus,
    _aten.sqrt.default: partial(_of_one, "sqrt"),
    _aten.where.self: _where,
}
"""By operator."""
