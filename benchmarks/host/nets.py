"""Whole nets after `convert`, beside PyTorch's: inference at batch 1, training steps at batch 64, host time and kernel time.

Kernels are timed by PyTorch's profiler, after which the driver's calls take longer for the rest of the process, by a third on one
H200. So everything is timed first, and all kernels after that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

import dnncore.torch
from benchmarks.host.row import Row
from benchmarks.steps import captured_step, enqueue_ms, kernel_ms, training_step, wall_ms, warm_up

__all__ = ["Contest", "rows"]

Calls = tuple[Callable[[], Any], Callable[[], Any]]
"""Ours and PyTorch's."""


@dataclass(frozen=True)
class Contest:
    """The same work by our layers and by PyTorch's. Immutable.

    Args:
        name: Of its rows.
        make: Makes both anew.
        is_step: Whether it is a training step, whose host is timed apart; else inference, whose goal is PyTorch's time.
        has_goal: Whether a step is to keep the host for less than its kernels take.
        calls: In a round of those timed by the wall.
    """

    name: str
    make: Callable[[], Calls]
    is_step: bool = True
    has_goal: bool = True
    calls: int = 5

    def timed(self) -> tuple[Row, list[float]]:
        """By the wall, and a step's milliseconds of the host: ours, PyTorch's."""
        calls = self.make()
        ours, theirs = wall_ms(calls, self.calls)
        host = [enqueue_ms(call) for call in calls] if self.is_step else []
        return Row(self.name, ours, "ms", theirs, most=None if self.is_step else theirs), host

    def kernel_rows(self, host: list[float]) -> Iterator[Row]:
        """What a step keeps the host, as it was timed, and the kernels, which are to take longer than that."""
        calls = self.make()
        for call in calls:
            warm_up(call)
        ours, theirs = map(kernel_ms, calls)
        if self.is_step:
            yield Row(f"{self.name}: host", host[0], "ms", host[1], most=ours if self.has_goal else None)
        yield Row(f"{self.name}: kernels", ours, "ms", theirs)


def rows(contests: Iterable[Contest] | None = None) -> Iterator[Row]:
    contests = list(_contests() if contests is None else contests)
    hosts = []
    for contest in contests:
        row, host = contest.timed()
        yield row
        hosts.append(host)
        torch.cuda.empty_cache()
    for contest, host in zip(contests, hosts, strict=True):
        yield from contest.kernel_rows(host)
        torch.cuda.empty_cache()


def _contests() -> Iterator[Contest]:
    from torchvision import models

    for dtype in (torch.float32, torch.float16):
        what = f"ResNet-50, batch 1, {str(dtype).removeprefix('torch.')}"
        yield Contest(what, partial(_inference, models.resnet50, dtype), is_step=False, calls=20)
    for name, make in (("ResNet-50", models.resnet50), ("AlexNet", models.alexnet)):
        for autocast in (False, True):
            what = f"{name} training step, batch 64, {'autocast fp16' if autocast else 'fp32'}"
            yield Contest(what, partial(_steps, make, autocast, None))
            apart = f"{what}, layer by layer"
            yield Contest(apart, partial(_steps, make, autocast, False), has_goal=False)
        what = f"{name} training step, batch 64, autocast fp16, forward and backward captured"
        yield Contest(what, partial(_captured_steps, make))


def _inference(make: Callable[[], nn.Module], dtype: torch.dtype) -> Calls:
    theirs = make().cuda().eval().to(dtype)
    ours = dnncore.torch.convert(copy.deepcopy(theirs)).model
    x = torch.randn(1, 3, 224, 224, device="cuda", dtype=dtype)

    def call(net: nn.Module) -> torch.Tensor:
        with torch.no_grad():
            y: torch.Tensor = net(x)
        return y

    return partial(call, ours), partial(call, theirs)


def _steps(make: Callable[[], nn.Module], autocast: bool, fuse: bool | None) -> Calls:
    torch.manual_seed(0)
    theirs = training_step(make().cuda(), 64, autocast)
    return training_step(dnncore.torch.convert(make().cuda(), fuse=fuse).model, 64, autocast), theirs


def _captured_steps(make: Callable[[], nn.Module]) -> Calls:
    theirs = captured_step(make().cuda(), 64)
    return captured_step(dnncore.torch.convert(make().cuda()).model, 64), theirs
