"""MobileNetV2's blocks of layers, in 16 bits and channels-last: what is spread out need not go through memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from benchmarks.measurement import Measurement, Sized
from dnncore import DType, TensorDescriptor
from dnncore.descriptors import ActivationDescriptor, Layout
from dnncore.problems import InvertedResidualProblem

__all__ = ["inverted_residuals"]

_BATCHES = (1, 32, 256)
_BLOCKS = (
    (112, 32, 32, 16, 1),
    (112, 16, 96, 24, 2),
    (56, 24, 144, 24, 1),
    (56, 24, 144, 32, 2),
    (28, 32, 192, 32, 1),
    (28, 32, 192, 64, 2),
    (14, 64, 384, 64, 1),
    (14, 64, 384, 96, 1),
    (14, 96, 576, 96, 1),
    (14, 96, 576, 160, 2),
    (7, 160, 960, 160, 1),
    (7, 160, 960, 320, 1),
)
"""Extent, channels, expanded channels, output channels and stride, as images of 224 x 224 have them."""


def _problem(batch: int, block: tuple[int, int, int, int, int], dtype: DType) -> InvertedResidualProblem:
    extent, channels, expanded, outputs, stride = block
    spread = expanded != channels

    def lying(*shape: int) -> TensorDescriptor:
        return TensorDescriptor.packed(shape, dtype, Layout.NHWC)

    def bias(count: int) -> TensorDescriptor:
        return TensorDescriptor.packed((1, count, 1, 1), DType.FLOAT32)

    less = (extent - 1) // stride + 1
    return InvertedResidualProblem(
        lying(batch, channels, extent, extent),
        lying(expanded, 1, 3, 3),
        lying(outputs, expanded, 1, 1),
        lying(batch, outputs, less, less),
        expand=lying(expanded, channels, 1, 1) if spread else None,
        expand_bias=bias(expanded) if spread else None,
        depthwise_bias=bias(expanded),
        project_bias=bias(outputs),
        activation=ActivationDescriptor.make("clipped_relu"),
        stride=stride,
        residual=stride == 1 and channels == outputs,
    )


def _torch(problem: InvertedResidualProblem) -> Callable[..., torch.Tensor]:
    convolve = torch.nn.functional.conv2d

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        given = dict(zip(problem.input_names, inputs, strict=True))
        bias = {name: value.flatten().to(inputs[0].dtype) for name, value in given.items() if name.endswith("bias")}
        value = given["x"]
        if "expand" in given:
            value = convolve(value, given["expand"], bias["expand_bias"]).clamp_(0, 6)
        groups = value.shape[1]
        value = convolve(value, given["depthwise"], bias["depthwise_bias"], problem.stride, 1, 1, groups).clamp_(0, 6)
        value = convolve(value, given["project"], bias["project_bias"])
        return value.add_(given["x"]) if problem.residual else value

    return run


def _scale_filters(problem: InvertedResidualProblem) -> Callable[[Sequence[torch.Tensor]], None]:
    """Noise divided by the root of the products of a sum, so that few sums are clipped."""

    def scale(inputs: Sequence[torch.Tensor]) -> None:
        for name, value in zip(problem.input_names, inputs, strict=True):
            if name in ("expand", "depthwise", "project"):
                value.mul_(value[0].numel() ** -0.5)

    return scale


def inverted_residuals(dtype: DType, sized: Sized) -> Iterator[Measurement]:
    """By one kernel and layer by layer; nothing in float32."""
    if dtype.itemsize != 2:
        return
    for batch in _BATCHES:
        for extent, channels, expanded, outputs, stride in _BLOCKS:
            images, least, size, _ = sized((batch, channels, extent, extent))
            # Blocks that do not spread channels out, and those that are added to their input, stay such.
            spread = expanded if expanded == channels else least * expanded // channels
            few = least if outputs == channels else min(outputs, 2 * least)
            problem = _problem(images, (size, least, spread, few, stride), dtype)
            yield Measurement(
                f"inverted-residual {channels}-{expanded}-{outputs} stride-{stride} {extent} batch {batch}",
                problem,
                (problem.x, problem.y),
                _torch(problem),
                prepare=_scale_filters(problem),
            )
