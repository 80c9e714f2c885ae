"""What implicit_gemm_3xtf32_rows is offered for, how it shares out work, and when it is chosen. No device."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from dnncore import ConvolutionDescriptor, DType, TensorDescriptor
from dnncore.choice import fastest
from dnncore.cuda.calls import KernelCall
from dnncore.cuda.convolution.plain import algorithms
from dnncore.figures import A100, H200
from dnncore.problems import ConvolutionProblem, Direction

NAME = "implicit_gemm_3xtf32_rows"
(ROWS,) = (each for each in algorithms(Direction.BACKWARD_FILTER) if each.name == NAME)


def _layer(
    x: tuple[int, ...] = (64, 3, 224, 224),
    w: tuple[int, ...] = (64, 3, 7, 7),
    dtype: DType = DType.FLOAT32,
    layout: str = "NCHW",
    padding: int = 3,
    stride: int | tuple[int, int] = 2,
    dilation: int = 1,
    groups: int = 1,
) -> ConvolutionProblem:
    conv = ConvolutionDescriptor.make(padding=padding, stride=stride, dilation=dilation, groups=groups)
    of_x, filters = TensorDescriptor.packed(x, dtype, layout), TensorDescriptor.packed(w, dtype)
    y = TensorDescriptor.packed(conv.output_shape(x, w), dtype, layout)
    return ConvolutionProblem(Direction.BACKWARD_FILTER, of_x, filters, y, conv)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (_layer(dtype=DType.FLOAT16), "x is float16; it takes float32"),
        (_layer(layout="NHWC"), "x .* has no rows of neighbours"),
        (_layer(dilation=2), r"dilation \(2, 2\); taps of a row are neighbours"),
        (_layer(stride=(2, 3)), "stride 3 along rows; it takes 1, 2, 4"),
        (_layer(groups=3, w=(63, 1, 7, 7)), "2 spatial dimensions, 3 groups"),
        (_layer((1, 3, 9, 9), padding=0, stride=1), "sums of 9 products; at least 16"),
        (
            _layer((8, 64, 224, 224), (64, 64, 3, 3), padding=1, stride=1),
            "4 rows of x take .* B of shared memory; at most 32768",
        ),
        (replace(_layer(), direction=Direction.FORWARD), "it has no forward"),
    ],
)
def test_what_it_does_not_suit_is_refused_with_the_reason(problem: ConvolutionProblem, message: str) -> None:
    reason = ROWS.offer(problem, H200)
    assert isinstance(reason, str)
    assert re.search(message, reason)


def test_it_is_for_one_architecture() -> None:
    assert "is a kernel for sm_90a, not for sm_80" in str(ROWS.offer(_layer(), A100))


@pytest.mark.parametrize(
    ("problem", "tile"),
    [
        (_layer(), "64x160_stride_2"),
        (_layer((128, 3, 224, 224), (64, 3, 11, 11), padding=2, stride=4), "64x192_stride_4"),
        (_layer((128, 3, 128, 128), (96, 3, 11, 11), padding=0, stride=1), "96x192_stride_1"),
    ],
    ids=["resnet", "alexnet", "cudnn-paper-1"],
)
def test_first_layers_of_many_images_are_computed_by_it_and_no_multiprocessor_is_idle(
    problem: ConvolutionProblem, tile: str
) -> None:
    found = fastest(algorithms(Direction.BACKWARD_FILTER), problem, H200)
    assert found is not None
    assert found[0].name == NAME
    products, sums = found[1].prepare()
    assert isinstance(products, KernelCall)
    assert isinstance(sums, KernelCall)
    assert products.unit.entry.endswith(tile)
    assert products.grid == (H200.multiprocessors, 1, 1)
    assert products.shared_bytes <= H200.shared_bytes
    rows, columns = map(int, tile.split("_")[0].split("x"))
    tiles = math.ceil(problem.w.shape[0] / rows) * math.ceil(math.prod(problem.w.shape[1:]) / columns)
    assert sums.grid[1] == tiles
