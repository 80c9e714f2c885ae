"""Layers that were converted, beside PyTorch's: a forward call with and without a gradient."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn

import dnncore.torch
from benchmarks.host.row import Row, host_us

__all__ = ["rows"]

_LAYERS: dict[str, nn.Module] = {
    "convolution": nn.Conv2d(64, 64, 3, padding=1, bias=False),
    "convolution with a bias": nn.Conv2d(64, 64, 3, padding=1),
    "batch norm": nn.BatchNorm2d(64),
    "ReLU": nn.ReLU(),
    "max pooling": nn.MaxPool2d(2),
    "linear": nn.Sequential(nn.Flatten(), nn.Linear(64 * 14 * 14, 64)),
}


def rows() -> Iterator[Row]:
    for name, layer in _LAYERS.items():
        for with_gradient in (False, True):
            theirs = copy.deepcopy(layer).cuda().train(with_gradient)
            ours = dnncore.torch.convert(copy.deepcopy(theirs)).model
            x = torch.randn(1, 64, 14, 14, device="cuda", requires_grad=with_gradient)
            with torch.set_grad_enabled(with_gradient):
                found = [host_us(lambda: layer(x), torch.cuda.synchronize) for layer in (ours, theirs)]  # noqa: B023
            how = "with" if with_gradient else "without"
            yield Row(f"converted {name}, {how} gradient", found[0], "us", found[1], most=35 if with_gradient else 15)
