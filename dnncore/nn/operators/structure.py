"""What moves elements without computing: other shapes, other orders, several tensors as one, one as several, another dtype.

Most of it costs nothing: the result lies in the memory of the operand, or the operands are written to where the result is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Extent, Operator, Spec
from dnncore.nn.operators.gradients import blend_with
from dnncore.tensor import Tensor

__all__ = [
    "Cast",
    "Concat",
    "Flatten",
    "Identity",
    "Ones",
    "Reshape",
    "Slice",
    "SliceBackward",
    "Split",
    "Transpose",
    "Zeros",
    "reshaped",
]

_Views = Sequence[tuple[TensorDescriptor, int]]


@dataclass(frozen=True)
class _Reshaping(Operator):
    """The same elements in row-major order, with other extents."""

    def view(self, x: TensorDescriptor, specs: Sequence[Spec]) -> _Views | None:
        """In place, where x is row-major."""
        return ((specs[0].descriptor(), 0),) if x.is_row_major else None

    @property
    def writes_strided(self) -> bool:
        """The order of the result's elements is that of x in row-major order."""
        return False

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Put x in row-major order."""
        (x,), (y,) = inputs, outputs
        ops.transform(handle, 1.0, x, 0.0, y.view(TensorDescriptor.packed(x.shape, x.dtype)))

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        """dy in the shape of x."""
        return (step.plus(reshaped(step, step.dy, step.shape(step.x))),)


@dataclass(frozen=True)
class Reshape(_Reshaping):
    """The same elements in row-major order with other extents.

    Args:
        shape: Extents. 0 is the same extent as in x, -1 what is left: also the batch, if a multiple of it is wanted.
    """

    kind: ClassVar[str] = "reshape"

    shape: tuple[int, ...]

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        x = inputs[0]
        if any(extent == 0 and axis >= len(x.shape) for axis, extent in enumerate(self.shape)):
            raise BadParamError(f"{x} has no extent for each 0 of {list(self.shape)}")
        shape = [x.shape[axis] if extent == 0 else extent for axis, extent in enumerate(self.shape)]
        known = math.prod(extent for extent in shape if extent != -1)
        unknown = shape.count(-1)
        if (
            unknown > 1
            or min(shape, default=0) < -1
            or ((x.size % known if known else x.size) if unknown else known != x.size)
        ):
            raise BadParamError(f"{x} cannot be seen as {list(self.shape)}")
        return (x.with_shape(*(x.size // max(known, 1) if extent == -1 else extent for extent in shape)),)


def reshaped(step: BackwardStep, name: str, shape: Sequence[Extent]) -> str:
    """Add the node that gives a value other extents, which may depend on the batch.

    Raises:
        BadParamError: more than one of them does that is not where it was.
    """
    old = step.shape(name)
    same = [axis < len(old) and extent == old[axis] for axis, extent in enumerate(shape)]
    target = [
        extent if isinstance(extent, int) and extent else 0 if stays else -1
        for extent, stays in zip(shape, same, strict=True)
    ]
    if target.count(-1) > 1:
        raise BadParamError(f"a gradient [{', '.join(map(str, old))}] cannot be seen as [{', '.join(map(str, shape))}]")
    return step.add(Reshape(tuple(target)), name)


@dataclass(frozen=True)
class Flatten(_Reshaping):
    """Two dimensions: the product of the extents before a dimension, and that of the others.

    Args:
        axis: The first of the others.
    """

    kind: ClassVar[str] = "flatten"

    axis: int = 1

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        x = inputs[0]
        if not -len(x.shape) <= self.axis <= len(x.shape):
            raise BadParamError(f"{x} has no dimension {self.axis}")
        axis = self.axis + len(x.shape) if self.axis < 0 else self.axis
        return (x.with_shape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])),)


@dataclass(frozen=True)
class Identity(Operator):
    """x itself."""

    kind: ClassVar[str] = "identity"

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (inputs[0],)

    def view(self, x: TensorDescriptor, specs: Sequence[Spec]) -> _Views | None:
        return ((x, 0),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        ops.transform(handle, 1.0, inputs[0], 0.0, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        return (step.plus(step.dy),)


@dataclass(frozen=True)
class Transpose(Operator):
    """Dimensions in another order.

    Args:
        axes: For each dimension of the result, which of x it is.
    """

    kind: ClassVar[str] = "transpose"

    axes: tuple[int, ...]

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        x = inputs[0]
        if sorted(self.axes) != list(range(len(x.shape))):
            raise BadParamError(f"axes {list(self.axes)} are no order of the dimensions of {x}")
        return (x.with_shape(*(x.shape[axis] for axis in self.axes)),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        (x,) = inputs
        ops.transform(handle, 1.0, x.view(x.descriptor.transposed(*self.axes)), 0.0, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        back = Transpose(tuple(self.axes.index(axis) for axis in range(len(self.axes))))
        return (step.plus(step.add(back, step.dy)),)


@dataclass(frozen=True)
class Concat(Operator):
    """Several tensors, one behind the other.

    Args:
        axis: Along which dimension.
    """

    kind: ClassVar[str] = "concat"
    variadic: ClassVar[bool] = True

    axis: int = 1

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        first = inputs[0]
        if not -len(first.shape) <= self.axis < len(first.shape):
            raise BadParamError(f"{first} has no dimension {self.axis}")
        axis = self.axis % len(first.shape)
        for x in inputs:
            if x.dtype is not first.dtype or _without(x.shape, axis) != _without(first.shape, axis):
                raise BadParamError(f"{x} and {first} differ in more than dimension {axis}")
        shape = list(first.shape)
        shape[axis] = sum(x.shape[axis] for x in inputs)
        return (first.with_shape(*shape),)

    def placed(self, output: TensorDescriptor, inputs: Sequence[Spec]) -> _Views | None:
        axis = self.axis % output.ndim
        return _pieces(output, axis, [x.shape[axis] for x in inputs])

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        (y,) = outputs
        axis = self.axis % y.ndim
        pieces = _pieces(y.descriptor, axis, [x.shape[axis] for x in inputs])
        for x, (descriptor, offset) in zip(inputs, pieces, strict=True):
            piece = y.view(descriptor, offset)
            if x.pointer != piece.pointer or x.descriptor != descriptor:
                ops.transform(handle, 1.0, x, 0.0, piece)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        axis = self.axis % len(step.shape(step.x))
        extents = [step.extent(name, axis) for name in step.inputs if name is not None]
        pieces = (Slice(axis, end - extent, end) for extent, end in zip(extents, accumulate(extents), strict=True))
        return [
            step.plus(step.add(piece, step.dy), place) if step.wants(place) else None
            for place, piece in enumerate(pieces)
        ]


@dataclass(frozen=True)
class Split(Operator):
    """One tensor as several, which lie one behind the other in it.

    Args:
        sizes: Extents of the pieces along the dimension.
        axis: The dimension.
    """

    kind: ClassVar[str] = "split"

    sizes: tuple[int, ...]
    axis: int = 1

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        x = inputs[0]
        if not -len(x.shape) <= self.axis < len(x.shape):
            raise BadParamError(f"{x} has no dimension {self.axis}")
        axis = self.axis % len(x.shape)
        if not self.sizes or min(self.sizes) < 0 or sum(self.sizes) != x.shape[axis]:
            raise BadParamError(f"sizes {list(self.sizes)} must add up to the extent of dimension {axis} of {x}")
        return [x.with_shape(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in self.sizes]

    def view(self, x: TensorDescriptor, specs: Sequence[Spec]) -> _Views | None:
        return _pieces(x, self.axis % x.ndim, self.sizes)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        (x,) = inputs
        for y, (descriptor, offset) in zip(outputs, _pieces(x.descriptor, self.axis % x.ndim, self.sizes), strict=True):
            ops.transform(handle, 1.0, x.view(descriptor, offset), 0.0, y)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        pieces = [
            step.add(Zeros(), name) if gradient is None else gradient
            for name, gradient in zip(step.outputs, step.gradients, strict=True)
        ]
        return (step.plus(step.add(Concat(self.axis), *pieces)),)


@dataclass(frozen=True)
class _Slice(Operator):
    """Which elements along one dimension.

    Args:
        axis: The dimension.
        start: The first index.
        stop: The index behind the last.
        step: Distance between two that are taken.
    """

    axis: int
    start: int
    stop: int
    step: int = 1

    def _taken(self, x: Spec) -> Spec:
        """What is taken from x."""
        if self.step < 1 or not (0 <= self.axis < len(x.shape) and 0 <= self.start <= self.stop <= x.shape[self.axis]):
            raise BadParamError(f"{x} has no elements {self.start} to {self.stop} along dimension {self.axis}")
        count = -((self.start - self.stop) // self.step)
        return x.with_shape(*x.shape[: self.axis], count, *x.shape[self.axis + 1 :])

    def _piece(self, x: TensorDescriptor, shape: tuple[int, ...]) -> tuple[TensorDescriptor, int]:
        """Where they lie in x, in the shape that they have."""
        steps = (stride * self.step if axis == self.axis else stride for axis, stride in enumerate(x.strides))
        return TensorDescriptor(x.dtype, shape, tuple(steps)), self.start * x.strides[self.axis]


@dataclass(frozen=True)
class Slice(_Slice):
    """The elements from one index to another along one dimension."""

    kind: ClassVar[str] = "slice"

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (self._taken(inputs[0]),)

    def view(self, x: TensorDescriptor, specs: Sequence[Spec]) -> _Views | None:
        return (self._piece(x, specs[0].shape),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        (x,), (y,) = inputs, outputs
        ops.transform(handle, 1.0, x.view(*self._piece(x.descriptor, y.shape)), 0.0, y)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        extent = step.extent(step.x, self.axis)
        backward = SliceBackward(self.axis, self.start, self.stop, self.step, extent)
        return (step.add(backward, step.dy, step.partial()),)


@dataclass(frozen=True)
class SliceBackward(_Slice):
    """dx of a slice: dy where it was taken from, 0 elsewhere; plus what is there already.

    Args:
        extent: That of dx along the dimension.
    """

    kind: ClassVar[str] = "slice_backward"
    input_names: ClassVar[tuple[str, ...]] = ("dy", "partial")
    optional: ClassVar[int] = 1
    in_place: ClassVar[frozenset[int]] = frozenset({1})

    extent: int = 0

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        dy = inputs[0]
        if not 0 <= self.axis < len(dy.shape):
            raise BadParamError(f"{dy} has no dimension {self.axis}")
        dx = dy.with_shape(*dy.shape[: self.axis], self.extent, *dy.shape[self.axis + 1 :])
        if self._taken(dx) != dy:
            raise BadParamError(f"dy {dy} is not what is taken of {dx}, {self._taken(dx)}")
        return (dx,)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        dy, (dx,) = inputs[0], outputs
        beta = blend_with(handle, inputs[1:], dx)
        if not beta:
            ops.set_tensor(handle, 0.0, dx)
        ops.transform(handle, 1.0, dy, beta, dx.view(*self._piece(dx.descriptor, dy.shape)))


@dataclass(frozen=True)
class Zeros(Operator):
    """Zeros in the shape of x."""

    kind: ClassVar[str] = "zeros"

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (inputs[0],)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        ops.set_tensor(handle, 0.0, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        """None: only the shape of x counts."""
        return ()


@dataclass(frozen=True)
class Ones(Zeros):
    """Ones in the shape of x."""

    kind: ClassVar[str] = "ones"

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        ops.set_tensor(handle, 1.0, outputs[0])


@dataclass(frozen=True)
class Cast(Operator):
    """x in another dtype, rounded to even; integers saturate.

    Args:
        dtype: Its name.
    """

    kind: ClassVar[str] = "cast"
    batched: ClassVar[frozenset[int]] = frozenset({0})

    dtype: str

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (Spec(DType.of(self.dtype), inputs[0].shape),)

    def view(self, x: TensorDescriptor, specs: Sequence[Spec]) -> _Views | None:
        return ((x, 0),) if specs[0].dtype is x.dtype else None

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        ops.transform(handle, 1.0, inputs[0], 0.0, outputs[0])

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        """dy in the dtype of x; None where one of them is whole numbers or bool, between which there is no slope."""
        dtype = step.dtype(step.x)
        flows = dtype.is_floating and step.dtype(step.outputs[0]).is_floating
        return (step.plus(step.add(Cast(dtype.value), step.dy)) if flows else None,)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def _pieces(whole: TensorDescriptor, axis: int, extents: Sequence[int]) -> _Views:
    """Where the pieces of a tensor lie in it."""
    begins = accumulate((0, *extents[:-1]))
    return [
        (whole.with_shape((*whole.shape[:axis], extent, *whole.shape[axis + 1 :])), begin * whole.strides[axis])
        for extent, begin in zip(extents, begins, strict=True)
    ]
