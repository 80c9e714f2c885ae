"""Operations as frozen values: the key of every cache, the unit of every test case and of every benchmark.

Every operation blends: each output becomes ``alpha * operation(inputs) + beta * output``, and with beta 0 the output is
written without being read. A problem names the descriptors of its inputs and outputs, in the order in which launches take them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol

from dnncore.descriptors import (
    ActivationDescriptor,
    ConvolutionDescriptor,
    PoolingDescriptor,
    SoftmaxAlgorithm,
    SoftmaxMode,
    TensorDescriptor,
)
from dnncore.dtypes import DType
from dnncore.errors import BadParamError

__all__ = [
    "ActivationBackwardProblem",
    "ActivationForwardProblem",
    "AddProblem",
    "ConvolutionProblem",
    "CrossEntropyBackwardProblem",
    "CrossEntropyForwardProblem",
    "Direction",
    "MatmulProblem",
    "PoolingBackwardProblem",
    "PoolingForwardProblem",
    "Problem",
    "SoftmaxBackwardProblem",
    "SoftmaxForwardProblem",
    "SumProblem",
]


class Problem(Protocol):
    """What every operation offers. Implementations are frozen dataclasses: hashable and immutable."""

    input_names: ClassVar[tuple[str, ...]]
    """Names of the inputs, for messages and documentation."""

    @property
    def inputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is read."""
        ...

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is written."""
        ...


def _same_dtype(**tensors: TensorDescriptor) -> None:
    (first, a), *rest = tensors.items()
    for name, b in rest:
        if a.dtype is not b.dtype:
            raise BadParamError(f"{first} is {a.dtype.value} but {name} is {b.dtype.value}")
    if not a.dtype.is_floating:
        raise BadParamError(f"{first} is {a.dtype.value}; a floating-point dtype is needed")


def _same_shape(**tensors: TensorDescriptor) -> None:
    (first, a), *rest = tensors.items()
    for name, b in rest:
        if a.shape != b.shape:
            raise BadParamError(f"{first} has shape {a.shape} but {name} has {b.shape}")


def _writable(**tensors: TensorDescriptor) -> None:
    for name, tensor in tensors.items():
        if tensor.overlaps:
            raise BadParamError(f"{name} ({tensor}) is written, but its strides let elements overlap")


class _Operands:
    """Operands that are fields of the same names. Immutable."""

    __slots__ = ()
    input_names: ClassVar[tuple[str, ...]]
    output_names: ClassVar[tuple[str, ...]]

    @property
    def inputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is read, in the order of `input_names`."""
        return tuple(getattr(self, name) for name in self.input_names)

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is written, in the order of `output_names`."""
        return tuple(getattr(self, name) for name in self.output_names)


class Direction(Enum):
    """Which of the three tensors of a convolution is computed from the other two."""

    FORWARD = "forward"
    BACKWARD_DATA = "backward_data"
    BACKWARD_FILTER = "backward_filter"


@dataclass(frozen=True, slots=True)
class ConvolutionProblem:
    """One of the three directions of a convolution; the geometry is that of the forward one.

    Args:
        direction: FORWARD computes y from (x, w), BACKWARD_DATA x from (w, y), BACKWARD_FILTER w from (x, y); backward,
            the three stand for the gradients dx, dw, dy where they are gradients.
        x: [N, C, *input].
        w: [K, C/G, *filter].
        y: [N, K, *output].
        convolution: Padding, stride, dilation, groups, mode.
    """

    direction: Direction
    x: TensorDescriptor
    w: TensorDescriptor
    y: TensorDescriptor
    convolution: ConvolutionDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("x or w", "w or dy")

    def __post_init__(self) -> None:
        _same_dtype(x=self.x, w=self.w, y=self.y)
        expected = self.convolution.output_shape(self.x.shape, self.w.shape)
        if self.y.shape != expected:
            raise BadParamError(f"y has shape {self.y.shape} but x {self.x.shape} and w {self.w.shape} give {expected}")
        (output,) = self.outputs
        _writable(output=output)

    @property
    def inputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptors of what is read."""
        return {
            Direction.FORWARD: (self.x, self.w),
            Direction.BACKWARD_DATA: (self.w, self.y),
            Direction.BACKWARD_FILTER: (self.x, self.y),
        }[self.direction]

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """Descriptor of what is written."""
        return {
            Direction.FORWARD: (self.y,),
            Direction.BACKWARD_DATA: (self.x,),
            Direction.BACKWARD_FILTER: (self.w,),
        }[self.direction]

    @property
    def macs(self) -> int:
        """Multiply-adds of the direct method, padding counted as if it were data."""
        taps = 1
        for extent in self.w.shape[1:]:
            taps *= extent
        return self.y.size * taps


