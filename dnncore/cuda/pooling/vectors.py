"""What kernels that read vectors of channels, or neighbouring columns, share: where they can, and what computes it where addresses
are not aligned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dnncore.cuda.calls import Calls, Place, WhereAligned
from dnncore.cuda.pooling.planar import PlanarPooling
from dnncore.cuda.pooling.problem import PoolingProblem, mode_of
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType

__all__ = [
    "ANYWHERE",
    "ANYWHERE_BACKWARD",
    "MODES_OF_VECTORS",
    "VECTOR_BYTES",
    "steps",
    "vector_width",
    "where_aligned",
    "whole_strips",
    "why_no_planes",
    "why_no_vectors",
]

ANYWHERE, ANYWHERE_BACKWARD = PlanarPooling("forward"), PlanarPooling("backward")
"""What computes it where an address is not a multiple of a vector's size."""

MODES_OF_VECTORS = ("max", "average")
"""Of `problem.MODES`."""

VECTOR_BYTES = 16
_MOST_BYTES = 2**31 - 1
"""From a row or a column to the next one, for 32-bit steps."""


def vector_width(dtype: DType) -> int:
    """Channels of a vector."""
    return VECTOR_BYTES // dtype.itemsize


def _why_not_at_all(
    problem: PoolingProblem, computed: TensorDescriptor, dtypes: Sequence[DType], modes: Sequence[str]
) -> str | None:
    if (mode := mode_of(problem)) not in modes:
        return "it keeps no indices" if mode == "indices" else f"it has no pooling of mode {mode}"
    if problem.pooling.spatial_ndim != 2:
        return f"{problem.pooling.spatial_ndim} spatial dimensions; it is for 2"
    if computed.dtype not in dtypes:
        return f"x is {computed.dtype.value}"
    return None if computed.size else f"{problem.output_names[0]} is empty"


def why_no_vectors(
    problem: PoolingProblem,
    tensors: Sequence[TensorDescriptor],
    dtypes: Sequence[DType],
    modes: Sequence[str] = MODES_OF_VECTORS,
) -> str | None:
    """None where tensors consist of vectors of channels, else the reason why not.

    Args:
        problem: Any direction.
        tensors: What is read and written of it; the last one is what is computed.
        dtypes: Of the latter, those that there are kernels for.
        modes: Likewise.
    """
    if (reason := _why_not_at_all(problem, tensors[-1], dtypes, modes)) is not None:
        return reason
    width = vector_width(tensors[-1].dtype)
    for tensor in tensors:
        whole = VECTOR_BYTES // tensor.dtype.itemsize
        others = [tensor.strides[axis] for axis in (0, 2, 3) if tensor.shape[axis] > 1]
        if tensor.strides[1] != 1 or tensor.shape[1] % width or any(stride % whole for stride in others):
            return f"{tensor} has no vectors of {width} channels"
        if (step := max(*steps(tensor), tensor.shape[1]) * tensor.dtype.itemsize) > _MOST_BYTES:
            return f"rows, columns or the outermost channels of {tensor} are {step} bytes apart; at most {_MOST_BYTES}"
    return None


def steps(tensor: TensorDescriptor) -> tuple[int, ...]:
    """Strides of rows and columns; what is never stepped over may have any."""
    return tuple(tensor.strides[axis] if tensor.shape[axis] > 1 else 0 for axis in (2, 3))


def why_no_planes(
    problem: PoolingProblem,
    tensors: Sequence[TensorDescriptor],
    dtypes: Sequence[DType],
    modes: Sequence[str],
) -> str | None:
    """None where the columns of tensors are neighbours, else the reason why not; the arguments as of `why_no_vectors`."""
    if (reason := _why_not_at_all(problem, tensors[-1], dtypes, modes)) is not None:
        return reason
    for tensor in tensors:
        if tensor.shape[3] > 1 and tensor.strides[3] != 1:
            return f"the columns of {tensor} are {tensor.strides[3]} elements apart"
        if (step := steps(tensor)[0] * tensor.dtype.itemsize) > _MOST_BYTES:
            return f"the rows of {tensor} are {step} bytes apart; at most {_MOST_BYTES}"
    return None


def whole_strips(tensor: TensorDescriptor, columns: int) -> bool:
    """Whether planes can be stored so many columns at a time where the tensor begins at a multiple of as many elements."""
    others = [tensor.strides[axis] for axis in (0, 1, 2) if tensor.shape[axis] > 1]
    return tensor.shape[3] % columns == 0 and all(stride % columns == 0 for stride in others)


def where_aligned(vectorized: Calls, anywhere: Callable[[], Calls], nbytes: Mapping[int, int]) -> Calls:
    """The first calls where operands' addresses are multiples of so many bytes, the others elsewhere."""
    return (WhereAligned(tuple((Place(operand), each) for operand, each in nbytes.items()), vectorized, anywhere),)
