"""Batch, layer, group and local response normalisation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dnncore.descriptors import LRNDescriptor, LRNMode
from dnncore.torch.functions import normalization
from dnncore.torch.functions.batch_norm import LINK, batch_norm, batch_norm_in_training
from dnncore.torch.functions.batch_norm_relu import batch_norm_relu
from dnncore.torch.functions.draft import RELU
from dnncore.torch.modules.layer import Layer, Link, Linked, TakesRelu, ours, remembered, weight_and_bias

__all__ = ["MODULES"]


_ONE = torch.ones((), dtype=torch.int64, device="cpu")
"""On the CPU, as PyTorch takes numbers to other devices: of a number it would make such a tensor at each call."""


_FLOAT32, _FLOAT64 = torch.float32, torch.float64


class _BatchNorm(TakesRelu, Linked):
    """Batch normalisation, and what may follow it."""

    in_training_alone = True
    takes_residual = True

    @staticmethod
    def why_not(module: Any) -> str | None:
        """A momentum that depends on the number of batches."""
        return "momentum None, a cumulative average" if module.momentum is None else None

    def compute(self: Any, x: Tensor) -> Tensor:
        """As PyTorch's."""
        (mean, variance), training = self._prepare(x)
        weight, bias = weight_and_bias(self)
        if training:
            return batch_norm_in_training(x, mean, variance, weight, bias, (self.momentum, self.eps, None))
        return batch_norm(x, mean, variance, weight, bias, eps=self.eps)

    def forward_relu(self: Any, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """relu(forward(x) + residual): in one operation where the statistics are the batch's and the residual is like x."""
        (mean, variance), training = self._prepare(x)
        is_like_x = residual is None or (residual.shape == x.shape and residual.dtype is x.dtype)
        if training and is_like_x:
            return batch_norm_relu(x, mean, variance, *weight_and_bias(self), self.momentum, self.eps, residual)
        y = batch_norm(x, mean, variance, *weight_and_bias(self), training, self.momentum, self.eps)
        return (y if residual is None else y + residual).relu()

    def link(self: Any, relu: bool, dtype: torch.dtype) -> Link | None:
        """As `compute` or `forward_relu` in training, where nothing is missing, nor in a dtype that is converted before."""
        if not (self.training and self.track_running_stats):
            return None
        buffers = self._buffers
        mean, variance = buffers["running_mean"], buffers["running_var"]
        weight, bias = weight_and_bias(self)
        compute = _FLOAT64 if dtype is _FLOAT64 else _FLOAT32
        for tensor in (weight, bias, mean, variance):
            if tensor is None or (tensor.dtype is not compute and tensor.dtype is not dtype):
                return None
        settings = LINK, self.momentum, self.eps, RELU if relu else None
        return settings, (weight, bias), (mean, variance), buffers["num_batches_tracked"]

    def _prepare(self: Any, x: Tensor) -> tuple[tuple[Tensor | None, Tensor | None], bool]:
        """Check and count a batch: the running statistics that it goes by or into, and whether those of the batch are taken."""
        self._check_input_dim(x)
        buffers, training = self._buffers, self.training
        running = buffers["running_mean"], buffers["running_var"]
        if training and self.track_running_stats:
            if buffers["num_batches_tracked"] is not None:
                buffers["num_batches_tracked"].add_(_ONE)
        elif training:
            running = None, None
        else:
            training = running[0] is None and running[1] is None
        return running, training


class _LayerNorm(Layer):
    def compute(self: Any, x: Tensor) -> Tensor:
        return normalization.layer_norm(x, self.normalized_shape, *weight_and_bias(self), self.eps)


class _GroupNorm(Layer):
    def compute(self: Any, x: Tensor) -> Tensor:
        return normalization.group_norm(x, self.num_groups, *weight_and_bias(self), self.eps)


_lrn = remembered(LRNDescriptor)


class _LocalResponseNorm(Layer):
    @staticmethod
    def why_not(module: Any) -> str | None:
        if module.size % 2 == 0:
            return f"an even size, {module.size}, whose window is PyTorch's own"
        return None if module.k >= 1e-5 and module.beta >= 0.01 else f"k {module.k} or beta {module.beta} is too small"

    def compute(self: Any, x: Tensor) -> Tensor:
        settings = _lrn(LRNMode.ACROSS_CHANNELS, self.size, self.alpha, self.beta, self.k)
        return normalization.local_response_norm(x, settings)


_BEHAVIOURS: dict[type[nn.Module], type[Layer]] = {
    nn.BatchNorm1d: _BatchNorm,
    nn.BatchNorm2d: _BatchNorm,
    nn.BatchNorm3d: _BatchNorm,
    nn.LayerNorm: _LayerNorm,
    nn.GroupNorm: _GroupNorm,
    nn.LocalResponseNorm: _LocalResponseNorm,
}
_LINKED: dict[type[nn.Module], dict[str, int]] = {
    nn.BatchNorm2d: {"linked_ndim": 4},
    nn.BatchNorm3d: {"linked_ndim": 5},
}
MODULES = {theirs: ours(theirs, behaviour, **_LINKED.get(theirs, {})) for theirs, behaviour in _BEHAVIOURS.items()}
