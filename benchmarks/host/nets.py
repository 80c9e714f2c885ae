"""Whole nets after `convert`, beside PyTorch's: inference at batch 1, training steps at batch 64, host time and kernel time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

import dnncore.torch
from benchmarks.host.row import Row
from benchmarks.steps import captured_step, enqueue_ms, kernel_ms, training_step, wall_ms

__all__ = ["rows", "step_rows"]


def rows() -> Iterator[Row]:
    from torchvision import models

    for dtype in (torch.float32, torch.float16):
        net = models.resnet50().cuda().eval().to(dtype)
        x = torch.randn(1, 3, 224, 224, device="cuda", dtype=dtype)
        with torch.no_grad():
            ours_net = dnncore.torch.convert(copy.deepcopy(net)).model
            calls = [lambda: ours_net(x), lambda: net(x)]  # noqa: B023 (called at once)
            ours, theirs = wall_ms(calls, 20)
            yield Row(f"ResNet-50, batch 1, {_name(dtype)}", ours, "ms", theirs, most=theirs)
            yield Row(f"ResNet-50, batch 1, {_name(dtype)}: kernels", kernel_ms(calls[0]), "ms", kernel_ms(calls[1]))
    for name, make in (("ResNet-50", models.resnet50), ("AlexNet", models.alexnet)):
        for autocast in (False, True):
            torch.manual_seed(0)
            theirs_step = training_step(make().cuda(), 64, autocast)
            how = "autocast fp16" if autocast else "fp32"
            what = f"{name} training step, batch 64, {how}"
            yield from step_rows(
                what, training_step(dnncore.torch.convert(make().cuda()).model, 64, autocast), theirs_step
            )
            apart_step = training_step(dnncore.torch.convert(make().cuda(), fuse=False).model, 64, autocast)
            yield from step_rows(f"{what}, layer by layer", apart_step, theirs_step, has_goal=False)
            torch.cuda.empty_cache()
        what = f"{name} training step, batch 64, autocast fp16, forward and backward captured"
        theirs_step = captured_step(make().cuda(), 64)
        ours_step = captured_step(dnncore.torch.convert(make().cuda()).model, 64)
        yield from step_rows(what, ours_step, theirs_step)
        torch.cuda.empty_cache()


def step_rows(
    what: str, ours_step: Callable[[], Any], theirs_step: Callable[[], Any], *, has_goal: bool = True
) -> Iterator[Row]:
    """A step by the clock, what it keeps the host, and its kernels, which are to take longer than the host."""
    ours, theirs = wall_ms([ours_step, theirs_step])
    kernels = kernel_ms(ours_step)
    yield Row(what, ours, "ms", theirs)
    yield Row(f"{what}: host", enqueue_ms(ours_step), "ms", enqueue_ms(theirs_step), most=kernels if has_goal else None)
    yield Row(f"{what}: kernels", kernels, "ms", kernel_ms(theirs_step))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
