"""What several rules ask of shapes, in which extents may be the batch's."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.errors import NotSupportedError
from dnncore.nn.graph import Extent, Value
from dnncore.nn.operators import Reshape
from dnncore.torch.export.call import Call, Operand

__all__ = ["axis_of", "fixed", "reshaped", "spread"]


def axis_of(dim: int, x: Value | Sequence[Extent]) -> int:
    """A dimension, counted from the first."""
    ndim = len(x.shape if isinstance(x, Value) else x)
    return dim + ndim if dim < 0 else dim


def fixed(extent: Extent, what: str) -> int:
    """An extent that does not depend on the batch.

    Raises:
        NotSupportedError: it does.
    """
    if isinstance(extent, str):
        raise NotSupportedError(f"{what} depends on the number of images ({extent})")
    return extent


def spread(setting: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    """A setting for each spatial dimension; PyTorch gives one for all where they are equal."""
    values = (setting,) if isinstance(setting, int) else tuple(setting)
    return values * ndim if len(values) == 1 else values


def reshaped(
    call: Call, x: Operand, shape: Sequence[Extent], before: Sequence[Extent] = (), part: str = "reshape"
) -> str:
    """The same elements in another shape.

    Args:
        call: Where.
        x: What.
        shape: The extents, of which one may be the batch's.
        before: Those of x, where they are known.
        part: What the node is to the call.

    Raises:
        NotSupportedError: several extents are the batch's.
    """
    known = x.shape if isinstance(x, Value) else before
    target = [
        extent if isinstance(extent, int) else 0 if axis < len(known) and known[axis] == extent else -1
        for axis, extent in enumerate(shape)
    ]
    if target.count(-1) > 1:
        raise NotSupportedError(f"shape {list(shape)} has several extents that depend on the number of images")
    return call.add(Reshape(tuple(target)), x, part=part)
