"""Many elements as one: sums, means, and where the largest is."""

from __future__ import annotations

from collections.abc import Callable

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.caffe.dnncore_caffe_pb2 import ReductionParameter
from dnncore.importers.caffe.net import Site
from dnncore.nn.operators import Binary, Cast, Concat, Flatten, Identity, Reduce, Reshape, Scale, TopK

__all__ = ["LAYERS"]

_OPERATORS = {
    ReductionParameter.SUM: "add",
    ReductionParameter.ASUM: "norm1",
    ReductionParameter.SUMSQ: "add",
    ReductionParameter.MEAN: "avg",
}


def _reduction(site: Site) -> None:
    """Over all dimensions from one on, which are left out."""
    param = site.layer.reduction_param
    site.takes(1)
    shape = site.shape(site.x)
    axis = site.axis(param.axis, len(shape))
    if axis == 0:
        raise NotSupportedError("axis 0: over the images of a batch")
    x = site.x
    if param.operation == ReductionParameter.SUMSQ:
        x = site.add("squares", Binary("mul"), x, x)
    operator = Reduce(_OPERATORS[param.operation], tuple(range(axis, len(shape))), keep=False)
    if param.coeff == 1:
        site.top(operator, x)
    else:
        site.top(Scale(param.coeff), site.add("total", operator, x))


def _arg_max(site: Site) -> None:
    """Indices of the largest along a dimension, or in each image, as numbers of the input's type; or their values, or both."""
    param = site.layer.argmax_param
    site.takes(1)
    shape = site.shape(site.x)
    if len(shape) < 2:
        raise BadParamError(f"reads {list(shape)}, which has one element for each image")
    if param.HasField("axis"):
        axis = site.axis(param.axis, len(shape))
        if axis == 0:
            raise NotSupportedError("axis 0: over the images of a batch")
        values, indices = _largest(site, site.x, param.top_k, axis)
        if param.out_max_val:
            site.top(Identity(), values)
        else:
            site.top(Cast("float32"), indices)
        return
    # [N, 1, k, 1, ...], or [N, 2, k, 1, ...] with the values behind the indices.
    row = (-1, 1, param.top_k, *(1,) * (len(shape) - 3))
    values, indices = _largest(site, site.add("flat", Flatten(1), site.x), param.top_k, 1)
    numbers = site.add("number", Cast("float32"), indices)
    if not param.out_max_val:
        site.top(Reshape(row), numbers)
        return
    parts = (site.add(f"{name}.row", Reshape(row), one) for name, one in (("indices", numbers), ("values", values)))
    site.top(Concat(1), *parts)


def _largest(site: Site, x: str, count: int, axis: int) -> tuple[str, str]:
    """The nodes that find the largest along a dimension: values and indices."""
    values, indices = (site.net.free(f"{site.layer.name}.{part}") for part in ("largest", "index"))
    site.net.node(indices, TopK(count, axis), (x,), (values, indices))
    return values, indices


LAYERS: dict[str, Callable[[Site], None]] = {"ArgMax": _arg_max, "Reduction": _reduction}
