"""How functions read the shapes and dimensions that they are given."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.descriptors import TensorDescriptor
from dnncore.descriptors.settings import whole, wholes
from dnncore.errors import BadParamError
from dnncore.formats import with_leading

__all__ = ["Extents", "axes", "axis", "image"]

Extents = int | Sequence[int]
"""One number for all spatial dimensions, or one for each."""


def image(x: TensorDescriptor, spatial_ndim: int) -> TensorDescriptor:
    """[N, C, *spatial], or [C, *spatial] as [1, C, *spatial].

    Raises:
        BadParamError: another number of dimensions.
    """
    if x.ndim not in (spatial_ndim + 1, spatial_ndim + 2):
        raise BadParamError(
            f"input has shape {x.shape}; [N, C, *spatial] or [C, *spatial] with {spatial_ndim} spatial dimensions is needed"
        )
    return with_leading(x, spatial_ndim + 2)


def axis(dim: int, ndim: int) -> int:
    """A dimension counted from the front; a negative one counts from the end.

    Raises:
        BadParamError: there is no such dimension.
    """
    dim, count = whole(dim, "dim"), max(ndim, 1)  # a tensor without dimensions is seen as [1], as PyTorch does
    if not -count <= dim < count:
        raise BadParamError(f"dim {dim} is none of a tensor with {ndim} dimensions")
    return dim % count


def axes(dim: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Dimensions counted from the front; all of them for None and for none.

    Raises:
        BadParamError: there is no such dimension, or it is named twice.
    """
    if dim is None:
        return tuple(range(ndim))
    found = tuple(axis(one, ndim) for one in (wholes(dim, "dim") if isinstance(dim, Sequence) else (dim,)))
    if len(set(found)) != len(found):
        raise BadParamError(f"dim {dim} names a dimension twice")
    return found or tuple(range(ndim))