@dataclass(frozen=True, slots=True)
class PoolingForwardProblem(_Operands):
    """y [N, C, *output] from x [N, C, *input]. A maximum propagates NaN."""

    x: TensorDescriptor
    y: TensorDescriptor
    pooling: PoolingDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        _same_dtype(x=self.x, y=self.y)
        expected = self.pooling.output_shape(self.x.shape)
        if self.y.shape != expected:
            raise BadParamError(f"y has shape {self.y.shape} but x {self.x.shape} gives {expected}")
        _writable(y=self.y)


@dataclass(frozen=True, slots=True)
class PoolingBackwardProblem(_Operands):
    """dx from (y, dy, x); of equal maxima the first in row-major order takes the whole gradient."""

    y: TensorDescriptor
    dy: TensorDescriptor
    x: TensorDescriptor
    dx: TensorDescriptor
    pooling: PoolingDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("y", "dy", "x")
    output_names: ClassVar[tuple[str, ...]] = ("dx",)

    def __post_init__(self) -> None:
        _same_dtype(y=self.y, dy=self.dy, x=self.x, dx=self.dx)
        _same_shape(x=self.x, dx=self.dx)
        _same_shape(y=self.y, dy=self.dy)
        expected = self.pooling.output_shape(self.x.shape)
        if self.y.shape != expected:
            raise BadParamError(f"y has shape {self.y.shape} but x {self.x.shape} gives {expected}")
        _writable(dx=self.dx)


@dataclass(frozen=True, slots=True)
class ActivationForwardProblem(_Operands):
    """y = f(x), element by element; y may be x."""

    x: TensorDescriptor
    y: TensorDescriptor
    activation: ActivationDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        _same_dtype(x=self.x, y=self.y)
        _same_shape(x=self.x, y=self.y)
        _writable(y=self.y)


@dataclass(frozen=True, slots=True)
class ActivationBackwardProblem(_Operands):
    """dx = f'(x) * dy, element by element, from (y, dy, x); dx may be dy."""

    y: TensorDescriptor
    dy: TensorDescriptor
    x: TensorDescriptor
    dx: TensorDescriptor
    activation: ActivationDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("y", "dy", "x")
    output_names: ClassVar[tuple[str, ...]] = ("dx",)

    def __post_init__(self) -> None:
        _same_dtype(y=self.y, dy=self.dy, x=self.x, dx=self.dx)
        _same_shape(y=self.y, dy=self.dy, x=self.x, dx=self.dx)
        _writable(dx=self.dx)


@dataclass(frozen=True, slots=True)
class SoftmaxForwardProblem(_Operands):
    """y = softmax(x), or its logarithm, of [N, C, *spatial]; y may be x."""

    x: TensorDescriptor
    y: TensorDescriptor
    algorithm: SoftmaxAlgorithm
    mode: SoftmaxMode
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        _same_dtype(x=self.x, y=self.y)
        _same_shape(x=self.x, y=self.y)
        _at_least_2d(x=self.x)
        _writable(y=self.y)


def _at_least_2d(**tensors: TensorDescriptor) -> None:
    for name, tensor in tensors.items():
        if tensor.ndim < 2:
            raise BadParamError(f"{name} has shape {tensor.shape}; [N, C, ...] is needed")


@dataclass(frozen=True, slots=True)
class SoftmaxBackwardProblem(_Operands):
    """dx from (y, dy), y being what the forward operation wrote; dx may be dy."""

    y: TensorDescriptor
    dy: TensorDescriptor
    dx: TensorDescriptor
    algorithm: SoftmaxAlgorithm
    mode: SoftmaxMode
    input_names: ClassVar[tuple[str, ...]] = ("y", "dy")
    output_names: ClassVar[tuple[str, ...]] = ("dx",)

    def __post_init__(self) -> None:
        _same_dtype(y=self.y, dy=self.dy, dx=self.dx)
        _same_shape(y=self.y, dy=self.dy, dx=self.dx)
        _at_least_2d(y=self.y)
        _writable(dx=self.dx)


