"""Functions of one, two and three tensors, element by element, with broadcasting as in NumPy, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dnncore import ops
from dnncore.descriptors import BinaryOperator, UnaryOperator
from dnncore.descriptors.settings import member
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.formats import with_leading
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.activation import Activation
from dnncore.nn.operators.gradients import SumTo
from dnncore.nn.operators.structure import Cast, Zeros
from dnncore.tensor import Tensor

__all__ = ["Binary", "Scale", "Unary", "Where"]


@dataclass(frozen=True)
class Unary(Operator):
    """A function of every element.

    Args:
        operator: A name of `UnaryOperator`.
    """

    kind: ClassVar[str] = "unary"
    in_place: ClassVar[frozenset[int]] = frozenset({0})

    operator: str

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        member(UnaryOperator, self.operator)
        return (inputs[0],)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        ops.unary(handle, self.operator, 1.0, inputs[0], 0.0, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        """dy times the slope, which x or y tells; nothing flows through a function of steps, whose slope is 0."""
        slope = _SLOPES.get(member(UnaryOperator, self.operator))
        return (None if slope is None else step.plus(slope(step, step.x, step.outputs[0])),)


@dataclass(frozen=True)
class Binary(Operator):
    """operator(alpha a, beta b), element by element; extents of 1, and missing leading ones, are broadcast. Comparisons give bool.

    Args:
        operator: A name of `BinaryOperator`.
        alpha: Factor of a.
        beta: Factor of b.
    """

    kind: ClassVar[str] = "binary"
    input_names: ClassVar[tuple[str, ...]] = ("a", "b")
    in_place: ClassVar[frozenset[int]] = frozenset({0, 1})

    operator: str
    alpha: float = 1.0
    beta: float = 1.0

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        a, b = inputs
        if a.dtype is not b.dtype:
            raise BadParamError(f"a {a} and b {b} must have one dtype")
        return (Spec(member(BinaryOperator, self.operator).result(a.dtype), _broadcast(a=a, b=b)),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        (c,) = outputs
        a, b = (tensor.view(with_leading(tensor.descriptor, c.ndim)) for tensor in inputs)
        ops.binary(handle, self.operator, self.alpha, a, self.beta, b, 0.0, c)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        if self.operator not in _SMOOTH:
            return ()
        return [
            _plus_broadcast(step, self._own_part(step, place), place) if step.wants(place) else None for place in (0, 1)
        ]

    def _own_part(self, step: BackwardStep, place: int) -> str:
        """dy times the slope along one operand, before what was broadcast is summed."""
        factor = (self.alpha, self.beta)[place]
        if self.operator in ("add", "sub") or (self.operator in ("mod", "fmod") and place == 0):
            factor = -factor if self.operator == "sub" and place == 1 else factor
            return step.dy if factor == 1 else step.add(Scale(factor), step.dy)
        a, b = step.inputs
        match self.operator, place:
            case "mul", _:
                return step.add(Binary("mul", self.alpha * self.beta), step.dy, (b, a)[place])
            case "div", 0:
                return step.add(Binary("div", self.alpha, self.beta), step.dy, b)
            case "div", _:
                return step.add(Binary("div", -1.0), step.add(Binary("mul"), step.dy, step.outputs[0]), b)
            case (("mod" | "fmod"), _):  # what is left over is alpha a less a whole multiple of beta b
                multiple = step.add(Binary("sub", self.alpha), a, step.outputs[0])
                return step.add(Binary("mul", -1.0), step.dy, step.add(Binary("div"), multiple, b))
            case "pow", 0:
                one = step.add(Unary("exp"), step.add(Zeros(), b))
                power = step.add(Binary("pow", self.alpha), a, step.add(Binary("sub", self.beta), b, one))
                return step.add(Binary("mul", factor * self.beta), step.dy, step.add(Binary("mul"), b, power))
            case "pow", _:
                scaled = step.add(Unary("log"), a if self.alpha == 1 else step.add(Scale(self.alpha), a))
                power = step.add(Binary("mul"), step.outputs[0], scaled)
                return step.add(Binary("mul", factor), step.dy, power)
        return step.add(Binary("mul", factor), step.dy, self._share(step, place))

    def _share(self, step: BackwardStep, place: int) -> str:
        """1 where the extreme is this operand, 1/2 where both are, as PyTorch has it, else 0."""
        dtype = step.dtype(step.dy).value
        order = "less" if (self.operator == "min") == (place == 0) else "greater"
        halves = (
            step.add(Cast(dtype), step.add(Binary(comparison, self.alpha, self.beta), *step.inputs))
            for comparison in (order, f"{order}_equal")
        )
        return step.add(Binary("add", 0.5, 0.5), *halves)


_SMOOTH = ("add", "sub", "mul", "div", "min", "max", "fmod", "mod", "pow")
"""Operators through which gradients flow; those of the others are 0."""


@dataclass(frozen=True)
class Scale(Operator):
    """x times a number.

    Args:
        factor: The number.
    """

    kind: ClassVar[str] = "scale"
    in_place: ClassVar[frozenset[int]] = frozenset({0})

    factor: float

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (inputs[0],)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        ops.transform(handle, self.factor, inputs[0], 0.0, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        if (partial := step.partial()) is None:
            return (step.add(self, step.dy),)
        return (step.add(Binary("add", 1.0, self.factor), partial, step.dy),)


@dataclass(frozen=True)
class Where(Operator):
    """a where the condition, bool, holds, else b; extents of 1, and missing leading ones, are broadcast."""

    kind: ClassVar[str] = "where"
    input_names: ClassVar[tuple[str, ...]] = ("condition", "a", "b")
    in_place: ClassVar[frozenset[int]] = frozenset({1, 2})

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        condition, a, b = inputs
        if condition.dtype is not DType.BOOL or a.dtype is not b.dtype:
            raise BadParamError(f"the condition {condition} must be bool, and a {a} and b {b} must have one dtype")
        return (Spec(a.dtype, _broadcast(condition=condition, a=a, b=b)),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        (c,) = outputs
        condition, a, b = (tensor.view(with_leading(tensor.descriptor, c.ndim)) for tensor in inputs)
        ops.where(handle, 1.0, condition, a, b, 0.0, c)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        """dy where the operand was taken, else 0."""
        zeros = step.add(Zeros(), step.dy)
        found: list[str | None] = [None]
        for place, chosen in ((1, (step.dy, zeros)), (2, (zeros, step.dy))):
            own = step.add(Where(), step.x, *chosen) if step.wants(place) else None
            found.append(None if own is None else _plus_broadcast(step, own, place))
        return found


def _broadcast(**operands: Spec) -> tuple[int, ...]:
    """The shape that operands, given by name, are broadcast to.

    Raises:
        BadParamError: there is none.
    """
    try:
        return np.broadcast_shapes(*(spec.shape for spec in operands.values()))
    except ValueError as error:
        named = " and ".join(f"{name} {spec}" for name, spec in operands.items())
        raise BadParamError(f"{named} cannot be broadcast to one shape") from error


def _plus_broadcast(step: BackwardStep, gradient: str, place: int) -> str:
    """The gradient of an input that was broadcast to the output's shape, with what is known of it already."""
    shape, target = step.shape(step.outputs[0]), step.shape(step.inputs[place])
    missing = len(shape) - len(target)
    summed = tuple(missing + i for i, e in enumerate(target) if e == 1 and shape[missing + i] != 1)
    if missing or summed:
        return step.add(SumTo(summed, missing), gradient, step.partial(place))
    return step.plus(gradient, place)


