"""What nets end with: fully connected layers, softmax and the loss of classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dnncore.descriptors import CrossEntropyDescriptor
from dnncore.torch.functions import softmax
from dnncore.torch.functions.cross_entropy import as_classes, counted, cross_entropy
from dnncore.torch.functions.formats import statistics_dtype
from dnncore.torch.functions.linear import LINK, linear
from dnncore.torch.modules.layer import ANY_NDIM, Layer, Link, Linked, TakesRelu, ours, remembered, weight_and_bias

__all__ = ["MODULES"]


class _Linear(TakesRelu, Linked):
    casts = True
    linked_ndim = ANY_NDIM

    def compute(self: Any, x: Tensor) -> Tensor:
        """As PyTorch's."""
        return linear(x, *weight_and_bias(self))

    def forward_relu(self: Any, x: Tensor) -> Tensor:
        """relu(forward(x)) in one operation."""
        return linear(x, *weight_and_bias(self), relu=True)

    def link(self: Any, relu: bool, dtype: torch.dtype) -> Link:  # noqa: ARG002 (of any)
        """As `compute` or `forward_relu`."""
        weight, bias = weight_and_bias(self)
        return (LINK, relu), (weight,) if bias is None else (weight, bias), (), None


class _Softmax(Layer):
    @staticmethod
    def why_not(module: Any) -> str | None:
        return "dim is not given" if module.dim is None else None

    def compute(self: Any, x: Tensor) -> Tensor:
        return softmax.softmax(x, self.dim)


class _LogSoftmax(_Softmax):
    def compute(self: Any, x: Tensor) -> Tensor:
        return softmax.log_softmax(x, self.dim)


_settings = remembered(CrossEntropyDescriptor)


def _check_classes(x: Tensor, target: Tensor, ignore_index: int) -> None:
    """Refuse labels that are no classes, as PyTorch does; on a GPU that would wait for it, and their loss is 0.

    Raises:
        IndexError: a label that is not ignored is none of the classes.
    """
    wrong = target[~counted(target, x.shape[0 if x.dim() == 1 else 1], None) & (target != ignore_index)]
    if wrong.numel():
        raise IndexError(f"Target {wrong[0]} is out of bounds.")


class _CrossEntropyLoss(Layer):
    def compute(self: Any, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002 (PyTorch's name)
        soft, target = target.is_floating_point(), as_classes(target)
        if not soft and target.device.type == "cpu":
            _check_classes(input, target, self.ignore_index)
        settings = _settings(self.label_smoothing, None if soft else self.ignore_index)
        loss = cross_entropy(input, target, settings, self.weight)
        if self.reduction == "none":
            return loss
        if self.reduction == "sum":
            return loss.sum()
        total = loss.sum(dtype=statistics_dtype(loss))  # of many rows it can be beyond float16
        if soft:
            return (total / loss.numel()).to(loss.dtype)
        if self.weight is not None:
            mask = counted(target, self.weight.shape[0], self.ignore_index)
            weight = self.weight[target.masked_fill(~mask, 0)].masked_fill(~mask, 0).sum(dtype=total.dtype)
            return (total / weight.masked_fill(weight == 0, torch.nan)).to(loss.dtype)
        rows = (target != self.ignore_index).sum()
        # As PyTorch's: without a label that counts the loss is not a number, but its gradient is 0.
        return (total / rows.clamp(min=1)).masked_fill(rows == 0, torch.nan).to(loss.dtype)


_BEHAVIOURS: dict[type[nn.Module], type[Layer]] = {
    nn.Linear: _Linear,
    nn.Softmax: _Softmax,
    nn.LogSoftmax: _LogSoftmax,
    nn.CrossEntropyLoss: _CrossEntropyLoss,
}
MODULES = {theirs: ours(theirs, behaviour) for theirs, behaviour in _BEHAVIOURS.items()}
