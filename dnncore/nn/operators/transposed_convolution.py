"""The transposed convolution, which Caffe calls deconvolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Spec
from dnncore.nn.operators.convolution import Convolution, ConvolutionBackwardFilter, as_channels
from dnncore.nn.operators.gradients import ChannelSum
from dnncore.tensor import Tensor

__all__ = ["TransposedConvolution"]


@dataclass(frozen=True)
class TransposedConvolution(Convolution):
    """The adjoint of a convolution of K/G channels, plus bias: x [N, C, *spatial], w [C, K/G, *kernel], bias [K].

    y [N, K, *output] has stride (spatial - 1) + dilation (kernel - 1) + 1 - padding in each dimension.
    """

    kind: ClassVar[str] = "transposed_convolution"

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, w, bias = (*inputs, None)[:3]
        assert x is not None
        assert w is not None
        if len(x.shape) < 3 or len(w.shape) != len(x.shape) or x.shape[1] != w.shape[0]:
            raise BadParamError(f"x {x} and weight {w} do not fit: x must be [N, C, ...] and weight [C, K/G, ...]")
        conv = self._descriptor(len(x.shape))
        if x.shape[1] % self.groups:
            raise BadParamError(f"{x.shape[1]} channels must be a multiple of groups {self.groups}")
        spatial = tuple(
            stride * (extent - 1) + dilation * (kernel - 1) + 1 - sum(padding)
            for extent, kernel, stride, dilation, padding in zip(
                x.shape[2:], w.shape[2:], conv.stride, conv.dilation, conv.padding, strict=True
            )
        )
        if min(spatial) < 1:
            raise BadParamError(f"x {x} and weight {w} with padding {self.padding} leave nothing: {list(spatial)}")
        y = x.with_shape(x.shape[0], w.shape[1] * self.groups, *spatial)
        if bias is not None and bias.shape != y.shape[1:2]:
            raise BadParamError(f"bias {bias} must have the shape [{y.shape[1]}]")
        return (y,)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, w, bias = (*inputs, None)[:3]
        assert x is not None
        assert w is not None
        ops.convolution_backward_data(handle, 1.0, w, x, self._descriptor(x.ndim), 0.0, outputs[0])
        if bias is not None:
            ops.add(handle, 1.0, as_channels(bias, x.ndim), 1.0, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        """The adjoint's adjoint is the convolution; the filter's is a convolution's with x and dy exchanged."""
        x, w = step.inputs[:2]
        dx = dw = db = None
        if step.wants(1):
            kernel = step.extents(w, 2)
            dw = step.add(ConvolutionBackwardFilter(*self._settings(), kernel=kernel), step.dy, x, step.partial(1))
        if step.wants(2):
            db = step.add(ChannelSum(), step.dy, step.partial(2))
        if step.wants(0):
            dx = step.plus(step.add(Convolution(*self._settings()), step.dy, w))
        return (dx, dw, db)

    def macs(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> int:
        x, w = inputs[:2]
        assert x is not None
        assert w is not None
        return x.size * math.prod(w.shape[1:])
