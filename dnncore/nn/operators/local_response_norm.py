"""Local response normalisation and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import LRNDescriptor, LRNMode
from dnncore.descriptors.settings import member
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.gradients import blend_with
from dnncore.tensor import Tensor

__all__ = ["LocalResponseNorm", "LocalResponseNormBackward"]


@dataclass(frozen=True)
class _LocalResponseNorm(Operator):
    """x / (k + alpha / size times the sum of squares over a window)^beta.

    Args:
        size: Channels of a window, or its extent in each spatial dimension.
        alpha: Factor of the mean square, or of the sum of squares divided by the window's elements.
        beta: The exponent.
        k: Added.
        mode: "across_channels" or "within_channel".
    """

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0
    mode: str = "across_channels"

    @property
    def descriptor(self) -> LRNDescriptor:
        """The normalisation, for operations."""
        return LRNDescriptor(member(LRNMode, self.mode), self.size, self.alpha, self.beta, self.k)

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        _ = self.descriptor  # which checks the settings
        return (inputs[0],)


@dataclass(frozen=True)
class LocalResponseNorm(_LocalResponseNorm):
    """Local response normalisation of x [N, C, *spatial]."""

    kind: ClassVar[str] = "local_response_norm"

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        ops.lrn_forward(handle, self.descriptor, 1.0, inputs[0], 0.0, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        backward = LocalResponseNormBackward(self.size, self.alpha, self.beta, self.k, self.mode)
        return (step.add(backward, step.outputs[0], step.dy, step.x, step.partial()),)


@dataclass(frozen=True)
class LocalResponseNormBackward(_LocalResponseNorm):
    """dx of a local response normalisation, from y, dy and x; plus what is there already."""

    kind: ClassVar[str] = "local_response_norm_backward"
    input_names: ClassVar[tuple[str, ...]] = ("y", "dy", "x", "partial")
    optional: ClassVar[int] = 1
    in_place: ClassVar[frozenset[int]] = frozenset({3})

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        y, dy, x = inputs[:3]
        beta = blend_with(handle, inputs[3:], outputs[0])
        ops.lrn_backward(handle, self.descriptor, 1.0, y, dy, x, beta, outputs[0])
