"""Bottlenecks of ResNet's first stage, in 16 bits and channels-last: what lies within need not go through memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from benchmarks.measurement import Measurement, Sized
from dnncore import DType, TensorDescriptor
from dnncore.descriptors import ActivationDescriptor, Layout
from dnncore.problems import BottleneckProblem

__all__ = ["bottlenecks"]

_BATCHES = (1, 32, 256)
_EXTENT, _INNER, _OUTPUTS = 56, 64, 256


def _problem(batch: int, channels: int, extent: int, dtype: DType) -> BottleneckProblem:
    def lying(*shape: int) -> TensorDescriptor:
        return TensorDescriptor.packed(shape, dtype, Layout.NHWC)

    def bias(count: int) -> TensorDescriptor:
        return TensorDescriptor.packed((1, count, 1, 1), DType.FLOAT32)

    is_first = channels != _OUTPUTS
    return BottleneckProblem(
        lying(batch, channels, extent, extent),
        lying(_INNER, channels, 1, 1),
        lying(_INNER, _INNER, 3, 3),
        lying(_OUTPUTS, _INNER, 1, 1),
        lying(batch, _OUTPUTS, extent, extent),
        *(bias(_INNER), bias(_INNER), bias(_OUTPUTS)),
        shortcut=lying(_OUTPUTS, channels, 1, 1) if is_first else None,
        shortcut_bias=bias(_OUTPUTS) if is_first else None,
        activation=ActivationDescriptor.make("relu"),
        residual=not is_first,
    )


def _torch(problem: BottleneckProblem) -> Callable[..., torch.Tensor]:
    convolve = torch.nn.functional.conv2d

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        given = dict(zip(problem.input_names, inputs, strict=True))
        bias = {name: value.flatten().to(inputs[0].dtype) for name, value in given.items() if name.endswith("bias")}
        value = convolve(given["x"], given["reduce"], bias["reduce_bias"]).relu_()
        value = convolve(value, given["middle"], bias["middle_bias"], padding=1).relu_()
        value = convolve(value, given["restore"], bias["restore_bias"])
        if problem.residual:
            return value.add_(given["x"]).relu_()
        return value.add_(convolve(given["x"], given["shortcut"], bias["shortcut_bias"])).relu_()

    return run


def _scale_filters(problem: BottleneckProblem) -> Callable[[Sequence[torch.Tensor]], None]:
    """Noise divided by the root of the products of a sum, so that sums are of its size."""

    def scale(inputs: Sequence[torch.Tensor]) -> None:
        for name, value in zip(problem.input_names, inputs, strict=True):
            if name in ("reduce", "middle", "restore", "shortcut"):
                value.mul_(value[0].numel() ** -0.5)

    return scale


def bottlenecks(dtype: DType, sized: Sized) -> Iterator[Measurement]:
    """By one kernel and layer by layer; nothing in float32."""
    if dtype.itemsize != 2:
        return
    for batch in _BATCHES:
        for channels in (_OUTPUTS, 64):
            images, _, extent, _ = sized((batch, channels, _EXTENT, _EXTENT))
            problem = _problem(images, channels, extent, dtype)
            yield Measurement(
                f"bottleneck {channels}-{_INNER}-{_OUTPUTS} {_EXTENT} batch {batch}",
                problem,
                (problem.x, problem.y),
                _torch(problem),
                prepare=_scale_filters(problem),
            )
