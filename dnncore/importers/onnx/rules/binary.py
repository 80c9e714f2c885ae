"""Two or more tensors combined, compared, or chosen from, element by element."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.casting import as_dtype
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.values import Computed, Imported, Known
from dnncore.nn.operator import Operator
from dnncore.nn.operators import Binary, Scale, Unary, Where

__all__ = ["RULES"]


_TRAINED = ("add", "sub", "mul", "div")
"""What has parameters: biases, embeddings, scales."""


def _of_two(operator: str) -> Rule:
    def rule(call: Call) -> Sequence[Imported]:
        a, b = (call.parameter(index) if operator in _TRAINED else call.tensor(index) for index in (0, 1))
        return (call.emit(Binary(operator), a, _as_before_opset_7(call, a, b)),)

    return rule


def _as_before_opset_7(call: Call, a: Computed, b: Computed) -> Computed:
    """b with extents of 1 behind its own: before opset 7, "axis" said where in a the extents of b begin."""
    if call.version >= 7:
        return b
    axis, broadcast = call.attributes.integer("axis", a.ndim - b.ndim), call.attributes.integer("broadcast", 0)
    if not broadcast:
        if a.shapes != b.shapes:
            raise BadParamError(f"{a} and {b} must have one shape: broadcast is 0")
        return b
    behind = a.ndim - (axis % max(a.ndim, 1)) - b.ndim
    if behind < 0:
        raise BadParamError(f"{b} has no place in {a} from dimension {axis} on")
    few, many = ((*shape, *(1,) * behind) for shape in b.shapes)
    return call.reshape(b, few, many)


def _of_many(operator: str) -> Rule:
    def rule(call: Call) -> Sequence[Imported]:
        return (_folded(call, operator),)

    return rule


def _folded(call: Call, operator: str) -> Computed:
    total, *others = (
        call.parameter(index) if operator in _TRAINED else call.tensor(index) for index in range(len(call.inputs))
    )
    for other in others:
        total = call.emit(Binary(operator), total, other)
    return total


def _mean(call: Call) -> Sequence[Imported]:
    return (call.emit(Scale(1 / len(call.inputs)), _folded(call, "add")),)


_POWERS: Mapping[float, tuple[Operator, ...]] = {
    -1.0: (Unary("reciprocal"),),
    -0.5: (Unary("rsqrt"),),
    0.5: (Unary("sqrt"),),
    1.0: (),
    2.0: (Unary("square"),),
    4.0: (Unary("square"), Unary("square")),
}
"""Exponents of floating-point numbers that something simpler computes."""


def _pow(call: Call) -> Sequence[Imported]:
    """x to the power of an exponent that may have another dtype; the result has that of x, whole numbers without fractions."""
    x, exponent = call.tensor(0), call.operand(1)
    dtype = x.few.dtype
    if isinstance(exponent, Known):
        value = (
            float(exponent.fixed.reshape(-1)[0])
            if exponent.fixed.size == 1 and exponent.fixed.ndim <= x.ndim
            else math.nan
        )
        if value in _POWERS and dtype.is_floating:
            for operator in _POWERS[value]:
                x = call.emit(operator, x)
            return (x,)
        power = call.constant("exponent", exponent.fixed.astype(dtype.numpy if dtype.is_floating else np.float64))
    else:
        power = exponent
    if power.few.dtype is dtype:
        return (call.emit(Binary("pow"), x, power),)
    wide = dtype if dtype.is_floating else DType.FLOAT64
    y = call.emit(Binary("pow"), as_dtype(call, x, wide), as_dtype(call, power, wide))
    if wide is not dtype:
        y = as_dtype(call, call.emit(Scale(1 + _ABOVE), y), dtype)
    return (y,)


_ABOVE = 1e-12
"""By which part a power of whole numbers in float64 may lie below the whole number that it is; others lie farther below one."""


def _mod(call: Call) -> Sequence[Imported]:
    return (call.emit(Binary("fmod" if call.attributes.integer("fmod", 0) else "mod"), call.tensor(0), call.tensor(1)),)


def _where(call: Call) -> Sequence[Imported]:
    return (call.emit(Where(), *(call.tensor(index) for index in range(3))),)


RULES: Mapping[str, Rule] = {
    "Add": _of_two("add"),
    "And": _of_two("and"),
    "Div": _of_two("div"),
    "Equal": _of_two("equal"),
    "Greater": _of_two("greater"),
    "GreaterOrEqual": _of_two("greater_equal"),
    "Less": _of_two("less"),
    "LessOrEqual": _of_two("less_equal"),
    "Max": _of_many("max"),
    "Mean": _mean,
    "Min": _of_many("min"),
    "Mod": _mod,
    "Mul": _of_two("mul"),
    "Or": _of_two("or"),
    "Pow": _pow,
    "Sub": _of_two("sub"),
    "Sum": _of_many("add"),
    "Where": _where,
    "Xor": _of_two("xor"),
}
