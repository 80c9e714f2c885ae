"""Frozen values that say what a tensor or an operation looks like; validated when made, hashable, and free of memory.

Strides count elements. A filter is a tensor [K, C/G, *filter]: it may have any strides too, so it needs no class of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import numpy as np

from dnncore.dtypes import DType
from dnncore.errors import BadParamError

__all__ = [
    "MAX_NDIM",
    "ActivationDescriptor",
    "ActivationMode",
    "ConvolutionDescriptor",
    "ConvolutionMode",
    "Layout",
    "PoolingDescriptor",
    "PoolingMode",
    "SoftmaxAlgorithm",
    "SoftmaxMode",
    "TensorDescriptor",
]

MAX_NDIM = 8
"""Most dimensions a tensor may have; the kernels' parameter structs hold this many."""


_MAX_BYTES = 2**62
"""More than any memory has; sums of offsets stay within the signed 64 bits that the backends count in."""

_Member = TypeVar("_Member", bound=Enum)


def _member(kind: type[_Member], value: _Member | str) -> _Member:
    try:
        return kind(value)
    except ValueError as error:
        names = ", ".join(str(member.value) for member in kind)
        raise BadParamError(f"{value!r} is no {kind.__name__}; use one of {names}") from error


class Layout(Enum):
    """Order of the dimensions in memory, slowest first; the spatial dimensions stay together and in order."""

    NCHW = "NCHW"
    NHWC = "NHWC"
    CHWN = "CHWN"


