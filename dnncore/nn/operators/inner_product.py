"""The fully connected layer and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.errors import BadParamError
from dnncore.formats import with_leading
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.gradients import ChannelSum, blend_with
from dnncore.tensor import Tensor

__all__ = ["InnerProduct", "InnerProductBackwardData", "InnerProductBackwardWeight"]


@dataclass(frozen=True)
class InnerProduct(Operator):
    """y [N, K] = x w' + bias, of x [N, C], w [K, C] and bias [K]."""

    kind: ClassVar[str] = "inner_product"
    input_names: ClassVar[tuple[str, ...]] = ("x", "weight", "bias")
    optional: ClassVar[int] = 1

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, w = inputs[:2]
        assert x is not None
        assert w is not None
        if len(w.shape) != 2 or len(x.shape) != 2 or x.shape[1] != w.shape[1]:
            raise BadParamError(f"x {x} and weight {w} do not fit: x must be [N, C] and weight [K, C]")
        for bias in inputs[2:]:
            if bias is not None and bias.shape != w.shape[:1]:
                raise BadParamError(f"bias {bias} must have the shape [{w.shape[0]}]")
        return (x.with_shape(x.shape[0], w.shape[0]),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, w, bias = (*inputs, None)[:3]
        assert x is not None
        assert w is not None
        ops.inner_product_forward(handle, 1.0, x, w, 0.0, outputs[0])
        if bias is not None:
            ops.add(handle, 1.0, bias.view(with_leading(bias.descriptor, 2)), 1.0, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        x, w = step.inputs[:2]
        dx = dw = db = None
        if step.wants(1):
            dw = step.add(InnerProductBackwardWeight(), x, step.dy, step.partial(1))
        if step.wants(2):
            db = step.add(ChannelSum(), step.dy, step.partial(2))
        if step.wants(0):
            dx = step.add(InnerProductBackwardData(), w, step.dy, step.partial(0))
        return (dx, dw, db)

    def macs(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> int:
        w = inputs[1]
        assert w is not None
        return outputs[0].size * w.shape[1]


@dataclass(frozen=True)
class InnerProductBackwardData(Operator):
    """dx [N, C] from w and dy; plus what is there already."""

    kind: ClassVar[str] = "inner_product_backward_data"
    input_names: ClassVar[tuple[str, ...]] = ("weight", "dy", "partial")
    optional: ClassVar[int] = 1
    in_place: ClassVar[frozenset[int]] = frozenset({2})

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (inputs[1].with_shape(inputs[1].shape[0], inputs[0].shape[1]),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        beta = blend_with(handle, inputs[2:], outputs[0])
        ops.inner_product_backward_data(handle, 1.0, inputs[0], inputs[1], beta, outputs[0])

    def macs(self, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> int:
        return outputs[0].size * inputs[0].shape[0]


@dataclass(frozen=True)
class InnerProductBackwardWeight(Operator):
    """dw [K, C] from x and dy; plus what is there already."""

    kind: ClassVar[str] = "inner_product_backward_weight"
    input_names: ClassVar[tuple[str, ...]] = ("x", "dy", "partial")
    optional: ClassVar[int] = 1
    in_place: ClassVar[frozenset[int]] = frozenset({2})

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (inputs[1].with_shape(inputs[1].shape[1], inputs[0].shape[1]),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        beta = blend_with(handle, inputs[2:], outputs[0])
        ops.inner_product_backward_weights(handle, 1.0, inputs[0], inputs[1], beta, outputs[0])

    def macs(self, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> int:
        return outputs[0].size * inputs[0].shape[0]
