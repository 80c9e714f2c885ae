"""What moves elements without computing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.caffe.net import Site, at_least
from dnncore.nn.operators import Concat, Identity, Reshape, Slice, Split, Transpose

__all__ = ["LAYERS"]

_MAX_TILES = 1024


def _concat(site: Site) -> None:
    param = site.layer.concat_param
    site.takes(at_least(1))
    if param.HasField("axis") and param.HasField("concat_dim"):
        raise BadParamError("axis is given beside concat_dim")
    axis = site.axis(param.concat_dim if param.HasField("concat_dim") else param.axis, len(site.shape(site.x)))
    site.top(Concat(axis), *site.bottoms)


def _slice(site: Site) -> None:
    param = site.layer.slice_param
    site.takes(1, at_least(1))
    if param.HasField("axis") and param.HasField("slice_dim"):
        raise BadParamError("axis is given beside slice_dim")
    shape = site.shape(site.x)
    axis = site.axis(param.slice_dim if param.HasField("slice_dim") else param.axis, len(shape))
    if axis == 0:
        raise NotSupportedError("axis 0: images of one batch apart")
    many, extent = len(site.layer.top), shape[axis]
    if param.slice_point:
        points = [0, *param.slice_point, extent]
        if len(points) != many + 1 or any(b <= a for a, b in itertools.pairwise(points)):
            raise BadParamError(
                f"slice_point {list(param.slice_point)} of {extent} for {many} tops: one less, increasing"
            )
        sizes = tuple(b - a for a, b in itertools.pairwise(points))
    else:
        if extent % many:
            raise BadParamError(f"{extent} elements along axis {axis} cannot be dealt to {many} tops evenly")
        sizes = (extent // many,) * many
    site.tops(Split(sizes, axis), site.x)


def _split(site: Site) -> None:
    site.takes(1, at_least(1))
    x = site.x
    for place in range(len(site.layer.top)):
        site.top(Identity(), x, place=place)


def _flatten(site: Site) -> None:
    param = site.layer.flatten_param
    site.takes(1)
    shape = site.shape(site.x)
    first, last = site.axis(param.axis, len(shape)), site.axis(param.end_axis, len(shape))
    if last < first:
        raise BadParamError(f"end_axis {param.end_axis} lies before axis {param.axis}")
    middle = -1 if first == 0 else math.prod(shape[first : last + 1])
    site.top(Reshape((*(0,) * first, middle, *shape[last + 1 :])), site.x)


def _reshape(site: Site) -> None:
    param = site.layer.reshape_param
    site.takes(1)
    shape, wanted = site.shape(site.x), list(param.shape.dim)
    first = site.axis(param.axis, len(shape), end=True) if param.axis >= 0 else len(shape) + 1 + param.axis
    behind = len(shape) if param.num_axes == -1 else first + param.num_axes
    if param.num_axes < -1 or not 0 <= first <= behind <= len(shape):
        raise BadParamError(f"axis {param.axis} and num_axes {param.num_axes} do not fit {list(shape)}")
    if behind == 0:
        raise NotSupportedError("dimensions before that of the images")
    if wanted.count(-1) > 1 or min(wanted, default=0) < -1:
        raise BadParamError(f"dims {wanted} must be 0, one -1, or extents")
    if any(extent == 0 and first + place >= behind for place, extent in enumerate(wanted)):
        raise BadParamError(f"dims {wanted} copy extents that {list(shape)} does not have")
    if first == 0 and wanted and wanted[0] > 0:
        if wanted[0] != site.net.declared_batch:
            raise NotSupportedError(f"{wanted[0]} in place of the number of images")
        wanted[0] = 0  # it was the batch when the file was written
    target = (*(0,) * first, *wanted, *shape[behind:])
    site.top(Reshape(target), site.x)


def _crop(site: Site) -> None:
    """The part of the first bottom that has the extents of the second."""
    param = site.layer.crop_param
    site.takes(2)
    shape, reference = site.shape(site.x), site.shape(site.bottom(1))
    axis = site.axis(param.axis, len(shape))
    if axis == 0:
        raise NotSupportedError("axis 0: some images of a batch")
    if len(reference) != len(shape) or len(param.offset) not in (0, 1, len(shape) - axis):
        raise BadParamError(
            f"reads {list(shape)} and {list(reference)} with {len(param.offset)} offsets from axis {axis}"
        )
    offsets = list(param.offset) or [0]
    offsets *= len(shape) - axis if len(offsets) == 1 else 1
    piece = site.x
    cuts = [
        Slice(place, offset, offset + reference[place])
        for place, offset in enumerate(offsets, axis)
        if (offset, reference[place]) != (0, shape[place])
    ]
    for place, cut in enumerate(cuts[:-1]):
        piece = site.add(f"cut{place + 1}", cut, piece)
    site.top(cuts[-1] if cuts else Identity(), piece)


def _permute(site: Site) -> None:
    """Dimensions in another order: those that are named, then the others as they were."""
    order = list(site.layer.permute_param.order)
    site.takes(1)
    ndim = len(site.shape(site.x))
    if len(set(order)) != len(order) or any(axis >= ndim for axis in order):
        raise BadParamError(f"order {order} must name dimensions of {ndim}, each once")
    axes = (*order, *(axis for axis in range(ndim) if axis not in order))
    if axes[0] != 0:
        raise NotSupportedError(f"order {order}: images lie along dimension 0")
    site.top(Identity() if axes == tuple(range(ndim)) else Transpose(axes), site.x)


def _tile(site: Site) -> None:
    param = site.layer.tile_param
    site.takes(1)
    if not 1 <= param.tiles <= _MAX_TILES:
        raise NotSupportedError(f"tiles {param.tiles}: only 1 to {_MAX_TILES}")
    axis = site.axis(param.axis, len(site.shape(site.x)))
    site.top(Concat(axis), *(site.x,) * param.tiles)


LAYERS: dict[str, Callable[[Site], None]] = {
    "Concat": _concat,
    "Crop": _crop,
    "Flatten": _flatten,
    "Permute": _permute,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Tile": _tile,
}
