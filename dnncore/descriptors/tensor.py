"""Element type, extents and strides of a tensor; strides count elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import mul

import numpy as np

from dnncore.descriptors.settings import HashedOnce, member, wholes
from dnncore.dtypes import DType
from dnncore.errors import BadParamError

__all__ = ["MAX_NDIM", "Layout", "TensorDescriptor"]

MAX_NDIM = 8
"""Most dimensions a tensor may have; the kernels' parameter structs hold this many."""

_MAX_BYTES = 2**62
"""More than any memory has; sums of offsets stay within the signed 64 bits that the backends count in."""


class Layout(Enum):
    """Order of the dimensions in memory, slowest first; the spatial dimensions stay together and in order."""

    NCHW = "NCHW"
    NHWC = "NHWC"
    CHWN = "CHWN"


@dataclass(frozen=True, slots=True)
class TensorDescriptor(HashedOnce):
    """Element type, extents and strides of a tensor. Immutable.

    Args:
        dtype: Element type.
        shape: Extents, [N, C, *spatial] for the operations that have channels; an extent may be 0. () is a single element, which
            `dnncore.functional` takes and makes; operations on descriptors want it as [1].
        strides: Elements from one index to the next, one per dimension, none negative. 0 broadcasts (inputs only).

    Attributes:
        size: Number of elements.
        extent: Elements from the first to the last, gaps included; 0 for an empty tensor.
    """

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int = field(init=False, repr=False, compare=False)
    extent: int = field(init=False, repr=False, compare=False)

    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        dtype = self.dtype if self.dtype.__class__ is DType else DType.of(self.dtype)
        shape, strides = wholes(self.shape, "shape"), wholes(self.strides, "strides")
        if len(shape) > MAX_NDIM:
            raise BadParamError(f"shape {shape} has {len(shape)} dimensions; up to {MAX_NDIM} are supported")
        if len(strides) != len(shape):
            raise BadParamError(f"strides {strides} and shape {shape} differ in length")
        if min((*shape, *strides), default=0) < 0:
            raise BadParamError(f"shape {shape} and strides {strides} must not be negative")
        size = math.prod(shape)
        # From the first element to the last: as many steps along each dimension as there are indices behind the first one.
        extent = 1 + sum(map(mul, shape, strides)) - sum(strides) if size else 0
        keep = object.__setattr__  # not by `settle`: a plan makes dozens of descriptors
        keep(self, "dtype", dtype)
        keep(self, "shape", shape)
        keep(self, "strides", strides)
        keep(self, "size", size)
        keep(self, "extent", extent)
        keep(self, "_hash", hash((dtype, shape, strides)))  # sooner or later every descriptor is part of a key
        if max((*shape, *strides, extent * dtype.itemsize)) > _MAX_BYTES:
            raise BadParamError(f"shape {shape} with strides {strides} spans more than {_MAX_BYTES} bytes")

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
        layout, shape = member(Layout, layout), wholes(shape, "shape")
        ndim = len(shape)
        order: Sequence[int] = range(ndim)
        if layout is not Layout.NCHW:
            if ndim < 2:
                raise BadParamError(f"layout {layout.value} needs at least 2 dimensions, shape is {shape}")
            order = (0, *order[2:], 1) if layout is Layout.NHWC else (1, *order[2:], 0)
        strides, step = [0] * ndim, 1
        for axis in reversed(order):
            strides[axis] = step
            step *= max(shape[axis], 1)
        return cls(DType.of(dtype), shape, tuple(strides))

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
        """Whether two indices may share an element: such a tensor can be read, not written.

        False is certain. True is also the answer for dimensions that interleave without sharing, as (2, 3) with strides (3, 2) do.
        Without elements there is nothing to share, whatever the strides; NumPy's are all 0 then.
        """
        if self.size == 0:
            return False
        reach = 1
        for stride, extent in sorted(zip(self.strides, self.shape, strict=True)):
            if extent > 1:
                if stride < reach:
                    return True
                reach = (extent - 1) * stride + reach
        return False

    def with_shape(self, shape: Sequence[int]) -> TensorDescriptor:
        """Describe the first `shape` elements along each dimension of the same memory."""
        return TensorDescriptor(self.dtype, wholes(shape, "shape"), self.strides)

    def with_dtype(self, dtype: DType) -> TensorDescriptor:
        """Describe as many elements of another type, as far from each other."""
        return TensorDescriptor(dtype, self.shape, self.strides)

    def transposed(self, *axes: int) -> TensorDescriptor:
        """Describe the same memory with its dimensions in another order; without arguments, reversed.

        Raises:
            BadParamError: the axes are not each dimension once.
        """
        order = wholes(axes, "axes") or tuple(reversed(range(self.ndim)))
        if sorted(order) != list(range(self.ndim)):
            raise BadParamError(f"axes {axes} must name each of the {self.ndim} dimensions of shape {self.shape} once")
        return TensorDescriptor(
            self.dtype, tuple(self.shape[axis] for axis in order), tuple(self.strides[axis] for axis in order)
        )

    def __str__(self) -> str:
        return f"{self.dtype.value}{list(self.shape)} strides {list(self.strides)}"
