"""Functions of one tensor, element by element, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import UnaryOperator
from dnncore.descriptors.settings import member
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.activation import Activation
from dnncore.nn.operators.binary import Binary, Scale, plus
from dnncore.tensor import Tensor

__all__ = ["Unary"]


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
        return (None if slope is None else plus(step, slope(step, step.x, step.outputs[0])),)


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
