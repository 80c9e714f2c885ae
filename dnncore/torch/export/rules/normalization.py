"""Batch normalisation with running statistics, and layer, RMS, group and instance normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from dnncore.errors import NotSupportedError
from dnncore.nn.graph import Value
from dnncore.nn.operators import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from dnncore.torch.export.call import Call
from dnncore.torch.export.rules.shapes import fixed

__all__ = ["RULES"]

_aten = torch.ops.aten


def _batch_norm(
    call: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[str | None, ...]:
    channels = fixed(x.shape[1], "the number of channels")
    scale = weight or call.constant("scale", np.ones(channels, np.float32))
    offset = bias or call.constant("bias", np.zeros(channels, np.float32))
    return call.add(BatchNorm(eps, momentum), x, scale, offset, running_mean, running_var), None, None


def _layer_norm(
    call: Call,
    x: Value,
    normalized_shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
    cudnn_enable: bool,
) -> str:
    return call.add(LayerNorm(len(x.shape) - len(normalized_shape), eps), x, weight, bias)


def _rms_norm(call: Call, x: Value, normalized_shape: Sequence[int], weight: Value | None, eps: float | None) -> str:
    epsilon = float(np.finfo(x.dtype.numpy).eps) if eps is None else eps
    return call.add(RMSNorm(len(x.shape) - len(normalized_shape), epsilon), x, weight)


def _group_norm(
    call: Call, x: Value, num_groups: int, weight: Value | None, bias: Value | None, eps: float, cudnn_enabled: bool
) -> str:
    return call.add(GroupNorm(num_groups, eps), x, weight, bias)


def _instance_norm(
    call: Call,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> str:
    """Group normalisation with a channel in each group; batch normalisation where there are running statistics."""
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise NotSupportedError("it has no running statistics")
        normalised = _batch_norm(call, x, weight, bias, running_mean, running_var, momentum, eps)[0]
        assert normalised is not None
        return normalised
    return call.add(GroupNorm(fixed(x.shape[1], "the number of channels"), eps), x, weight, bias)


RULES: dict[Any, Callable[..., str | tuple[str | None, ...]]] = {
    _aten._native_batch_norm_legit_no_training.default: _batch_norm,
    _aten.group_norm.default: _group_norm,
    _aten.instance_norm.default: _instance_norm,
    _aten.layer_norm.default: _layer_norm,
    _aten.rms_norm.default: _rms_norm,
}
"""By operator."""
