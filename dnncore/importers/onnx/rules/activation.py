"""Element-wise non-linearities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.values import Computed, Imported, Known
from dnncore.nn.graph import Role
from dnncore.nn.operators import Activation, Binary, Scale

__all__ = ["RULES"]


def _plain(mode: str) -> Rule:
    """A mode of ours without attributes."""

    def rule(call: Call) -> Sequence[Imported]:
        return (call.emit(Activation(mode), call.tensor(0)),)

    return rule


def _elu(call: Call) -> Sequence[Imported]:
    return (call.emit(Activation("elu", call.attributes.real("alpha", 1.0)), call.tensor(0)),)


def _selu(call: Call) -> Sequence[Imported]:
    alpha = call.attributes.real("alpha", 1.67326319217681884765625)
    gamma = call.attributes.real("gamma", 1.05070102214813232421875)
    return (call.emit(Scale(gamma), call.emit(Activation("elu", alpha), call.tensor(0))),)


def _celu(call: Call) -> Sequence[Imported]:
    """x where it is positive, else alpha (exp(x / alpha) - 1): an ELU of x / alpha, times alpha."""
    alpha = call.attributes.real("alpha", 1.0)
    if alpha <= 0:
        raise NotSupportedError(f"alpha {alpha} must be positive")
    inner = call.emit(Activation("elu", 1.0), call.emit(Scale(1 / alpha), call.tensor(0)))
    return (call.emit(Scale(alpha), inner),)


def _leaky_relu(call: Call) -> Sequence[Imported]:
    x, alpha = call.tensor(0), call.attributes.real("alpha", 0.01)
    return (_with_slope(call, x, call.scalar(x, alpha, "slope") if alpha < 0 else alpha),)


def _with_slope(call: Call, x: Computed, slope: Computed | float) -> Computed:
    """x where it is positive, else slope times x."""
    if isinstance(slope, float):
        return call.emit(Activation("leaky_relu", slope), x)
    zero = call.scalar(x, 0.0, "zero")
    negative = call.emit(Binary("mul"), call.emit(Binary("min"), x, zero), slope)
    return call.emit(Binary("add"), call.emit(Activation("relu"), x), negative)


def _prelu(call: Call) -> Sequence[Imported]:
    x, slope = call.tensor(0), call.operand(1)
    if isinstance(slope, Known) and slope.fixed.size and slope.fixed.min() == slope.fixed.max() >= 0:
        return (_with_slope(call, x, float(slope.fixed.reshape(-1)[0])),)
    by_channel = call.tensor(1, Role.TRAINABLE)
    if (
        call.version < 7 and by_channel.ndim == 1 and by_channel.few.size > 1
    ):  # one slope a channel, however many places
        by_channel = call.reshape(by_channel, *[(by_channel.extent(0), *(1,) * (x.ndim - 2))] * 2)
    return (_with_slope(call, x, by_channel),)


def _hard_sigmoid(call: Call) -> Sequence[Imported]:
    x = call.tensor(0)
    alpha, beta = call.attributes.real("alpha", 0.2), call.attributes.real("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return (call.emit(Activation("hard_sigmoid"), x),)
    y = call.emit(Binary("add", alpha), x, call.scalar(x, beta, "beta"))
    return (call.emit(Activation("clipped_relu", 1.0), y),)


def _gelu(call: Call) -> Sequence[Imported]:
    modes = {"none": "gelu", "tanh": "gelu_tanh"}
    approximate = call.attributes.text("approximate", "none")
    if approximate not in modes:
        raise BadParamError(f"approximate {approximate!r} must be none or tanh")
    return (call.emit(Activation(modes[approximate]), call.tensor(0)),)


def _swish(call: Call) -> Sequence[Imported]:
    """x sigmoid(alpha x)."""
    x, alpha = call.tensor(0), call.attributes.real("alpha", 1.0)
    if alpha == 1:
        return (call.emit(Activation("silu"), x),)
    return (call.emit(Binary("mul"), x, call.emit(Activation("sigmoid"), call.emit(Scale(alpha), x))),)


def _clip(call: Call) -> Sequence[Imported]:
    x = call.tensor(0)
    low, high = _bounds(call, x)
    if isinstance(low, float) and low == 0 and high is None:
        return (call.emit(Activation("relu"), x),)
    if isinstance(low, float) and low == 0 and isinstance(high, float) and 0 <= high < math.inf:
        return (call.emit(Activation("clipped_relu", high), x),)
    for operator, bound in (("max", low), ("min", high)):
        if bound is not None:
            x = call.emit(Binary(operator), x, call.scalar(x, bound, operator) if isinstance(bound, float) else bound)
    return (x,)


def _bounds(call: Call, x: Computed) -> tuple[Computed | float | None, Computed | float | None]:
    """Attributes in models before opset 11, operands since."""
    if call.version < 11:
        low, high = call.attributes.real("min", -math.inf), call.attributes.real("max", math.inf)
        limit = float(np.finfo(np.float32).max)  # the defaults of opset 6
        return (None if low <= -limit else low), (None if high >= limit else high)
    found: list[Computed | float | None] = []
    for index in (1, 2):
        bound = call.operand(index) if call.has(index) else None
        if isinstance(bound, Known):
            if bound.fixed.size != 1 or bound.fixed.dtype != x.few.dtype.numpy:
                raise BadParamError(f"the bound {bound.name!r} must be one number of dtype {x.few.dtype.value}")
            found.append(float(bound.fixed.reshape(())))
        else:
            found.append(bound)
    return found[0], found[1]


RULES: Mapping[str, Rule] = {
    "Celu": _celu,
    "Clip": _clip,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain("hard_swish"),
    "LeakyRelu": _leaky_relu,
    "PRelu": _prelu,
    "Relu": _plain("relu"),
    "Selu": _selu,
    "Sigmoid": _plain("sigmoid"),
    "Swish": _swish,
    "Tanh": _plain("tanh"),
}
