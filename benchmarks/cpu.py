"""Whole nets on the CPU backend, converted by `dnncore.torch`, beside PyTorch's CPU build in the same run and with as many threads.

The two take turns, so that what else the machine does falls on both; `cpu_s` is the processor time of all threads, which that
hardly changes. Both take as many threads as OMP_NUM_THREADS says, else as there are cores; of ours, only products of matrices use
more than one. `scratch_mb` is the most memory that NumPy held at a time in a call, beside operands and results.

    OMP_NUM_THREADS=1 python -m benchmarks.cpu --out benchmarks/results
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dnncore.torch
from benchmarks.document import Document

_ROUNDS = 5


def _convolution(c: int, k: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(c, k, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(k)]


class Residual(nn.Module):  # type: ignore[misc]  # PyTorch is not looked into
    """activation(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut, self.activation = body, shortcut, activation

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.activation(self.body(x) + self.shortcut(x))
        return found


def resnet50() -> nn.Module:
    """arXiv 1512.03385, table 1; strides in the 3 x 3 convolutions, as in torchvision."""
    layers: list[nn.Module] = [*_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    c = 64
    for width, blocks, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        k = 4 * width
        for stride in (first_stride, *[1] * (blocks - 1)):
            body = [*_convolution(c, width, 1), nn.ReLU(), *_convolution(width, width, 3, stride), nn.ReLU()]
            shortcut = nn.Identity() if (c, stride) == (k, 1) else nn.Sequential(*_convolution(c, k, 1, stride))
            layers.append(Residual(nn.Sequential(*body, *_convolution(width, k, 1)), shortcut, nn.ReLU()))
            c = k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 1000))


def mobilenet_v2() -> nn.Module:
    """arXiv 1801.04381, table 2."""
    layers: list[nn.Module] = [*_convolution(3, 32, 3, 2), nn.ReLU6()]
    c = 32
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, k, blocks, first_stride in rows:
        for stride in (first_stride, *[1] * (blocks - 1)):
            width = expansion * c
            expanded = [*_convolution(c, width, 1), nn.ReLU6()] if expansion > 1 else []
            depthwise = [*_convolution(width, width, 3, stride, width), nn.ReLU6()]
            body = nn.Sequential(*expanded, *depthwise, *_convolution(width, k, 1))
            layers.append(Residual(body, nn.Identity(), nn.Identity()) if (c, stride) == (k, 1) else body)
            c = k
    layers += [*_convolution(c, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1280, 1000))


def alexnet() -> nn.Module:
    """arXiv 1404.5997, the one of one column, with the response normalisation of 2012."""
    response = [nn.ReLU(), nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2)]
    layers = [nn.Conv2d(3, 64, 11, 4, 2), *response, nn.Conv2d(64, 192, 5, padding=2), *response]
    for c, k in ((192, 384), (384, 256), (256, 256)):
        layers += [nn.Conv2d(c, k, 3, padding=1), nn.ReLU()]
    layers += [nn.MaxPool2d(3, 2), nn.Flatten()]
    for c, k in ((256 * 6 * 6, 4096), (4096, 4096)):
        layers += [nn.Dropout(), nn.Linear(c, k), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


def inference(net: nn.Module, images: Tensor) -> Callable[[], Tensor]:
    net.eval()

    def call() -> Tensor:
        with torch.no_grad():
            found: Tensor = net(images)
        return found

    return call


def training_step(net: nn.Module, images: Tensor) -> Callable[[], Tensor]:
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    labels = torch.arange(len(images)) % 1000

    def call() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return call


MEASURED: tuple[tuple[str, Callable[[], nn.Module], int, Callable[[nn.Module, Tensor], Callable[[], Tensor]]], ...] = (
    ("ResNet-50", resnet50, 1, inference),
    ("ResNet-50", resnet50, 8, inference),
    ("ResNet-50, training step", resnet50, 8, training_step),
    ("MobileNetV2", mobilenet_v2, 1, inference),
    ("MobileNetV2", mobilenet_v2, 8, inference),
    ("AlexNet", alexnet, 1, inference),
    ("AlexNet", alexnet, 8, inference),
)


def _seconds(call: Callable[[], Tensor]) -> tuple[float, float]:
    """By the wall, and of all threads."""
    started, busy = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - started, time.process_time() - busy


def _scratch_mb(call: Callable[[], Tensor]) -> float:
    """PyTorch's tensors, the results among them, are not NumPy's."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def measure(
    name: str,
    make: Callable[[], nn.Module],
    batch: int,
    kind: Callable[[nn.Module, Tensor], Callable[[], Tensor]],
) -> dict[str, Any]:
    torch.manual_seed(0)
    net, images = make(), torch.randn(batch, 3, 224, 224)
    for module in net.modules():
        if isinstance(
            module, nn.Conv2d
        ):  # with PyTorch's own, what an untrained deep net says depends on its last bias alone
            nn.init.kaiming_normal_(module.weight)
    converted = dnncore.torch.convert(copy.deepcopy(net))
    assert not converted.left, converted
    calls = ours, theirs = kind(converted.model, images), kind(net, images)
    actual, expected = ours(), theirs()  # the first call makes plans
    error = float((actual - expected).norm() / expected.norm())
    rounds = [[_seconds(call) for call in calls] for _ in range(_ROUNDS)]
    (our_s, our_cpu_s), (their_s, their_cpu_s) = (
        (statistics.median(times) for times in zip(*side, strict=True)) for side in zip(*rounds, strict=True)
    )
    return {
        "name": name,
        "batch": batch,
        "threads": torch.get_num_threads(),
        "s": round(our_s, 4),
        "torch_s": round(their_s, 4),
        "images_per_s": round(batch / our_s, 2),
        "torch_images_per_s": round(batch / their_s, 2),
        "of_torch": round(their_s / our_s, 2),
        "cpu_s": round(our_cpu_s, 4),
        "torch_cpu_s": round(their_cpu_s, 4),
        "cpu_of_torch": round(their_cpu_s / our_cpu_s, 2),
        "scratch_mb": round(_scratch_mb(ours), 1),
        "relative_difference": float(f"{error:.1e}"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--only", default="", help="only nets whose name contains this")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    document = Document(options.out / "cpu.json", ["name", "batch", "threads"], dtype="float32")
    for row in MEASURED:
        if options.only in row[0]:
            found = measure(*row)
            document.add([found])
            print(" ".join(f"{key} {value}" for key, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