def _times(step: BackwardStep, factor: float, *names: str) -> str:
    """dy times a number and some values."""
    product = step.dy
    for name in names[:-1]:
        product = step.add(Binary("mul"), product, name)
    return step.add(Binary("mul", factor), product, names[-1])


def _erf(step: BackwardStep, x: str, _y: str) -> str:
    """2 / sqrt(pi) exp(-x^2)."""
    negative = step.add(Scale(-1.0), step.add(Unary("square"), x))
    return _times(step, 2 / math.sqrt(math.pi), step.add(Unary("exp"), negative))


_SLOPES: dict[UnaryOperator, Callable[[BackwardStep, str, str], str]] = {
    UnaryOperator.ABS: lambda step, x, _: _times(step, 1.0, step.add(Unary("sign"), x)),
    UnaryOperator.COS: lambda step, x, _: _times(step, -1.0, step.add(Unary("sin"), x)),
    UnaryOperator.ERF: _erf,
    UnaryOperator.EXP: lambda step, _, y: _times(step, 1.0, y),
    UnaryOperator.LOG: lambda step, x, _: step.add(Binary("div"), step.dy, x),
    UnaryOperator.NEG: lambda step, _, __: step.add(Scale(-1.0), step.dy),
    UnaryOperator.RECIPROCAL: lambda step, _, y: _times(step, -1.0, y, y),
    UnaryOperator.RSQRT: lambda step, _, y: _times(step, -0.5, y, y, y),
    UnaryOperator.SIN: lambda step, x, _: _times(step, 1.0, step.add(Unary("cos"), x)),
    UnaryOperator.SOFTPLUS: lambda step, x, _: _times(step, 1.0, step.add(Activation("sigmoid"), x)),
    UnaryOperator.SQRT: lambda step, _, y: step.add(Binary("div", 0.5), step.dy, y),
    UnaryOperator.SQUARE: lambda step, x, _: _times(step, 2.0, x),
}
"""By function: the nodes of its gradient, from the names of x and y."""
