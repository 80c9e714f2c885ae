"""Dropout: as nets are run, nothing is dropped; as they are trained, what a generator says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.structure import Identity
from dnncore.tensor import Tensor

__all__ = ["Dropout", "DropoutTraining"]


@dataclass(frozen=True)
class Dropout(Identity):
    """x itself.

    Args:
        probability: That an element would be dropped while a net is trained.
    """

    kind: ClassVar[str] = "dropout"

    probability: float = 0.5


@dataclass(frozen=True)
class DropoutTraining(Operator):
    """x without the elements that are dropped, the others scaled up; and the gradient of that, of dy and the same state.

    Args:
        probability: That an element is dropped.
    """

    kind: ClassVar[str] = "dropout_training"
    input_names: ClassVar[tuple[str, ...]] = ("x", "state")
    in_place: ClassVar[frozenset[int]] = frozenset({0})

    probability: float = 0.5

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        x, state = inputs
        if state != Spec(DType.INT32, (4,)):
            raise BadParamError(f"state {state} must be int32[4], as ops.dropout_state gives it")
        return (x,)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        x, state = inputs
        ops.dropout_forward(handle, self.probability, 1.0, x, state, 0.0, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        return (step.plus(step.add(self, step.dy, step.inputs[1])),)
