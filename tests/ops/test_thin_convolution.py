"""Convolutions of one tap over few channels, or by few filters, whose warps take pixels in turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from dnncore import ConvolutionDescriptor, DType, Handle, TensorDescriptor
from dnncore.cuda.convolution.fused import FUSED
from dnncore.cuda.convolution.thin import ThinConvolution
from dnncore.descriptors import ActivationDescriptor
from dnncore.figures import H200
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem, Problem
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check

ALGORITHM = "implicit_gemm_thin"
F16, BF16, F32 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32
LEAKY = ActivationDescriptor.make("leaky_relu", 0.125)
RELU, CEILING = ActivationDescriptor.make("relu"), ActivationDescriptor.make("clipped_relu", 1.5)
(THIN,) = (each for each in FUSED if isinstance(each, ThinConvolution))


@dataclass(frozen=True)
class Layer:
    """Of 2 x 19 x 15 pixels, which end within a warp's; x and y are slices of more channels, and a residual lies as y does."""

    kernel: str
    dtype: DType
    channels: int
    filters: int
    with_: str = ""  # of scale, bias and z
    activation: ActivationDescriptor | None = None
    parameters: DType = F32
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def problem(self) -> Problem:
        x, y = self._images(self.channels, 8), self._images(self.filters, 16)
        w = TensorDescriptor.packed((self.filters, self.channels, 1, 1), self.dtype)
        conv = ConvolutionDescriptor.make()
        if not self.with_:
            return ConvolutionProblem(Direction.FORWARD, x, w, y, conv)
        row = TensorDescriptor.packed((1, self.filters, 1, 1), self.parameters)
        scale, bias = (row if part in self.with_ else None for part in "sb")
        residual = y if "z" in self.with_ else None
        factor = -2.0 if residual else 1.0
        return FusedConvolutionProblem(x, w, y, conv, scale, bias, residual, self.activation, 0.5, factor)

    def _images(self, channels: int, more: int) -> TensorDescriptor:
        pitch, height, width = channels + more, 19, 15
        return TensorDescriptor(
            self.dtype, (2, channels, height, width), (pitch * height * width, 1, pitch * width, pitch)
        )


LAYERS = (
    Layer("expand", F16, 24, 144, "b", CEILING),
    Layer("reduce_1", F16, 72, 24, "bz", RELU, F16),
    Layer("reduce_2", F16, 136, 56, alpha=2.0, beta=1.0),
    Layer("expand", BF16, 32, 72, "sbz", LEAKY, BF16, -0.5, 2.0),
    Layer("reduce_1", BF16, 8, 32, "s", None, BF16, 1.0, -1.0),
    Layer("reduce_2", BF16, 64, 64, "sbz", CEILING, alpha=0.5),
)


KERNELS = {f"convolution_thin_{layer.kernel}_{layer.dtype.value}" for layer in LAYERS}
"""What the cases here run."""


@pytest.mark.cuda
@pytest.mark.parametrize("guard", [GUARD, GUARD + 1], ids=["aligned", "anywhere"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.kernel}-{layer.dtype.value}")
def test_warps_take_pixels_in_turn(layer: Layer, guard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one multiprocessor, whose sixteen warps have 512 pixels at a time; where nothing is aligned, others compute."""
    monkeypatch.setattr("dnncore.cuda.figures.of_device", lambda *_: replace(H200, multiprocessors=1))
    case = Case(f"thin-{layer.kernel}-{layer.dtype.value}", layer.problem, layer.alpha, layer.beta)
    with Handle(CUDA_DEVICES[0]) as handle:
        assert f"convolution_thin_{layer.kernel}_" in handle.plan(case.problem, algorithm=ALGORITHM).describe()
        check(handle, case, ALGORITHM, guard)


def _problem(n: int, channels: int, extent: int, filters: int, **settings: Any) -> FusedConvolutionProblem:
    x, y = (TensorDescriptor.packed((n, c, extent, extent), F16, "NHWC") for c in (channels, filters))
    w = TensorDescriptor.packed((filters, channels, 1, 1), F16)
    return replace(FusedConvolutionProblem(x, w, y, ConvolutionDescriptor.make()), **settings)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (_problem(2, 12, 8, 16), "in eights"),
        (_problem(2, 16, 8, 20), "in eights"),
        (_problem(2, 40, 8, 72), "40 channels and 72 filters are too many"),
        (_problem(2, 1024, 8, 1024), "too many"),
        (_problem(32767, 8, 256, 8), "2147418112 pixels; at most"),
        (_problem(2, 16, 8, 16, activation=ActivationDescriptor.make("silu")), "its stores know relu"),
        (_problem(2, 16, 8, 16, z=TensorDescriptor.packed((2, 16, 8, 8), F16)), "z ("),
    ],
)
def test_what_it_does_not_take_is_refused(problem: FusedConvolutionProblem, reason: str) -> None:
    assert reason in str(THIN.offer(problem, H200))


def test_its_bound_is_below_its_offer() -> None:
    for problem in (_problem(1, 16, 14, 96), _problem(256, 24, 56, 144), _problem(256, 384, 14, 64)):
        offer = THIN.offer(problem, H200)
        assert not isinstance(offer, str)
        assert THIN.least_seconds(problem, H200) <= offer.seconds
