"""Element-wise functions of one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.caffe.dnncore_caffe_pb2 import FillerParameter
from dnncore.importers.caffe.net import Site, decimal
from dnncore.nn.operators import Activation, Binary, Concat, Dropout, Reshape, Scale, Slice, Softmax, Zeros

__all__ = ["LAYERS"]

_MAX_POWER = 16


def _relu(site: Site) -> None:
    site.takes(1)
    slope = decimal(site.layer.relu_param.negative_slope)
    if not 0 <= slope < math.inf:
        raise NotSupportedError(f"negative_slope {slope:g}: only 0 or more")
    site.top(Activation("leaky_relu", slope) if slope else Activation("relu"), site.x)


def _elu(site: Site) -> None:
    site.takes(1)
    alpha = decimal(site.layer.elu_param.alpha)
    if not 0 <= alpha < math.inf:
        raise NotSupportedError(f"alpha {alpha:g}: only 0 or more")
    site.top(Activation("elu", alpha), site.x)


def _sigmoid(site: Site) -> None:
    site.takes(1)
    site.top(Activation("sigmoid"), site.x)


def _tanh(site: Site) -> None:
    site.takes(1)
    site.top(Activation("tanh"), site.x)


def _swish(site: Site) -> None:
    """x sigmoid(beta x)."""
    site.takes(1)
    beta = site.layer.swish_param.beta
    if beta == 1:
        site.top(Activation("silu"), site.x)
        return
    gate = site.add("gate", Activation("sigmoid"), site.add("scaled", Scale(beta), site.x))
    site.top(Binary("mul"), site.x, gate)


def _prelu(site: Site) -> None:
    """max(x, 0) - slope max(-x, 0), with a slope for each channel."""
    site.takes(1)
    param = site.layer.prelu_param
    shape = site.shape(site.x)
    if len(shape) < 2:
        raise BadParamError(f"reads {list(shape)}, which has no channels")
    filler = param.filler if param.HasField("filler") else FillerParameter(value=0.25)
    channels = 1 if param.channel_shared else shape[1]
    extents = (channels, *(1,) * (len(shape) - 2))
    slope = site.parameter("slope", () if param.channel_shared else (channels,), filler, shape=extents)
    above = site.add("above", Activation("relu"), site.x)
    below = site.add("below", Activation("relu"), site.add("negative", Scale(-1.0), site.x))
    site.top(Binary("sub"), above, site.add("scaled", Binary("mul"), below, slope))


def _absolute(site: Site) -> None:
    """max(x, -x)."""
    site.takes(1)
    site.top(Binary("max", 1.0, -1.0), site.x, site.x)


def _clip(site: Site) -> None:
    site.takes(1)
    param = site.layer.clip_param
    above = site.add("above", Binary("max"), site.x, site.number("min", param.min))
    site.top(Binary("min"), above, site.number("max", param.max))


def _power(site: Site) -> None:
    """(shift + scale x)^power, for whole powers, by multiplication."""
    site.takes(1)
    param = site.layer.power_param
    power = int(param.power) if param.power == param.power // 1 else None
    if power is None or abs(power) > _MAX_POWER:
        raise NotSupportedError(f"power {param.power:g}: only whole numbers from -{_MAX_POWER} to {_MAX_POWER}")
    if power == 0 or param.scale == 0:
        value = 1.0 if power == 0 else param.shift**power if param.shift or power > 0 else math.inf
        site.top(Binary("add"), site.add("zeros", Zeros(), site.x), site.number("value", value))
        return
    _ = site.shape(site.x)
    if power == 1 and param.shift == 0:
        site.top(Scale(param.scale), site.x)
        return
    if power == 1:
        site.top(Binary("add", param.scale), site.x, site.number("shift", param.shift))
        return
    base = _affine(site, param.scale, param.shift)
    product = base
    for count in range(2, abs(power) + 1):
        if count == power:
            site.top(Binary("mul"), product, base)
            return
        product = site.add(f"power{count}", Binary("mul"), product, base)
    site.top(Binary("div"), site.number("one", 1.0), product)


def _affine(site: Site, scale: float, shift: float) -> str:
    """shift + scale x."""
    if shift:
        return site.add("shifted", Binary("add", scale), site.x, site.number("shift", shift))
    return site.x if scale == 1 else site.add("scaled", Scale(scale), site.x)


def _exp(site: Site) -> None:
    """base^(shift + scale x) as sigmoid(u) / sigmoid(-u), which is exp(u)."""
    site.takes(1)
    param = site.layer.exp_param
    if param.base <= 0 and param.base != -1:
        raise BadParamError(f"base {param.base:g} must be positive, or -1 for e")
    factor = 1.0 if param.base == -1 else math.log(param.base)
    u = _affine(site, param.scale * factor, param.shift * factor)
    above = site.add("above", Activation("sigmoid"), u)
    below = site.add("below", Activation("sigmoid"), site.add("negative", Scale(-1.0), u))
    site.top(Binary("div"), above, below)


def _softplus(site: Site) -> None:
    """log(1 + exp(x)): minus the logarithm of the softmax of 0 beside x."""
    site.takes(1)
    shape = site.shape(site.x)
    x = site.add("flat", Reshape((-1, 1, math.prod(shape[1:]))), site.x)
    pair = site.add("pair", Concat(1), site.add("zeros", Zeros(), x), x)
    logarithm = site.add("logarithm", Slice(1, 0, 1), site.add("softmax", Softmax(1, log=True), pair))
    site.top(Reshape((-1, *shape[1:])), site.add("positive", Scale(-1.0), logarithm))


def _dropout(site: Site) -> None:
    site.takes(1)
    site.top(Dropout(decimal(site.layer.dropout_param.dropout_ratio)), site.x)


def _softmax(site: Site) -> None:
    site.takes(1)
    axis = site.layer.softmax_param.axis
    site.top(Softmax(site.axis(axis, len(site.shape(site.x)))), site.x)


LAYERS: dict[str, Callable[[Site], None]] = {
    "AbsVal": _absolute,
    "BNLL": _softplus,
    "Clip": _clip,
    "Dropout": _dropout,
    "ELU": _elu,
    "Exp": _exp,
    "PReLU": _prelu,
    "Power": _power,
    "ReLU": _relu,
    "Sigmoid": _sigmoid,
    "Softmax": _softmax,
    "Swish": _swish,
    "TanH": _tanh,
}
