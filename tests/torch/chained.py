"""Modules whose layers chains are made of, with and without PyTorch's own beside them, and how many layers were called as one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import dnncore.torch as dt
from dnncore.torch.functions.cast import CAST_LINK
from dnncore.torch.functions.chain import Chain

Tensor = Any
f = nn.functional
FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}


class Bottleneck(nn.Module):
    """As torchvision's ResNet has it; with or without a projection."""

    def __init__(self, channels: int = 8, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, stride, 1, bias=False), nn.BatchNorm2d(4)
        self.conv3, self.bn3 = nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        projects = channels != 8 or stride != 1
        self.project = (
            nn.Sequential(nn.Conv2d(channels, 8, 1, stride, bias=False), nn.BatchNorm2d(8)) if projects else None
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.project is None else self.project(x)
        return self.relu(out)


class Pooled(nn.Module):
    """As AlexNet has it, and a stem's pooling behind a batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(8, 6, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(6, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class ReadAgain(nn.Module):
    """Whose first result is read by three layers, and whose last is the sum of chains."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu = nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
        self.conv1, self.conv2, self.bn1, self.bn2 = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1), *(nn.BatchNorm2d(8),) * 2
        self.bn2 = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.first(x))
        z = self.relu(self.bn1(self.conv1(y)) + y)
        return self.relu(self.bn2(self.conv2(y)) + z)


class Classifier(nn.Module):
    """As AlexNet and VGG have it, of rows in the last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Dropout(0.2),
                nn.Linear(7, 9),
                nn.ReLU(),
                nn.Dropout(0.7),
                nn.Linear(9, 5),
                nn.ReLU(),
                nn.Linear(5, 3),
            ),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Inverted(nn.Module):
    """As MobileNet and EfficientNet have it: rows in rows, and activations that are no ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Sequential(nn.Conv2d(8, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU6()),
            nn.Sequential(nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.BatchNorm2d(12), nn.SiLU(inplace=True)),
            *(nn.Conv2d(12, 8, 1, bias=False), nn.GELU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Headed(nn.Module):
    """As AlexNet and VGG are at the size that they were made for: as many windows are averaged as there are places."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(8, 6, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.avgpool = nn.AdaptiveAvgPool2d((4, 3))
        self.classifier = nn.Sequential(nn.Linear(72, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class Averaged(nn.Module):
    """Windows of several places, and the other way to call `flatten`."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(8, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
            *(nn.AvgPool2d(3, 2, 1), nn.Conv2d(6, 4, (2, 1))),
        )
        self.avgpool, self.last = nn.AdaptiveAvgPool2d((2, None)), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x)).flatten(1)
        return self.last(x)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "identity": Bottleneck,
    "projection": lambda: Bottleneck(8, 2),
    "pooled": Pooled,
    "read-again": ReadAgain,
    "inverted": Inverted,
    "headed": Headed,
    "averaged": Averaged,
}


def pair(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    theirs = make().to(dtype)
    for parameter in theirs.parameters():
        nn.init.uniform_(parameter, 0.2, 0.8)
        parameter.data *= torch.randint(0, 2, parameter.shape) * 2 - 1
    return theirs, dt.convert(copy.deepcopy(theirs), fuse=True).model


def example(dtype: torch.dtype = torch.float64, layout: str = "NCHW") -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 8, 9, 7, generator=generator).to(dtype, memory_format=FORMATS[layout])
    return x.requires_grad_()


def gradients(net: nn.Module, x: Tensor) -> list[Tensor]:
    y = net(x)
    of = [x, *net.parameters()]
    wanted = [tensor for tensor in of if tensor.requires_grad]
    return [y, *torch.autograd.grad(y, wanted, torch.sin(torch.arange(y.numel(), dtype=y.dtype)).view_as(y))]


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many layers each chain has that is called as one, casts not counted."""
    counts: list[int] = []

    class Counted:
        @staticmethod
        def apply(call: Any, *tensors: Tensor) -> Tensor:
            y = Chain.apply(call, *tensors)
            counts.append(sum(kind is not CAST_LINK for kind, *_ in call[0][-1]))
            return y

    with monkeypatch.context() as patch:
        patch.setattr("dnncore.torch.chains.Chain", Counted)
        yield counts


def calls(net: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    with counted(monkeypatch) as counts:
        net(x)
    return counts
