"""The fully connected layer with what customarily follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Spec
from dnncore.nn.operators.activated import Activated
from dnncore.nn.operators.inner_product import InnerProduct
from dnncore.problems import ActivationForwardProblem, AddProblem, FusedConvolutionProblem, MatmulProblem, Problem
from dnncore.tensor import Tensor

__all__ = ["FusedInnerProduct"]

_POINTWISE = ConvolutionDescriptor.make(1)


@dataclass(frozen=True)
class FusedInnerProduct(Activated, InnerProduct):
    """y [N, K] = activation(x w' + bias), of x [N, C], w [K, C] and bias [K]; a pass makes it (dnncore/nn/passes).

    One launch, as a convolution of single places, or a product and what follows it, whichever is faster by estimate: the tiles of
    convolutions suit long sums of few images less.
    """

    kind: ClassVar[str] = "fused_inner_product"
    optional: ClassVar[int] = 0
    batched: ClassVar[frozenset[int]] = frozenset({0})

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        _ = self._activation()  # which checks mode and coefficient
        return super().infer(inputs)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, w, bias = inputs
        assert x is not None
        assert w is not None
        assert bias is not None
        (y,), activation, row = outputs, self._activation(), bias.reshape(1, bias.shape[0])
        images, filters, planes, along = (_with_a_place(tensor) for tensor in (x, w, y, row))
        fused = FusedConvolutionProblem(
            images.descriptor,
            filters.descriptor,
            planes.descriptor,
            _POINTWISE,
            bias=along.descriptor,
            activation=activation,
            overwrites=True,
        )
        product = MatmulProblem(x.descriptor, w.descriptor.transposed(), y.descriptor)
        parts: list[Problem] = [product, AddProblem(row.descriptor, y.descriptor)]
        if activation is not None:
            parts.append(ActivationForwardProblem(y.descriptor, y.descriptor, activation))
        if _seconds(handle, fused) <= _seconds(handle, *parts):
            ops.convolution_bias_activation_forward(handle, 1.0, images, filters, _POINTWISE, along, activation, planes)
            return
        super().lower(handle, inputs, outputs)
        if activation is not None:
            ops.activation_forward(handle, activation, 1.0, y, 0.0, y)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        raise BadParamError(f"{self.kind} has no gradient: differentiate a graph before its inner products are fused")


def _with_a_place(matrix: Tensor) -> Tensor:
    """[M, C] as [M, C, 1]."""
    descriptor = matrix.descriptor
    return matrix.view(TensorDescriptor(descriptor.dtype, (*descriptor.shape, 1), (*descriptor.strides, 1)))


def _seconds(handle: Handle, *problems: Problem) -> float:
    return sum(handle.plan(problem).offer.seconds for problem in problems)
