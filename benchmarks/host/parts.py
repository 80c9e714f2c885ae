"""Where the host's time for a converted layer goes: the parts of a call without a gradient, each by itself, beside the whole call.

What a call of the benchmark's own takes is taken off each. The rest are frames and the passing on of arguments between the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

import dnncore.torch
from benchmarks.host.row import Row, host_us_beside
from dnncore import ConvolutionDescriptor, Handle, TensorDescriptor
from dnncore.problems import ConvolutionProblem, Direction
from dnncore.program import WiredStep
from dnncore.torch.functions.formats import maybe_autocast, wants_gradient
from dnncore.torch.modules.layer import is_watched

__all__ = ["parts_and_whole", "rows"]


def rows() -> Iterator[Row]:
    layer: Any = dnncore.torch.convert(nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda().eval()).model
    x, w = torch.randn(1, 64, 14, 14, device="cuda"), layer.weight.detach()
    y = torch.empty_like(x)
    of_x, of_w = (TensorDescriptor.packed(tuple(t.shape)) for t in (x, w))
    problem = ConvolutionProblem(Direction.FORWARD, of_x, of_w, of_x, ConvolutionDescriptor.make(padding=1))
    guards: Any = torch._C._dynamo.guards
    fits = guards.TensorGuards(x, w, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    form = tuple(y.shape), y.stride(), y.dtype
    raw_stream = torch._C._cuda_getCurrentRawStream
    with Handle("cuda:0", stream=raw_stream(0)) as handle, torch.no_grad():
        enqueue = handle.wire([WiredStep(handle.plan(problem), 1.0, 0.0, ((0, 0), (1, 0), (2, 0)))])
        addresses = [t.data_ptr() for t in (x, w, y)]
        parts: dict[str, Callable[[], Any]] = {
            "whether hooks or tracers watch the call": lambda: is_watched(layer),
            "settings and parameters of the layer": lambda: layer.link(False, torch.float32),
            "whether there is autocast, or a gradient wanted": lambda: maybe_autocast() or wants_gradient(x, w, None),
            "PyTorch's stream": lambda: raw_stream(x.get_device()),
            "comparison with the call before": lambda: fits(x, w),
            "memory of the result": lambda: guards._empty_strided_cuda(*form),
            "three addresses": lambda: [*map(torch.Tensor.data_ptr, (x, w, y))],
            "launches": lambda: enqueue(addresses),
        }
        yield from parts_and_whole("converted 3x3 convolution", parts, lambda: layer(x), torch.cuda.synchronize)


def parts_and_whole(
    what: str, parts: Mapping[str, Callable[[], Any]], whole: Callable[[], Any], synchronize: Callable[[], Any]
) -> Iterator[Row]:
    """A line for each part, then for all of them together, the whole call and what the parts leave of it, all timed in turns."""
    nothing, whole_us, *parts_us = host_us_beside([lambda: None, whole, *parts.values()], synchronize)
    own_us = [part_us - nothing for part_us in parts_us]
    for name, part_us in zip(parts, own_us, strict=True):
        yield Row(f"part: {name}", part_us, "us")
    yield Row("parts together", sum(own_us), "us")
    yield Row(f"parts and what is between them: {what}", whole_us - nothing, "us")
    yield Row("between the parts", whole_us - nothing - sum(own_us), "us")
