"""Several tensors combined element by element, and a tensor with what the layer has learnt."""

from __future__ import annotations

from collections.abc import Callable

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.caffe.dnncore_caffe_pb2 import EltwiseParameter, FillerParameter
from dnncore.importers.caffe.net import Site, at_least
from dnncore.nn.operators import Binary, Reshape

__all__ = ["LAYERS"]

_ELTWISE = {EltwiseParameter.PROD: "mul", EltwiseParameter.SUM: "add", EltwiseParameter.MAX: "max"}


def _eltwise(site: Site) -> None:
    param = site.layer.eltwise_param
    site.takes(at_least(2))
    many = len(site.layer.bottom)
    if param.coeff and (param.operation != EltwiseParameter.SUM or len(param.coeff) != many):
        raise BadParamError(f"{len(param.coeff)} coeff; they are for SUM, one for each of {many} bottoms")
    coefficients = list(param.coeff) or [1.0] * many
    bottoms = site.bottoms
    shapes = [site.shape(bottom) for bottom in bottoms]
    if len(set(shapes)) > 1:
        raise BadParamError(f"reads {', '.join(str(list(shape)) for shape in shapes)}, which must be equal")
    name = _ELTWISE[param.operation]
    total, factor = bottoms[0], coefficients[0]
    for place in range(1, many):
        operator = Binary(name, factor, coefficients[place])
        if place == many - 1:
            site.top(operator, total, bottoms[place])
        else:
            total, factor = site.add(f"first{place + 1}", operator, total, bottoms[place]), 1.0


def _scale(site: Site) -> None:
    param = site.layer.scale_param
    site.takes(range(1, 3))
    filler = param.filler if param.HasField("filler") else FillerParameter(value=1.0)
    factor, covered = _second(site, "scale", param.axis, param.num_axes, filler)
    if not param.bias_term:
        site.top(Binary("mul"), site.x, factor)
        return
    extents = (*covered, *(1,) * _behind(site, param.axis, covered))
    bias = site.parameter("bias", covered, param.bias_filler, shape=extents)
    product = site.add("product", Binary("mul"), site.x, factor)
    site.top(Binary("add"), product, bias)


def _bias(site: Site) -> None:
    param = site.layer.bias_param
    site.takes(range(1, 3))
    term, _ = _second(site, "bias", param.axis, param.num_axes, param.filler)
    site.top(Binary("add"), site.x, term)


def _second(site: Site, part: str, axis: int, num_axes: int, filler: FillerParameter) -> tuple[str, tuple[int, ...]]:
    """What the first bottom is combined with, so that it can be broadcast, and the extents that it covers."""
    shape = site.shape(site.x)
    if len(site.layer.bottom) == 2:
        second = site.bottom(1)
        theirs = site.shape(second)
        axis = site.axis(axis, len(shape)) if theirs else 0
        if shape[axis : axis + len(theirs)] != theirs:
            raise BadParamError(f"{list(theirs)} are not the extents of {list(shape)} from dimension {axis}")
        behind = len(shape) - axis - len(theirs)
        if not behind:
            return second, theirs
        first = () if axis == 0 else theirs[:1]
        kept = (-1, *theirs[1:]) if axis == 0 else (*first, *theirs[1:])
        return site.add("reshaped", Reshape((*kept, *(1,) * behind)), second), theirs
    if num_axes < -1:
        raise BadParamError(f"num_axes {num_axes} must be -1 or more")
    axis = site.axis(axis, len(shape)) if num_axes else 0
    if num_axes and axis == 0:
        raise NotSupportedError("axis 0: a parameter for each image of a batch")
    if num_axes > len(shape) - axis:
        raise BadParamError(f"num_axes {num_axes} from axis {axis} of {list(shape)}")
    covered = shape[axis:] if num_axes == -1 else shape[axis : axis + num_axes]
    extents = (*covered, *(1,) * (len(shape) - axis - len(covered))) if num_axes else (1,)
    return site.parameter(part, covered, filler, shape=extents), covered


def _behind(site: Site, axis: int, covered: tuple[int, ...]) -> int:
    """How many dimensions lie behind those that are covered."""
    shape = site.shape(site.x)
    if not covered:
        return 0
    axis = site.axis(axis, len(shape))
    if axis == 0:
        raise NotSupportedError("bias_term at axis 0: a parameter for each image of a batch")
    return len(shape) - axis - len(covered)


LAYERS: dict[str, Callable[[Site], None]] = {"Bias": _bias, "Eltwise": _eltwise, "Scale": _scale}
