"""What the kernels for innermost channels share: vectors of channels, and what computes it where they are not aligned."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.cuda.calls import Calls, Place, WhereAligned
from dnncore.cuda.pooling.planar import PlanarPooling
from dnncore.cuda.pooling.problem import PoolingProblem, mode_of
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType

__all__ = ["ANYWHERE", "MODES_OF_VECTORS", "VECTOR_BYTES", "steps", "vector_width", "where_aligned", "why_no_vectors"]

ANYWHERE = PlanarPooling("forward")
"""What computes it where an address is not a multiple of a vector's size."""

MODES_OF_VECTORS = ("max", "average")
"""Of `problem.MODES`."""

VECTOR_BYTES = 16
_MOST_BYTES = 2**31 - 1
"""From a row or a column to the next one, for 32-bit steps."""


def vector_width(dtype: DType) -> int:
    """Channels of a vector."""
    return VECTOR_BYTES // dtype.itemsize


def why_no_vectors(problem: PoolingProblem, dtypes: Sequence[DType]) -> str | None:
    """None where x and y consist of vectors of channels and no indices are wanted, else the reason why not.

    Args:
        problem: A forward problem.
        dtypes: Those that there are kernels for.
    """
    x, y = problem.inputs[0], problem.outputs[0]
    if mode_of(problem) not in MODES_OF_VECTORS:
        return "it keeps no indices"
    if problem.pooling.spatial_ndim != 2:
        return f"{problem.pooling.spatial_ndim} spatial dimensions; it is for 2"
    if x.dtype not in dtypes:
        return f"x is {x.dtype.value}"
    if not y.size:
        return "y is empty"
    width = vector_width(x.dtype)
    for tensor in (x, y):
        others = [tensor.strides[axis] for axis in (0, 2, 3) if tensor.shape[axis] > 1]
        if tensor.strides[1] != 1 or tensor.shape[1] % width or any(stride % width for stride in others):
            return f"{tensor} has no vectors of {width} channels"
        if (step := max(*steps(tensor), tensor.shape[1]) * tensor.dtype.itemsize) > _MOST_BYTES:
            return f"rows, columns or the outermost channels of {tensor} are {step} bytes apart; at most {_MOST_BYTES}"
    return None


def steps(tensor: TensorDescriptor) -> tuple[int, ...]:
    """Strides of rows and columns; what is never stepped over may have any."""
    return tuple(tensor.strides[axis] if tensor.shape[axis] > 1 else 0 for axis in (2, 3))


def where_aligned(vectorized: Calls, anywhere: Calls) -> Calls:
    """The first calls where x and y are aligned, the others elsewhere."""
    return (WhereAligned(tuple((Place(operand), VECTOR_BYTES) for operand in (0, 1)), vectorized, anywhere),)
