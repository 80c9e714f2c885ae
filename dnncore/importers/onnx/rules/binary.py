"""Two or more tensors combined element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.values import Computed, Imported, Known
from dnncore.nn.operators import Binary, Scale

__all__ = ["RULES"]


def _of_two(operator: str) -> Rule:
    def rule(call: Call) -> Sequence[Imported]:
        a, b = call.tensor(0), call.tensor(1)
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
    total = call.tensor(0)
    for index in range(1, len(call.inputs)):
        total = call.emit(Binary(operator), total, call.tensor(index))
    return total


def _mean(call: Call) -> Sequence[Imported]:
    return (call.emit(Scale(1 / len(call.inputs)), _folded(call, "add")),)


def _pow(call: Call) -> Sequence[Imported]:
    """Small whole powers, as products."""
    x, exponent = call.tensor(0), call.operand(1)
    if not isinstance(exponent, Known) or exponent.fixed.size != 1 or exponent.fixed.ndim > x.ndim:
        raise NotSupportedError("the exponent must be one constant number")
    power = float(exponent.fixed.reshape(()))
    if power not in (1.0, 2.0, 3.0, 4.0):
        raise NotSupportedError(f"the exponent {power:g} is not supported; 1, 2, 3 and 4 are")
    y = x
    for _ in range(int(power) - 1):
        y = call.emit(Binary("mul"), y, x)
    return (y,)


RULES: Mapping[str, Rule] = {
    "Add": _of_two("add"),
    "Div": _of_two("div"),
    "Max": _of_many("max"),
    "Mean": _mean,
    "Min": _of_many("min"),
    "Mul": _of_two("mul"),
    "Pow": _pow,
    "Sub": _of_two("sub"),
    "Sum": _of_many("add"),
}
