"""The largest elements along a dimension."""

from __future__ import annotations

from dnncore.handle import Handle
from dnncore.problems import TopKProblem
from dnncore.tensor import Tensor

__all__ = ["top_k"]


def top_k(handle: Handle, axis: int, alpha: float, x: Tensor, beta: float, values: Tensor, indices: Tensor) -> None:
    """values = the largest elements of x along a dimension, largest first; of equals that with the lower index, NaN before all.

    Args:
        axis: The dimension, counted from the first.
        values: Shape of x with as many as are wanted in the dimension.
        indices: int32, shape of `values`: where each element is along the dimension.
    """
    arguments = (x.descriptor, values.descriptor, indices.descriptor, axis)
    handle.execute(TopKProblem, arguments, alpha, (x,), beta, (values, indices))