@dataclass(frozen=True, slots=True)
class AddProblem(_Operands):
    """c = alpha * a + beta * c, where each extent of a is c's or 1; also the transform between layouts (beta 0)."""

    a: TensorDescriptor
    c: TensorDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("a",)
    output_names: ClassVar[tuple[str, ...]] = ("c",)

    def __post_init__(self) -> None:
        _same_dtype(a=self.a, c=self.c)
        _broadcasts("a", self.a, "c", self.c)
        _writable(c=self.c)


def _broadcasts(small_name: str, small: TensorDescriptor, large_name: str, large: TensorDescriptor) -> None:
    if small.ndim != large.ndim or any(
        s not in (1, extent) for s, extent in zip(small.shape, large.shape, strict=True)
    ):
        raise BadParamError(
            f"{small_name} has shape {small.shape}; each extent must be 1 or that of {large_name}, {large.shape}"
        )


@dataclass(frozen=True, slots=True)
class SumProblem(_Operands):
    """y = sum of x over the dimensions in which y has extent 1; the adjoint of AddProblem, and so the bias gradient."""

    x: TensorDescriptor
    y: TensorDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("x",)
    output_names: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        _same_dtype(x=self.x, y=self.y)
        _broadcasts("y", self.y, "x", self.x)
        _writable(y=self.y)


@dataclass(frozen=True, slots=True)
class MatmulProblem(_Operands):
    """c [M, N] = a [M, K] times b [K, N]; a transposed operand is one whose descriptor is transposed."""

    a: TensorDescriptor
    b: TensorDescriptor
    c: TensorDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("a", "b")
    output_names: ClassVar[tuple[str, ...]] = ("c",)

    def __post_init__(self) -> None:
        _same_dtype(a=self.a, b=self.b, c=self.c)
        if not self.a.ndim == self.b.ndim == self.c.ndim == 2:
            raise BadParamError(f"a {self.a.shape}, b {self.b.shape} and c {self.c.shape} must have 2 dimensions each")
        if self.a.shape[1] != self.b.shape[0]:
            raise BadParamError(f"a has {self.a.shape[1]} columns but b has {self.b.shape[0]} rows")
        if self.c.shape != (self.a.shape[0], self.b.shape[1]):
            raise BadParamError(
                f"c has shape {self.c.shape} but a {self.a.shape} and b {self.b.shape} disagree with it"
            )
        _writable(c=self.c)


def _cross_entropy(x: TensorDescriptor, labels: TensorDescriptor) -> None:
    if x.ndim != 2 or not x.dtype.is_floating:
        raise BadParamError(f"x ({x}) must be floating-point logits of shape [N, K]")
    if labels.dtype is not DType.INT32 or labels.shape != x.shape[:1]:
        raise BadParamError(f"labels ({labels}) must be int32 of shape [{x.shape[0]}], one a row of x {x.shape}")


@dataclass(frozen=True, slots=True)
class CrossEntropyForwardProblem(_Operands):
    """loss [N] = logsumexp(x[n]) - x[n, labels[n]] of logits x [N, K]; a label outside 0..K-1 gives loss 0."""

    x: TensorDescriptor
    labels: TensorDescriptor
    loss: TensorDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("x", "labels")
    output_names: ClassVar[tuple[str, ...]] = ("loss",)

    def __post_init__(self) -> None:
        _cross_entropy(self.x, self.labels)
        _same_dtype(x=self.x, loss=self.loss)
        if self.loss.shape != self.x.shape[:1]:
            raise BadParamError(f"loss has shape {self.loss.shape} but x {self.x.shape} gives {self.x.shape[:1]}")
        _writable(loss=self.loss)


@dataclass(frozen=True, slots=True)
class CrossEntropyBackwardProblem(_Operands):
    """dx [N, K] = softmax(x) - onehot(labels), a row of zeros where the label is outside 0..K-1."""

    x: TensorDescriptor
    labels: TensorDescriptor
    dx: TensorDescriptor
    input_names: ClassVar[tuple[str, ...]] = ("x", "labels")
    output_names: ClassVar[tuple[str, ...]] = ("dx",)

    def __post_init__(self) -> None:
        _cross_entropy(self.x, self.labels)
        _same_dtype(x=self.x, dx=self.dx)
        _same_shape(x=self.x, dx=self.dx)
        _writable(dx=self.dx)
