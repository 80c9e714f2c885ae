"""What implicit_gemm_wgmma_rows is offered for, and when it is chosen. No device."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dnncore import ConvolutionDescriptor, DType, TensorDescriptor
from dnncore.choice import fastest
from dnncore.cuda.convolution.fused import FUSED
from dnncore.cuda.convolution.plain import algorithms
from dnncore.descriptors import ActivationDescriptor
from dnncore.figures import A100, H200
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem

NAME = "implicit_gemm_wgmma_rows"
(ROWS,) = (each for each in algorithms(Direction.FORWARD) if each.name == NAME)


def _layer(
    x: tuple[int, ...] = (2, 3, 224, 224),
    w: tuple[int, ...] = (64, 3, 7, 7),
    dtype: DType = DType.FLOAT16,
    layout: str = "NHWC",
    of_y: str = "NHWC",
    padding: int = 3,
    stride: int = 2,
    dilation: int = 1,
) -> ConvolutionProblem:
    conv = ConvolutionDescriptor.make(padding=padding, stride=stride, dilation=dilation)
    of_x, filters = TensorDescriptor.packed(x, dtype, layout), TensorDescriptor.packed(w, dtype, "NHWC")
    y = TensorDescriptor.packed(conv.output_shape(x, w), dtype, of_y)
    return ConvolutionProblem(Direction.FORWARD, of_x, filters, y, conv)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (_layer(dtype=DType.FLOAT32), "x is float32; it takes float16, bfloat16"),
        (_layer(layout="NCHW"), "x .* does not have its channels innermost, pixel behind pixel"),
        (_layer(of_y="NCHW"), "y .* needs neighbouring channels"),
        (_layer(w=(60, 3, 7, 7)), "y .* strides that are multiples of 8"),
        (_layer(dilation=2), r"dilation \(2, 2\); the values of a row are neighbours"),
        (_layer((2, 19, 40, 40), (64, 19, 7, 7)), "7 rows of 133 values; at most 128 in a row, 80 eights in all"),
        (_layer((2, 12, 40, 40), (64, 12, 9, 9)), "9 rows of 108 values; at most 128 in a row, 80 eights in all"),
        (_layer((2, 8, 40, 40), (64, 8, 8, 8), stride=8), "B of shared memory; at most 232448"),
        (replace(_layer(), direction=Direction.BACKWARD_DATA), "it has no backward_data"),
    ],
)
def test_what_it_does_not_suit_is_refused_with_the_reason(problem: ConvolutionProblem, message: str) -> None:
    reason = ROWS.offer(problem, H200)
    assert isinstance(reason, str)
    assert re.search(message, reason)


def test_it_is_for_one_architecture() -> None:
    assert ROWS.offer(_layer(), A100) == "convolution_wgmma_rows_float16 is a kernel for sm_90a, not for sm_80"


@pytest.mark.parametrize("batch", [1, 256])
@pytest.mark.parametrize(
    ("taps", "padding", "stride"), [(7, 3, 2), (3, 1, 1), (11, 2, 4)], ids=["resnet", "vgg", "alexnet"]
)
def test_first_layers_of_known_nets_with_what_follows_are_computed_by_it(
    batch: int, taps: int, padding: int, stride: int
) -> None:
    plain = _layer((batch, 3, 224, 224), (64, 3, taps, taps), padding=padding, stride=stride)
    bias = TensorDescriptor.packed((1, 64, 1, 1))
    relu = ActivationDescriptor.make("relu")
    fused = FusedConvolutionProblem(plain.x, plain.w, plain.y, plain.convolution, bias=bias, activation=relu)
    found = fastest(FUSED, fused, H200)
    assert found is not None
    assert found[0].name == NAME
