"""Layers that were converted, beside PyTorch's: a forward call with and without a gradient."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator

import torch
from torch import nn

import dnncore.torch
from benchmarks.host.row import Row, host_us_beside

__all__ = ["rows"]

_MOST_US = {False: 15, True: 35}
"""What a forward call may take the host, without and with a gradient, and less than PyTorch's own."""

_LAYERS: dict[str, tuple[nn.Module, int]] = {
    "3x3 convolution, 14 x 14 (in parts, joined)": (nn.Conv2d(64, 64, 3, padding=1, bias=False), 14),
    "1x1 convolution, 56 x 56": (nn.Conv2d(64, 256, 1, bias=False), 56),
    "3x3 convolution with a bias": (nn.Conv2d(64, 64, 3, padding=1), 14),
    "batch norm": (nn.BatchNorm2d(64), 14),
    "ReLU": (nn.ReLU(), 14),
}
_WITHOUT_A_GOAL: dict[str, tuple[nn.Module, int]] = {
    "max pooling": (nn.MaxPool2d(2), 14),
    "linear": (nn.Sequential(nn.Flatten(), nn.Linear(64 * 14 * 14, 64)), 14),
}
"""Layers, and the extent of the image that each is given."""


def rows(device: str = "cuda") -> Iterator[Row]:
    for (name, (layer, extent)), with_gradient in itertools.product((_LAYERS | _WITHOUT_A_GOAL).items(), (False, True)):
        theirs = copy.deepcopy(layer).to(device).train(with_gradient)
        ours = dnncore.torch.convert(copy.deepcopy(theirs)).model
        x = torch.randn(1, 64, extent, extent, device=device, requires_grad=with_gradient)
        with torch.set_grad_enabled(with_gradient):
            calls = [lambda layer=layer, x=x: layer(x) for layer in (ours, theirs)]
            ours_us, theirs_us = host_us_beside(calls, torch.cuda.synchronize)
        what = f"converted {name}, {'with' if with_gradient else 'without'} gradient"
        has_goal = name in _LAYERS
        most = _MOST_US[with_gradient] if has_goal else None
        yield Row(what, ours_us, "us", theirs_us, most=most, below_torch=has_goal)
