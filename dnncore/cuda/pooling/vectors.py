"""What the kernels for innermost channels share: vectors of channels, and what computes it where they are not aligned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    computed, mode = tensors[-1], mode_of(problem)
    if mode not in modes:
        return "it keeps no indices" if mode == "indices" else f"it has no pooling of mode {mode}"
    if problem.pooling.spatial_ndim != 2:
        return f"{problem.pooling.spatial_ndim} spatial dimensions; it is for 2"
    if computed.dtype not in dtypes:
        return f"x is {computed.dtype.value}"
    if not computed.size:
        return f"{problem.output_names[0]} is empty"
    width = vector_width(computed.dtype)
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


def where_aligned(vectorized: Calls, anywhere: Calls, operands: Iterable[int] = (0, 1)) -> Calls:
    """The first calls where these operands are aligned, the others elsewhere."""
    return (WhereAligned(tuple((Place(operand), VECTOR_BYTES) for operand in operands), vectorized, anywhere),)
