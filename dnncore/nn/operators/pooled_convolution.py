"""A convolution, what follows it, and max pooling of its result as one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Spec
from dnncore.nn.operators.activated import Activated
from dnncore.nn.operators.convolution import Convolution, as_channels
from dnncore.tensor import Tensor

__all__ = ["PooledConvolution"]

_WINDOW = 2


@dataclass(frozen=True)
class PooledConvolution(Activated, Convolution):
    """max over windows of 2 x 2 that touch of activation(conv(x, weight) + bias); a pass makes it (dnncore/nn/passes/poolings.py).

    Of x [N, C, H, W]; the extents of the convolution's result are even.
    """

    kind: ClassVar[str] = "pooled_convolution"

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        (found,) = super().infer(inputs)
        batch, filters, *extents = found.shape
        if len(extents) != 2 or any(extent % _WINDOW for extent in extents):
            raise BadParamError(
                f"a convolution that gives {found} is not pooled: [N, K, P, Q], P and Q even, is needed"
            )
        _ = self._activation()  # which checks mode and coefficient
        return (found.with_shape(batch, filters, *(extent // _WINDOW for extent in extents)),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, w, bias = (*inputs, None)[:3]
        assert x is not None
        assert w is not None
        channels = None if bias is None else as_channels(bias, x.ndim)
        conv, activation = self._descriptor(x.ndim), self._activation()
        ops.pooled_convolution(handle, 1.0, x, w, conv, 0.0, outputs[0], bias=channels, activation=activation)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        raise BadParamError(f"{self.kind} has no gradient: differentiate a graph before its convolutions are fused")

    def macs(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> int:
        return _WINDOW**2 * super().macs(inputs, outputs)
