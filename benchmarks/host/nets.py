"""Whole nets after `convert`, beside PyTorch's: inference at batch 1, training steps at batch 64, host time and kernel time."""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

import dnncore.torch
from benchmarks.host.row import Row

__all__ = ["rows"]


def rows() -> Iterator[Row]:
    from torchvision import models

    for dtype in (torch.float32, torch.float16):
        net = models.resnet50().cuda().eval().to(dtype)
        x = torch.randn(1, 3, 224, 224, device="cuda", dtype=dtype)
        with torch.no_grad():
            ours_net = dnncore.torch.convert(copy.deepcopy(net)).model
            ours, theirs = _ms([lambda: ours_net(x), lambda: net(x)], 20)  # noqa: B023 (called at once)
            yield Row(f"ResNet-50, batch 1, {_name(dtype)}", ours, "ms", theirs, most=theirs)
            yield Row(f"ResNet-50, batch 1, {_name(dtype)}: kernels", *_kernels(lambda: ours_net(x), lambda: net(x)))  # noqa: B023
    for name, make in (("ResNet-50", models.resnet50), ("AlexNet", models.alexnet)):
        for autocast in (False, True):
            torch.manual_seed(0)
            theirs_step = _step(make().cuda(), autocast)
            ours_step = _step(dnncore.torch.convert(make().cuda()).model, autocast)
            how = "autocast fp16" if autocast else "fp32"
            what = f"{name} training step, batch 64, {how}"
            ours, theirs = _ms([ours_step, theirs_step], 5)
            yield Row(what, ours, "ms", theirs)
            yield Row(f"{what}: host", _enqueue_ms(ours_step), "ms", _enqueue_ms(theirs_step))
            yield Row(f"{what}: kernels", *_kernels(ours_step, theirs_step))
            torch.cuda.empty_cache()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _step(net: nn.Module, autocast: bool) -> Callable[[], None]:
    x = torch.randn(64, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (64,), device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler("cuda", enabled=autocast)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16) if autocast else contextlib.nullcontext():
            loss = loss_of(net(x), labels)
        scaler.scale(loss).backward()
        # Unscaling asks the device for an overflow and waits: it would hide what the host takes.
        optimizer.step()

    return step


def _ms(contestants: Sequence[Callable[[], Any]], calls: int) -> list[float]:
    """Median milliseconds of the wall for one of so many calls, of several in turn."""

    def sample(call: Callable[[], Any]) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / calls * 1e3

    for call in contestants:
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    rounds = [[sample(call) for call in contestants] for _ in range(7)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _enqueue_ms(call: Callable[[], Any]) -> float:
    """Median milliseconds in which a call returns that starts on an idle device."""

    def sample() -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        return (time.perf_counter() - started) * 1e3

    return statistics.median(sample() for _ in range(7))


def _kernels(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, str, float]:
    """Milliseconds that the kernels of one call take together."""

    def total(call: Callable[[], Any]) -> float:
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(3):
                call()
            torch.cuda.synchronize()
        return float(sum(event.self_device_time_total for event in profile.key_averages())) / 3e3

    return total(ours), "ms", total(theirs)
