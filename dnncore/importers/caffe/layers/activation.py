"""Element-wise functions of one tensor."""

from __future__ import annotations

import math
from collections.abc import Callable

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.caffe.dnncore_caffe_pb2 import FillerParameter
from dnncore.importers.caffe.net import Site, decimal
from dnncore.nn.operators import Activation, Binary, Cast, Dropout, Scale, Softmax, Unary, Zeros

__all__ = ["LAYERS"]


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
    site.takes(1)
    site.top(Unary("abs"), site.x)


def _clip(site: Site) -> None:
    site.takes(1)
    param = site.layer.clip_param
    above = site.add("above", Binary("max"), site.x, site.number("min", param.min))
    site.top(Binary("min"), above, site.number("max", param.max))


_POWERS = {-1.0: "reciprocal", -0.5: "rsqrt", 0.5: "sqrt", 2.0: "square"}
"""Exponents for which there is something simpler."""


def _power(site: Site) -> None:
    """(shift + scale x)^power."""
    site.takes(1)
    param = site.layer.power_param
    if param.power == 0 or param.scale == 0:
        value = 1.0 if param.power == 0 else param.shift**param.power if param.shift or param.power > 0 else math.inf
        if isinstance(value, complex):
            raise NotSupportedError(f"power {param.power:g} of shift {param.shift:g} is no number")
        site.top(Binary("add"), site.add("zeros", Zeros(), site.x), site.number("value", value))
        return
    _ = site.shape(site.x)
    if param.power == 1 and param.shift == 0:
        site.top(Scale(param.scale), site.x)
        return
    if param.power == 1:
        site.top(Binary("add", param.scale), site.x, site.number("shift", param.shift))
        return
    base = _affine(site, param.scale, param.shift)
    if param.power in _POWERS:
        site.top(Unary(_POWERS[param.power]), base)
    else:
        site.top(Binary("pow"), base, site.number("power", param.power))


def _affine(site: Site, scale: float, shift: float) -> str:
    """shift + scale x."""
    if shift:
        return site.add("shifted", Binary("add", scale), site.x, site.number("shift", shift))
    return site.x if scale == 1 else site.add("scaled", Scale(scale), site.x)


def _exp(site: Site) -> None:
    """base^(shift + scale x)."""
    site.takes(1)
    param = site.layer.exp_param
    factor = _logarithm_of(param.base)
    site.top(Unary("exp"), _affine(site, param.scale * factor, param.shift * factor))


def _log(site: Site) -> None:
    """The logarithm of shift + scale x to a base."""
    site.takes(1)
    param = site.layer.log_param
    factor = _logarithm_of(param.base)
    if factor == 0:
        raise BadParamError("base 1: no power of 1 is anything else")
    u = _affine(site, param.scale, param.shift)
    if factor == 1:
        site.top(Unary("log"), u)
    else:
        site.top(Scale(1 / factor), site.add("natural", Unary("log"), u))


def _logarithm_of(base: float) -> float:
    """Of a base, of which -1 stands for e."""
    if base == -1:
        return 1.0
    if base <= 0:
        raise BadParamError(f"base {base:g} must be positive, or -1 for e")
    return math.log(base)


def _softplus(site: Site) -> None:
    """log(1 + exp(x))."""
    site.takes(1)
    site.top(Unary("softplus"), site.x)


def _threshold(site: Site) -> None:
    """1 where x is more than the threshold, else 0."""
    site.takes(1)
    more = site.add("more", Binary("greater"), site.x, site.number("threshold", site.layer.threshold_param.threshold))
    site.top(Cast("float32"), more)


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
    "Log": _log,
    "PReLU": _prelu,
    "Power": _power,
    "ReLU": _relu,
    "Sigmoid": _sigmoid,
    "Softmax": _softmax,
    "Swish": _swish,
    "TanH": _tanh,
    "Threshold": _threshold,
}
