"""What calls cost the host in front of the driver, in processor time and without a GPU: seen before, on small tensors of our own.

An H200 that is not there (`benchmarks.nowhere`) launches and allocates; its driver returns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.host.row import Row, interpreter_us, processor_us
from benchmarks.nowhere import handle_nowhere
from dnncore import ConvolutionDescriptor, TensorDescriptor, functional, ops

__all__ = ["rows"]

_SHAPE = (1, 64, 14, 14)


def rows() -> Iterator[Row]:
    yield Row("interpreter, at calls", interpreter_us(), "us")
    with handle_nowhere() as (handle, _):
        x, y, w = handle.tensor(_SHAPE), handle.tensor(_SHAPE), handle.tensor((64, 64, 3, 3))
        mean, variance, scale, bias = (handle.tensor((64,)) for _ in range(4))
        conv, descriptor = ConvolutionDescriptor.make(padding=1), TensorDescriptor.packed(_SHAPE)
        calls: dict[str, Callable[[], Any]] = {
            "ops.convolution_forward": lambda: ops.convolution_forward(handle, 1.0, x, w, conv, 0.0, y),
            "Handle.new": lambda: handle.new(descriptor),
            "functional.conv2d": lambda: functional.conv2d(x, w, padding=1),
            "functional.conv2d with a bias": lambda: functional.conv2d(x, w, bias, padding=1),
            "functional.relu": lambda: functional.relu(x),
            "functional.add": lambda: functional.add(x, y),
            "functional.max_pool2d": lambda: functional.max_pool2d(x, 2),
            "functional.softmax": lambda: functional.softmax(x, 1),
            "functional.layer_norm": lambda: functional.layer_norm(x, (14, 14)),
            "functional.batch_norm in training": lambda: functional.batch_norm(x, mean, variance, scale, bias, True),
        }
        for name, call in calls.items():
            call()
            yield Row(f"in front of the driver: {name}", processor_us(call), "us")
