"""One pass over tensors: activations, blending, layouts, sums, dropout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.memory_bound.measurement import LARGE, SMALL, Measurement
from dnncore import RELU, DType, TensorDescriptor
from dnncore.descriptors import ActivationDescriptor, ActivationMode, Layout
from dnncore.problems import (
    ActivationBackwardProblem,
    ActivationForwardProblem,
    AddProblem,
    DropoutProblem,
    SumProblem,
)

__all__ = ["elementwise"]


def elementwise(dtype: DType) -> Iterator[Measurement]:
    """Biases in both layouts, then what does not care for the layout on NCHW."""
    for shape in (LARGE, SMALL):
        for layout in (Layout.NCHW, Layout.NHWC):
            x = TensorDescriptor.packed(shape, dtype, layout)
            bias = TensorDescriptor.packed((1, shape[1], 1, 1), dtype, layout)
            size = f"{layout.value} {shape[2]}"
            yield Measurement(f"bias-gradient {size}", SumProblem(x, bias), (x,), lambda x: x.sum((0, 2, 3)))
            yield Measurement(f"bias-add {size}", AddProblem(bias, x), (x,), lambda b, c: c.add_(b), 1.0)
    nchw, nhwc = (TensorDescriptor.packed(LARGE, dtype, layout) for layout in (Layout.NCHW, Layout.NHWC))
    for name, a, b in (("nchw-to-nhwc", nchw, nhwc), ("nhwc-to-nchw", nhwc, nchw)):
        yield Measurement(name, AddProblem(a, b), (a, b), _other_layout(a))
    x = nchw
    yield Measurement("relu-forward", ActivationForwardProblem(x, x, RELU), (x, x), torch.relu)
    yield Measurement(
        "relu-backward",
        ActivationBackwardProblem(x, x, x, x, RELU),
        (x, x, x),
        lambda _y, dy, x: torch.ops.aten.threshold_backward(dy, x, 0),
    )
    gelu = ActivationDescriptor(ActivationMode.GELU)
    yield Measurement("gelu-forward", ActivationForwardProblem(x, x, gelu), (x, x), torch.nn.functional.gelu)
    yield Measurement(
        "gelu-backward",
        ActivationBackwardProblem(x, x, x, x, gelu),
        (x, x, x),
        lambda _y, dy, x: torch.ops.aten.gelu_backward(dy, x),
    )
    state = TensorDescriptor.packed((4,), DType.INT32)
    yield Measurement(
        "dropout",
        DropoutProblem(x, state, x, 0.5),
        (x, x),
        lambda x, _state: torch.nn.functional.dropout(x, 0.5),
        comparable=False,
    )


def _other_layout(a: TensorDescriptor) -> Any:
    to = torch.contiguous_format if a.strides[1] == 1 else torch.channels_last
    return lambda x: x.contiguous(memory_format=to)
