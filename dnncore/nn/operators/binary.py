"""Two tensors combined element by element, with broadcasting as in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import BinaryOperator
from dnncore.descriptors.settings import member
from dnncore.errors import BadParamError
from dnncore.formats import with_leading
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.gradients import SumTo
from dnncore.tensor import Tensor

__all__ = ["Binary", "Scale", "plus"]


@dataclass(frozen=True)
class Binary(Operator):
    """operator(alpha a, beta b), element by element; extents of 1, and missing leading ones, are broadcast.

    Args:
        operator: "add", "sub", "mul", "div", "min" or "max".
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
        member(BinaryOperator, self.operator)
        if a.dtype is not b.dtype:
            raise BadParamError(f"a {a} and b {b} must have one dtype")
        ndim = max(len(a.shape), len(b.shape))
        extents = [(*(1,) * (ndim - len(spec.shape)), *spec.shape) for spec in (a, b)]
        if any(1 not in pair and pair[0] != pair[1] for pair in zip(*extents, strict=True)):
            raise BadParamError(f"a {a} and b {b} cannot be broadcast to one shape")
        return (a.with_shape(*(y if x == 1 else x for x, y in zip(*extents, strict=True))),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        (c,) = outputs
        a, b = (tensor.view(with_leading(tensor.descriptor, c.ndim)) for tensor in inputs)
        ops.binary(handle, self.operator, self.alpha, a, self.beta, b, 0.0, c)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        return [self._summed(step, place) if step.wants(place) else None for place in (0, 1)]

    def _summed(self, step: BackwardStep, place: int) -> str:
        """The gradient of one operand."""
        own = self._own_part(step, place)
        shape, target = (step.spec(name).shape for name in (step.outputs[0], step.inputs[place]))
        missing = len(shape) - len(target)
        summed = tuple(missing + i for i, e in enumerate(target) if e == 1 and shape[missing + i] != 1)
        if missing or summed:
            return step.add(SumTo(summed, missing), own, step.partial(place))
        return plus(step, own, place)

    def _own_part(self, step: BackwardStep, place: int) -> str:
        """dy times the slope along one operand, before what was broadcast is summed."""
        factor = (self.alpha, self.beta)[place]
        if self.operator in ("add", "sub"):
            factor = -factor if self.operator == "sub" and place == 1 else factor
            return step.dy if factor == 1 else step.add(Scale(factor), step.dy)
        if self.operator == "mul":
            return step.add(Binary("mul", self.alpha * self.beta), step.dy, step.inputs[1 - place])
        if self.operator == "div":
            b = step.inputs[1]
            if place == 0:
                return step.add(Binary("div", self.alpha, self.beta), step.dy, b)
            return step.add(Binary("div", -1.0), step.add(Binary("mul"), step.dy, step.outputs[0]), b)
        raise BadParamError(f"{self.kind} {self.operator!r} has no gradient here")


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


def plus(step: BackwardStep, gradient: str, place: int = 0) -> str:
    """An input's gradient with what is known of it already."""
    partial = step.partial(place)
    return gradient if partial is None else step.add(Binary("add"), partial, gradient)
