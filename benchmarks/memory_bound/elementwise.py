"""One pass over tensors: activations, functions, blending, layouts, sums, dropout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.measurement import LARGE, SMALL, Measurement, Sized
from dnncore import RELU, DType, TensorDescriptor
from dnncore.descriptors import ActivationDescriptor, ActivationMode, BinaryOperator, Layout, UnaryOperator
from dnncore.problems import (
    ActivationBackwardProblem,
    ActivationForwardProblem,
    AddProblem,
    BinaryProblem,
    DropoutProblem,
    SumProblem,
    UnaryProblem,
    WhereProblem,
)

__all__ = ["elementwise"]


def elementwise(dtype: DType, sized: Sized) -> Iterator[Measurement]:
    """Biases in both layouts, then what does not care for the layout on NCHW."""
    for whole in (LARGE, SMALL):
        shape = sized(whole)
        for layout in (Layout.NCHW, Layout.NHWC):
            x = TensorDescriptor.packed(shape, dtype, layout)
            bias = TensorDescriptor.packed((1, shape[1], 1, 1), dtype, layout)
            size = f"{layout.value} {whole[2]}"
            yield Measurement(
                f"bias-gradient {size}",
                SumProblem(x, bias),
                (x,),
                lambda x: x.sum((0, 2, 3)),
                length=x.size // shape[1],
            )
            yield Measurement(f"bias-add {size}", AddProblem(bias, x), (x,), lambda b, c: c.add_(b), 1.0)
    nchw, nhwc = (TensorDescriptor.packed(sized(LARGE), dtype, layout) for layout in (Layout.NCHW, Layout.NHWC))
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
    yield from _pointwise(x)
    state = TensorDescriptor.packed((4,), DType.INT32)
    yield Measurement(
        "dropout",
        DropoutProblem(x, state, x, 0.5),
        (x, x),
        lambda x, _state: torch.nn.functional.dropout(x, 0.5),
        comparable=False,
    )


def _pointwise(x: TensorDescriptor) -> Iterator[Measurement]:
    """Of one tensor, of two, and of three."""
    for operator, function in (
        (UnaryOperator.EXP, torch.exp),
        (UnaryOperator.SQUARE, torch.square),
        (UnaryOperator.ERF, torch.erf),
    ):
        yield Measurement(f"unary-{operator.value}", UnaryProblem(x, x, operator), (x, x), function)
    channels = TensorDescriptor.packed((1, x.shape[1], 1, 1), x.dtype)
    for name, other, moved in (("", x, (x, x, x)), ("-channels", channels, (x, x))):
        problem = BinaryProblem(x, other, x, BinaryOperator.MUL)
        yield Measurement(f"binary-mul{name}", problem, moved, torch.mul)
    condition = TensorDescriptor.packed(x.shape, DType.BOOL)
    yield Measurement(
        "where",
        WhereProblem(condition, x, x, x),
        (condition, x, x, x),
        torch.where,
        prepare=lambda inputs: inputs[0].copy_(inputs[1] > inputs[2]),
    )


def _other_layout(a: TensorDescriptor) -> Any:
    to = torch.contiguous_format if a.strides[1] == 1 else torch.channels_last
    return lambda x: x.contiguous(memory_format=to)
