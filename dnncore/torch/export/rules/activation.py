"""Element-wise non-linearities."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from dnncore.errors import NotSupportedError
from dnncore.nn.graph import Value
from dnncore.nn.operators import Activation, Binary, Scale
from dnncore.torch.export.call import Call
from dnncore.torch.export.rules.shapes import reshaped

__all__ = ["RULES"]

_aten = torch.ops.aten


def _plain(mode: str, call: Call, x: Value) -> str:
    return call.add(Activation(mode), x)


def _gelu(call: Call, x: Value, approximate: str) -> str:
    return call.add(Activation("gelu_tanh" if approximate == "tanh" else "gelu"), x)


def _elu(call: Call, x: Value, alpha: float, scale: float = 1, input_scale: float = 1) -> str:
    if input_scale != 1:
        raise NotSupportedError(f"input_scale {input_scale} is not 1")
    y = call.add(Activation("elu", float(alpha)), x)
    return y if scale == 1 else call.add(Scale(float(scale)), y, part="scale")


def _selu(call: Call, x: Value) -> str:
    """Source: arXiv 1706.02515, section 2, in the digits that PyTorch has."""
    return _elu(call, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


def _leaky_relu(call: Call, x: Value, negative_slope: float) -> str:
    return call.add(Activation("leaky_relu", float(negative_slope)), x)


def _prelu(call: Call, x: Value, weight: Value) -> str:
    """max(x, 0) + weight min(x, 0), with a weight for each channel or one for all."""
    factor = weight.name if weight.shape == (1,) else reshaped(call, weight, (-1, *(1,) * (len(x.shape) - 2)))
    negative = call.add(Binary("min"), x, call.number(0.0), part="negative")
    below = call.add(Binary("mul"), negative, factor, part="below")
    return call.add(Binary("add"), call.add(Activation("relu"), x, part="above"), below)


def _clamp(call: Call, x: Value, min: Any = None, max: Any = None) -> str:  # noqa: A002 (PyTorch's names)
    """The nearest number between two, each of which may be missing."""
    if any(isinstance(limit, Value) for limit in (min, max)):
        raise NotSupportedError("limits must be numbers")
    if min == 0 and (max is None or max > 0):
        return call.add(Activation("relu") if max is None else Activation("clipped_relu", float(max)), x)
    y = x.name
    for kind, limit in (("max", min), ("min", max)):
        y = y if limit is None else call.add(Binary(kind), y, call.number(limit))
    return y


def _hardtanh(call: Call, x: Value, min_val: float, max_val: float) -> str:
    return _clamp(call, x, min_val, max_val)


RULES: dict[Any, Callable[..., str]] = {
    _aten.clamp.default: _clamp,
    _aten.clamp_max.default: _clamp,
    _aten.clamp_min.default: _clamp,
    _aten.elu.default: _elu,
    _aten.gelu.default: _gelu,
    _aten.hardsigmoid.default: partial(_plain, "hard_sigmoid"),
    _aten.hardswish.default: partial(_plain, "hard_swish"),
    _aten.hardtanh.default: _hardtanh,
    _aten.leaky_relu.default: _leaky_relu,
    _aten.prelu.default: _prelu,
    _aten.relu.default: partial(_plain, "relu"),
    _aten.relu6.default: partial(_clamp, min=0, max=6),
    _aten.selu.default: _selu,
    _aten.sigmoid.default: partial(_plain, "sigmoid"),
    _aten.silu.default: partial(_plain, "silu"),
    _aten.tanh.default: partial(_plain, "tanh"),
}
"""By operator."""
