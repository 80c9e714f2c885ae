"""Many elements as one: sums, means, and where the largest is."""

from __future__ import annotations

from collections.abc import Callable

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.caffe.dnncore_caffe_pb2 import ReductionParameter
from dnncore.importers.caffe.net import Site
from dnncore.nn.operators import ArgMax, Binary, Cast, Flatten, Reduce, Reshape, Scale

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
    """Index of the largest along a dimension, or in each image, as a number of the input's type; or its value."""
    param = site.layer.argmax_param
    site.takes(1)
    if param.top_k != 1:
        raise NotSupportedError(f"top_k {param.top_k}: only 1")
    if param.out_max_val and not param.HasField("axis"):
        raise NotSupportedError("out_max_val without axis: indices and values in one top")
    shape = site.shape(site.x)
    if len(shape) < 2:
        raise BadParamError(f"reads {list(shape)}, which has one element for each image")
    if param.HasField("axis"):
        axis = site.axis(param.axis, len(shape))
        if axis == 0:
            raise NotSupportedError("axis 0: over the images of a batch")
        if param.out_max_val:
            site.top(Reduce("max", (axis,)), site.x)
        else:
            site.top(Cast("float32"), _index(site, site.x, axis))
        return
    index = _index(site, site.add("flat", Flatten(1), site.x), 1)
    site.top(Reshape((-1, 1, 1)), site.add("number", Cast("float32"), index))


def _index(site: Site, x: str, axis: int) -> str:
    outputs = [site.net.free(f"{site.layer.name}.{part}") for part in ("largest", "index")]
    site.net.node(outputs[1], ArgMax(axis), (x,), outputs)
    return outputs[1]


LAYERS: dict[str, Callable[[Site], None]] = {"ArgMax": _arg_max, "Reduction": _reduction}
