"""What pooling comes to: one launch of equal windows, or one dimension after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dnncore.descriptors import PoolingDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.formats import new, without_leading
from dnncore.functional.operation import Draft, Operation
from dnncore.functional.windows import Placed, Windows
from dnncore.problems import AddProblem, PoolingForwardProblem

__all__ = ["pooled", "separately"]


def pooled(
    given: TensorDescriptor,
    x: TensorDescriptor,
    pooling: PoolingDescriptor,
    alpha: float = 1.0,
    *,
    indices: bool = False,
) -> Operation:
    """x -> y, and indices."""
    y = new(pooling.output_shape(x.shape), x)
    places = new(y.shape, x, dtype=DType.INT32) if indices else None
    results = [one for one in (y, places) if one is not None]
    draft = Draft(1, *(results if x is given else map(without_leading, results)))
    draft.step(PoolingForwardProblem(x, y, pooling, places), 0, *draft.results, alpha=alpha)
    return draft.operation()


def separately(
    given: TensorDescriptor,
    x: TensorDescriptor,
    counts: Sequence[int],
    windows: Sequence[tuple[int, Windows]],
    reduce: Callable[[Draft, int, Windows, Placed, Placed], None],
    dtype: DType,
) -> Operation:
    """x -> y, reduced along one dimension after the other, in between in another dtype; rounded once, at the end.

    Args:
        given: What the caller gave.
        x: The same with a batch dimension.
        counts: The spatial extents of y.
        windows: The dimensions that are reduced, and how.
        reduce: By what.
        dtype: Of what is in between.
    """
    if not x.dtype.is_floating:
        raise BadParamError(
            f"input is {x.dtype.value}; a floating-point dtype is needed for windows that differ in size or stride, or are dilated"
        )
    y = new((*x.shape[:2], *counts), x)
    draft = Draft(1, y if x is given else without_leading(y))
    (result,) = draft.results
    seen, shape = (0, x), list(x.shape)
    if not y.size:
        return draft.operation()
    for axis, along in windows:
        shape[axis] = len(along.each)
        made = new(shape, x, dtype=dtype)
        is_last = axis == windows[-1][0] and dtype is x.dtype
        target = result if is_last else draft.scratch(made), made
        reduce(draft, axis, along, seen, target)
        seen = target
    if dtype is not x.dtype:
        draft.step(AddProblem(seen[1], y), seen[0], result)
    return draft.operation()
