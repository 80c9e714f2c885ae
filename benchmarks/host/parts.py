"""Where the host's time for a converted layer goes: its parts, each by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.host.row import Row, host_us
from dnncore import ConvolutionDescriptor, Handle, TensorDescriptor
from dnncore.cuda.runtime import driver
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["rows"]


def rows() -> Iterator[Row]:
    x = torch.randn(1, 64, 14, 14, device="cuda")
    w = torch.randn(64, 64, 3, 3, device="cuda")
    y = torch.empty_like(x)
    shape, strides = tuple(y.shape), y.stride()
    of_x, of_w = (TensorDescriptor.packed(tuple(t.shape)) for t in (x, w))
    problem = ConvolutionProblem(Direction.FORWARD, of_x, of_w, of_x, ConvolutionDescriptor.make(padding=1))
    found = {(x.dtype, x.shape, x.stride(), w.dtype, w.shape, w.stride()): 1}
    stream = torch.cuda.current_stream().cuda_stream
    with Handle("cuda:0", stream=stream) as handle:
        plan = handle.plan(problem)
        addresses = tuple(t.data_ptr() for t in (x, w, y))
        module = torch.nn.Identity()
        parts: dict[str, Callable[[], Any]] = {
            "nn.Module.__call__": lambda: module(x),
            "key of two tensors and look-up": lambda: found[
                (x.dtype, x.shape, x.stride(), w.dtype, w.shape, w.stride())
            ],
            "torch.empty_strided": lambda: torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device),
            "three data_ptr": lambda: (x.data_ptr(), w.data_ptr(), y.data_ptr()),
            "current context": driver.current_context,
            "Handle.enqueue, the launch with it": lambda: handle.enqueue(plan, 1.0, 0.0, addresses),
        }
        for name, part in parts.items():
            yield Row(f"part: {name}", host_us(part, torch.cuda.synchronize), "us")
