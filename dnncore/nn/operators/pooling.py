"""Maximum and average pooling, over windows and over everything, their gradients, and where maxima are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import PoolingDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.convolution import Extents, Padding
from dnncore.nn.operators.gradients import blend_with
from dnncore.tensor import Tensor

__all__ = ["GlobalPooling", "PlaneOffsets", "Pooling", "PoolingBackward", "PoolingWithIndices"]


@dataclass(frozen=True)
class _Window(Operator):
    """A window and how it moves.

    Args:
        mode: "max", "average_include_padding" or "average_exclude_padding".
        window: Extents; as many as x has spatial dimensions.
        stride: One number, or one per spatial dimension; None lets the windows touch.
        padding: Places on both sides, likewise; or pairs.
        ceil_mode: Round the output's extents up.
    """

    mode: str
    window: tuple[int, ...]
    stride: Extents | None = None
    padding: Padding = 0
    ceil_mode: bool = False

    @property
    def descriptor(self) -> PoolingDescriptor:
        """The window, for operations."""
        return PoolingDescriptor.make(
            self.mode,
            self.window,
            spatial_ndim=len(self.window),
            padding=self.padding,
            stride=self.stride,
            ceil_mode=self.ceil_mode,
        )


@dataclass(frozen=True)
class Pooling(_Window):
    """A window over x [N, C, *spatial] -> [N, C, *output]."""

    kind: ClassVar[str] = "pooling"

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (inputs[0].with_shape(*self.descriptor.output_shape(inputs[0].shape)),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        ops.pooling_forward(handle, 1.0, inputs[0], self.descriptor, 0.0, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        return _gradient(self, step)


@dataclass(frozen=True)
class PoolingWithIndices(_Window):
    """A maximum over x [N, C, *spatial] -> [N, C, *output], and where each is in its plane, int32: its place in row-major order.

    Of equal maxima it is the first.
    """

    kind: ClassVar[str] = "pooling_with_indices"

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        y = inputs[0].with_shape(*self.descriptor.output_shape(inputs[0].shape))
        return (y, Spec(DType.INT32, y.shape))

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        y, indices = outputs
        ops.pooling_forward(handle, 1.0, inputs[0], self.descriptor, 0.0, y, indices)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        return _gradient(self, step)


def _gradient(window: _Window, step: BackwardStep) -> Sequence[str | None]:
    backward = PoolingBackward(window.mode, window.window, window.stride, window.padding, window.ceil_mode)
    return (step.add(backward, step.outputs[0], step.dy, step.x, step.partial()),)


@dataclass(frozen=True)
class PlaneOffsets(Operator):
    """Where the planes of a tensor [N, C, *spatial] begin, int32 [N, C, 1, ...]: a place in one and this are a place in all of it.

    Args:
        places: Elements of a plane. Those of the tensor that the operator reads do not matter, only how many planes it has.
    """

    kind: ClassVar[str] = "plane_offsets"

    places: int

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        (x,) = inputs
        if len(x.shape) < 2:
            raise BadParamError(f"{x} has no planes")
        planes = x.shape[0] * x.shape[1]
        if self.places < 0 or planes * self.places > 1 << 31:
            raise BadParamError(f"{planes} planes of {self.places} places: an int32 can name 0 to {1 << 31}")
        return (Spec(DType.INT32, (*x.shape[:2], *(1,) * (len(x.shape) - 2))),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """0 and `places`, of which both are written; then as many again, moved by a multiple of the second, until all are there."""
        (y,) = outputs
        count = y.descriptor.size

        def part(first: int, size: int) -> Tensor:
            return y.view(TensorDescriptor.packed((size,), DType.INT32), first)

        ops.set_tensor(handle, float(self.places), part(0, min(count, 2)))
        ops.set_tensor(handle, 0.0, part(0, min(count, 1)))
        known = 2
        while known < count:
            following = part(known, min(known, count - known))
            ops.transform(handle, 1.0, part(0, following.descriptor.size), 0.0, following)
            ops.add(handle, float(known), part(1, 1), 1.0, following)
            known *= 2

    @property
    def writes_strided(self) -> bool:
        return False


@dataclass(frozen=True)
class PoolingBackward(_Window):
    """dx of a pooling, from y, dy and x; plus what is there already."""

    kind: ClassVar[str] = "pooling_backward"
    input_names: ClassVar[tuple[str, ...]] = ("y", "dy", "x", "partial")
    optional: ClassVar[int] = 1
    in_place: ClassVar[frozenset[int]] = frozenset({3})

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (inputs[2],)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        y, dy, x = inputs[:3]
        beta = blend_with(handle, inputs[3:], outputs[0])
        ops.pooling_backward(handle, 1.0, y, dy, x, self.descriptor, beta, outputs[0])


@dataclass(frozen=True)
class GlobalPooling(Operator):
    """One window over all of x [N, C, *spatial] -> [N, C, 1, ...].

    Args:
        mode: "max" or "average".
    """

    kind: ClassVar[str] = "global_pooling"

    mode: str

    def _over(self, spatial: Sequence[int]) -> Pooling:
        modes = {"max": "max", "average": "average_include_padding"}
        if self.mode not in modes:
            raise BadParamError(f"mode {self.mode!r} is unknown; use one of {', '.join(modes)}")
        return Pooling(modes[self.mode], tuple(spatial))

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        if len(inputs[0].shape) < 3:
            raise BadParamError(f"{inputs[0]} has no spatial dimensions")
        return self._over(inputs[0].shape[2:]).infer(inputs)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self._over(inputs[0].shape[2:]).lower(handle, inputs, outputs)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        return self._over(step.extents(step.x, 2)).gradient(step)