@dataclass(frozen=True, slots=True)
class TensorDescriptor:
    """Element type, extents and strides of a tensor. Immutable.

    Args:
        dtype: Element type.
        shape: Extents, [N, C, *spatial] for the operations that have channels; an extent may be 0.
        strides: Elements from one index to the next, one a dimension, none negative. 0 broadcasts (inputs only).
    """

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.shape) <= MAX_NDIM:
            raise BadParamError(f"shape {self.shape} has {len(self.shape)} dimensions; 1 to {MAX_NDIM} are supported")
        if len(self.strides) != len(self.shape):
            raise BadParamError(f"strides {self.strides} and shape {self.shape} differ in length")
        if min(self.shape) < 0 or min(self.strides) < 0:
            raise BadParamError(f"shape {self.shape} and strides {self.strides} must not be negative")
        if max(*self.shape, *self.strides, self.nbytes) > _MAX_BYTES:
            raise BadParamError(f"shape {self.shape} with strides {self.strides} spans more than {_MAX_BYTES} bytes")

    @classmethod
    def packed(
        cls, shape: Sequence[int], dtype: DType | str = DType.FLOAT32, layout: Layout | str = Layout.NCHW
    ) -> TensorDescriptor:
        """Describe a tensor without gaps.

        Args:
            shape: Extents in the order N, C, spatial, whatever the layout.
            dtype: Element type.
            layout: Which dimension is contiguous; for fewer than 3 dimensions NCHW is row-major order.
        """
        layout, ndim = _member(Layout, layout), len(shape)
        order, spatial = list(range(ndim)), list(range(2, ndim))
        if layout is not Layout.NCHW:
            if ndim < 2:
                raise BadParamError(f"layout {layout.value} needs at least 2 dimensions, shape is {tuple(shape)}")
            order = [0, *spatial, 1] if layout is Layout.NHWC else [1, *spatial, 0]
        strides, step = [0] * ndim, 1
        for axis in reversed(order):
            strides[axis] = step
            step *= max(int(shape[axis]), 1)
        return cls(DType.of(dtype), tuple(int(extent) for extent in shape), tuple(strides))

    @classmethod
    def of(cls, array: np.ndarray) -> TensorDescriptor:
        """Describe an array with the strides that it has.

        Raises:
            BadParamError: its dtype is not one of ours, or a stride is negative or not a whole number of elements.
        """
        dtype = DType.of(array.dtype)
        if any(stride % dtype.itemsize for stride in array.strides):
            raise BadParamError(f"strides of {array.strides} bytes are not whole elements of {dtype.itemsize} bytes")
        return cls(dtype, array.shape, tuple(stride // dtype.itemsize for stride in array.strides))

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """Elements from the first to the last, gaps included; 0 for an empty tensor."""
        if self.size == 0:
            return 0
        return 1 + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the end of the last, gaps included."""
        return self.extent * self.dtype.itemsize

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """Strides in bytes, as NumPy counts them."""
        return tuple(stride * self.dtype.itemsize for stride in self.strides)

    @property
    def is_packed(self) -> bool:
        """Whether the elements fill their extent in some order, each place once."""
        return self.extent == self.size and not self.overlaps

    @property
    def is_row_major(self) -> bool:
        """Whether the last dimension is contiguous and there are no gaps."""
        return self.size == 0 or all(
            extent == 1 or stride == packed
            for extent, stride, packed in zip(
                self.shape, self.strides, TensorDescriptor.packed(self.shape).strides, strict=True
            )
        )

    @property
    def overlaps(self) -> bool:
        """Whether two indices may share an element: such a tensor can be read, not written."""
        reach = 1
        for stride, extent in sorted(zip(self.strides, self.shape, strict=True)):
            if extent > 1:
                if stride < reach:
                    return True
                reach = (extent - 1) * stride + reach
        return False

    def with_shape(self, shape: Sequence[int]) -> TensorDescriptor:
        """Describe the first `shape` elements along each dimension of the same memory."""
        return TensorDescriptor(self.dtype, tuple(shape), self.strides)

    def transposed(self, *axes: int) -> TensorDescriptor:
        """Describe the same memory with its dimensions in another order; without arguments, reversed."""
        order = axes or tuple(reversed(range(self.ndim)))
        return TensorDescriptor(
            self.dtype, tuple(self.shape[axis] for axis in order), tuple(self.strides[axis] for axis in order)
        )

    def __str__(self) -> str:
        return f"{self.dtype.value}{list(self.shape)} strides {list(self.strides)}"


Pairs = tuple[tuple[int, int], ...]


def _each(value: int | Sequence[int], spatial_ndim: int, what: str) -> tuple[int, ...]:
    values = (value,) * spatial_ndim if isinstance(value, int) else tuple(int(v) for v in value)
    if len(values) != spatial_ndim:
        raise BadParamError(f"{what} {value} must be one number or {spatial_ndim}, one a spatial dimension")
    return values


def _pairs(value: int | Sequence[int | tuple[int, int]], spatial_ndim: int, what: str) -> Pairs:
    values = (value,) * spatial_ndim if isinstance(value, int) else tuple(value)
    if len(values) != spatial_ndim:
        raise BadParamError(f"{what} {value} must be one number or {spatial_ndim}, one a spatial dimension")
    pairs = []
    for each in values:
        before, *after = (each, each) if isinstance(each, int) else each
        if len(after) != 1:
            raise BadParamError(f"{what} {value} has {each}; a number or a pair (before, after) is needed")
        pairs.append((int(before), int(after[0])))
    return tuple(pairs)


class ConvolutionMode(Enum):
    """Whether the filter is used as it is stored or rotated by 180 degrees."""

    CROSS_CORRELATION = "cross_correlation"
    CONVOLUTION = "convolution"


@dataclass(frozen=True, slots=True)
class ConvolutionDescriptor:
    """How a filter moves over an input. Immutable.

    Args:
        padding: Zeros before and after, a pair a spatial dimension.
        stride: Steps, one a spatial dimension.
        dilation: Distance between the filter's taps, one a spatial dimension; 1 is dense.
        groups: G; C and K are cut into G parts that do not see each other.
        mode: Cross-correlation (what nets mean by convolution) or true convolution.
    """

    padding: Pairs
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    mode: ConvolutionMode = ConvolutionMode.CROSS_CORRELATION

    def __post_init__(self) -> None:
        if not len(self.padding) == len(self.stride) == len(self.dilation):
            raise BadParamError(
                f"padding {self.padding}, stride {self.stride} and dilation {self.dilation} differ in length"
            )
        if not 1 <= len(self.stride) <= MAX_NDIM - 2:
            raise BadParamError(f"{len(self.stride)} spatial dimensions; 1 to {MAX_NDIM - 2} are supported")
        if min(self.stride) < 1 or min(self.dilation) < 1 or self.groups < 1:
            raise BadParamError(
                f"stride {self.stride}, dilation {self.dilation} and groups {self.groups} must be 1 or more"
            )
        if min(min(pair) for pair in self.padding) < 0:
            raise BadParamError(f"padding {self.padding} must not be negative")

    @classmethod
    def make(
        cls,
        spatial_ndim: int = 2,
        *,
        padding: int | Sequence[int | tuple[int, int]] = 0,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        mode: ConvolutionMode | str = ConvolutionMode.CROSS_CORRELATION,
    ) -> ConvolutionDescriptor:
        """Build one from single numbers (the same in every spatial dimension) or sequences."""
        return cls(
            _pairs(padding, spatial_ndim, "padding"),
            _each(stride, spatial_ndim, "stride"),
            _each(dilation, spatial_ndim, "dilation"),
            int(groups),
            _member(ConvolutionMode, mode),
        )

    @property
    def spatial_ndim(self) -> int:
        """Number of spatial dimensions."""
        return len(self.stride)

    def output_shape(self, x: Sequence[int], w: Sequence[int]) -> tuple[int, ...]:
        """Shape [N, K, *output] for an input [N, C, *input] and a filter [K, C/G, *filter].

        Each output extent is floor((input + padding - ((filter - 1) * dilation + 1)) / stride) + 1.

        Raises:
            BadParamError: dimensions, channels or groups disagree, or the filter is larger than the padded input.
        """
        ndim = self.spatial_ndim + 2
        if len(x) != ndim or len(w) != ndim:
            raise BadParamError(
                f"x {tuple(x)} and w {tuple(w)} need {ndim} dimensions for a convolution with "
                f"{self.spatial_ndim} spatial ones"
            )
        if x[1] != w[1] * self.groups:
            raise BadParamError(
                f"x has {x[1]} channels, w {tuple(w)} with {self.groups} groups expects {w[1] * self.groups}"
            )
        if w[0] % self.groups:
            raise BadParamError(f"w has {w[0]} output channels, which {self.groups} groups do not divide")
        output = []
        for i in range(self.spatial_ndim):
            span = (w[2 + i] - 1) * self.dilation[i] + 1
            padded = x[2 + i] + sum(self.padding[i])
            if w[2 + i] < 1 or span > padded:
                raise BadParamError(
                    f"filter extent {w[2 + i]} with dilation {self.dilation[i]} covers {span}, more than the padded "
                    f"input's {padded} in spatial dimension {i}"
                )
            output.append((padded - span) // self.stride[i] + 1)
        return (x[0], w[0], *output)


class PoolingMode(Enum):
    """What a pooling window computes; the averages differ in whether padding counts in the divisor."""

    MAX = "max"
    AVERAGE_INCLUDE_PADDING = "average_include_padding"
    AVERAGE_EXCLUDE_PADDING = "average_exclude_padding"


@dataclass(frozen=True, slots=True)
class PoolingDescriptor:
    """A pooling window and how it moves. Immutable.

    Args:
        mode: Maximum or one of the two averages.
        window: Extents of the window, one a spatial dimension.
        padding: Places before and after, a pair a spatial dimension; a maximum never sees them.
        stride: Steps, one a spatial dimension.
        ceil_mode: Round the output extent up, unless the last window would start in the padding behind the input.
    """

    mode: PoolingMode
    window: tuple[int, ...]
    padding: Pairs
    stride: tuple[int, ...]
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        if not len(self.window) == len(self.padding) == len(self.stride):
            raise BadParamError(
                f"window {self.window}, padding {self.padding} and stride {self.stride} differ in length"
            )
        if not 1 <= len(self.window) <= MAX_NDIM - 2:
            raise BadParamError(f"{len(self.window)} spatial dimensions; 1 to {MAX_NDIM - 2} are supported")
        if min(self.window) < 1 or min(self.stride) < 1:
            raise BadParamError(f"window {self.window} and stride {self.stride} must be 1 or more")
        for pair, extent in zip(self.padding, self.window, strict=True):
            if min(pair) < 0 or max(pair) >= extent:
                raise BadParamError(f"padding {self.padding} must be 0 or more and less than the window {self.window}")

    @classmethod
    def make(
        cls,
        mode: PoolingMode | str,
        window: int | Sequence[int],
        *,
        spatial_ndim: int = 2,
        padding: int | Sequence[int | tuple[int, int]] = 0,
        stride: int | Sequence[int] | None = None,
        ceil_mode: bool = False,
    ) -> PoolingDescriptor:
        """Build one from single numbers or sequences; without a stride the windows touch."""
        extents = _each(window, spatial_ndim, "window")
        return cls(
            _member(PoolingMode, mode),
            extents,
            _pairs(padding, spatial_ndim, "padding"),
            extents if stride is None else _each(stride, spatial_ndim, "stride"),
            bool(ceil_mode),
        )

    @property
    def spatial_ndim(self) -> int:
        """Number of spatial dimensions."""
        return len(self.window)

    def output_shape(self, x: Sequence[int]) -> tuple[int, ...]:
        """Shape [N, C, *output] for an input [N, C, *input].

        Raises:
            BadParamError: the number of dimensions disagrees, or a window is larger than the padded input.
        """
        if len(x) != self.spatial_ndim + 2:
            raise BadParamError(f"x {tuple(x)} needs {self.spatial_ndim + 2} dimensions for a window {self.window}")
        output = []
        for extent, window, (before, after), stride in zip(x[2:], self.window, self.padding, self.stride, strict=True):
            room = extent + before + after - window
            if room < 0:
                raise BadParamError(f"window {self.window} is larger than the padded input of x {tuple(x)}")
            count = (-(-room // stride) if self.ceil_mode else room // stride) + 1
            if self.ceil_mode and (count - 1) * stride >= extent + before:
                count -= 1
            output.append(count)
        return (x[0], x[1], *output)


class ActivationMode(Enum):
    """An element-wise non-linearity."""

    RELU = "relu"
    SIGMOID = "sigmoid"
    TANH = "tanh"


@dataclass(frozen=True, slots=True)
class ActivationDescriptor:
    """An activation; a class of its own so that modes with parameters fit later. Immutable."""

    mode: ActivationMode


class SoftmaxAlgorithm(Enum):
    """FAST exponentiates as is (overflows for large inputs), ACCURATE subtracts the maximum, LOG gives logarithms."""

    FAST = "fast"
    ACCURATE = "accurate"
    LOG = "log"


class SoftmaxMode(Enum):
    """INSTANCE normalises over C and the spatial dimensions of each image, CHANNEL over C at each place."""

    INSTANCE = "instance"
    CHANNEL = "channel"
