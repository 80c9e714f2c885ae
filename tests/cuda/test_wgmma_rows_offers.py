"""What implicit_gemm_wgmma_rows is offered for, and when it is chosen. No device."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from dnncore import ConvolutionDescriptor, DType, MathType, TensorDescriptor
from dnncore.choice import fastest
from dnncore.cuda.calls import KernelCall, WhereAligned
from dnncore.cuda.convolution.fused import FUSED
from dnncore.cuda.convolution.image_planes import PlaneWindow
from dnncore.cuda.convolution.images import IMAGES
from dnncore.cuda.convolution.plain import algorithms
from dnncore.cuda.convolution.wgmma_tile import LONGEST_SUM
from dnncore.descriptors import ActivationDescriptor
from dnncore.figures import A100, H200
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem, ImageConvolutionProblem

NAME = "implicit_gemm_wgmma_rows"
(ROWS,), (OF_FILTERS,) = (
    [each for each in algorithms(direction) if each.name == NAME]
    for direction in (Direction.FORWARD, Direction.BACKWARD_FILTER)
)


def _layer(
    x: tuple[int, ...] = (2, 3, 224, 224),
    w: tuple[int, ...] = (64, 3, 7, 7),
    dtype: DType = DType.FLOAT16,
    layout: str = "NHWC",
    of_y: str = "NHWC",
    padding: int = 3,
    stride: int = 2,
    dilation: int = 1,
    direction: Direction = Direction.FORWARD,
    math: MathType = MathType.STRICT,
) -> ConvolutionProblem:
    conv = ConvolutionDescriptor.make(padding=padding, stride=stride, dilation=dilation, math=math)
    of_x, filters = TensorDescriptor.packed(x, dtype, layout), TensorDescriptor.packed(w, dtype, "NHWC")
    y = TensorDescriptor.packed(conv.output_shape(x, w), dtype, of_y)
    return ConvolutionProblem(direction, of_x, filters, y, conv)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (_layer(dtype=DType.FLOAT64), "x is float64; it takes float16, bfloat16, int8, float32"),
        (_layer(dtype=DType.FLOAT32), "x is float32 and math strict: it would round x and w, which tf32 permits"),
        (_layer(layout="NCHW"), "x .* does not have its channels innermost, pixel behind pixel"),
        (_layer(of_y="NCHW"), "y .* needs neighbouring channels"),
        (_layer(w=(60, 3, 7, 7)), "y .* strides that are multiples of 8"),
        (_layer(w=(72, 3, 7, 7), dtype=DType.INT8), "y .* strides that are multiples of 16"),
        (_layer(dilation=2), r"dilation \(2, 2\); the values of a row are neighbours"),
        (_layer((2, 19, 40, 40), (64, 19, 7, 7)), "7 rows of 133 values; at most 128 in a row, 100 times 8 in all"),
        (_layer((2, 12, 40, 40), (64, 12, 9, 9)), "9 rows of 108 values; at most 128 in a row, 100 times 8 in all"),
        (
            _layer((2, 11, 40, 40), (64, 11, 1, 6), dtype=DType.FLOAT32, math=MathType.TF32),
            "1 rows of 66 values; at most 64 in a row, 100 times 4 in all",
        ),
        (_layer((2, 8, 40, 40), (64, 8, 8, 8), stride=8), "B of shared memory; at most 232448"),
        (replace(_layer(), direction=Direction.BACKWARD_DATA), "it has no backward_data"),
    ],
)
def test_what_it_does_not_suit_is_refused_with_the_reason(problem: ConvolutionProblem, message: str) -> None:
    reason = ROWS.offer(problem, H200)
    assert isinstance(reason, str)
    assert re.search(message, reason)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (_layer(layout="NCHW"), "x .* does not have its channels innermost, pixel behind pixel"),
        (_layer(of_y="NCHW"), "dy .* needs neighbouring channels"),
        (_layer(dilation=2), r"dilation \(2, 2\); the values of a row are neighbours"),
        (_layer(w=(64, 3, 13, 3)), "filters of 13 rows of 9 values; at most 12 of 40"),
        (_layer(w=(64, 3, 7, 14)), "filters of 7 rows of 42 values; at most 12 of 40"),
        (_layer(w=(64, 3, 11, 11), stride=16), "B of shared memory; at most 232448"),
    ],
)
def test_gradients_that_it_does_not_suit_are_refused_with_the_reason(problem: ConvolutionProblem, message: str) -> None:
    reason = OF_FILTERS.offer(replace(problem, direction=Direction.BACKWARD_FILTER), H200)
    assert isinstance(reason, str)
    assert re.search(message, reason)


def test_sums_are_no_longer_than_the_matrix_units_may_round() -> None:
    """Of 256 images of VGG, 132 blocks would have 97 k outputs each: there are more of them."""
    layer = _layer((256, 3, 224, 224), (64, 3, 3, 3), padding=1, stride=1, direction=Direction.BACKWARD_FILTER)
    offer = OF_FILTERS.offer(layer, H200)
    assert not isinstance(offer, str)
    (choice,) = offer.prepare()
    assert isinstance(choice, WhereAligned)
    products, sums = choice.aligned
    assert isinstance(products, KernelCall)
    assert isinstance(sums, KernelCall)
    rectangles = 256 * (224 // 14) * (224 // 16)
    assert -(-rectangles // products.grid[0]) * 14 * 16 <= LONGEST_SUM


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
    pixels, table = TensorDescriptor.packed(plain.x.shape, DType.UINT8, "NHWC"), TensorDescriptor.packed((3, 256))
    of_pixels = ImageConvolutionProblem(pixels, plain.w, plain.y, table, plain.convolution, bias, relu)
    planes = TensorDescriptor.packed(plain.x.shape)
    of_planes = ImageConvolutionProblem(planes, plain.w, plain.y, None, plain.convolution, bias, relu)
    if taps == 11:  # of which too many meet a rectangle of outputs for its planes to have room on chip
        other = fastest(IMAGES, of_planes, H200)
        assert other is not None
        assert other[0].name == "converted_first"
        of_planes = of_pixels
    for found in (*(fastest(IMAGES, each, H200) for each in (of_pixels, of_planes)), fastest(FUSED, fused, H200)):
        assert found is not None
        assert found[0].name == NAME
    gradient = fastest(algorithms(Direction.BACKWARD_FILTER), replace(plain, direction=Direction.BACKWARD_FILTER), H200)
    assert gradient is not None
    assert gradient[0].name == NAME


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8])
@pytest.mark.parametrize(
    ("batch", "size", "filters", "taps", "padding", "stride"),
    [(64, 224, 64, 7, 3, 2), (32, 224, 64, 3, 1, 1), (128, 128, 96, 11, 0, 1)],
    ids=["resnet", "vgg", "the cuDNN paper"],
)
def test_first_layers_in_tf32_and_int8_are_computed_by_it(
    dtype: DType, batch: int, size: int, filters: int, taps: int, padding: int, stride: int
) -> None:
    math = MathType.TF32 if dtype is DType.FLOAT32 else MathType.STRICT
    plain = _layer((batch, 3, size, size), (filters, 3, taps, taps), dtype, padding=padding, stride=stride, math=math)
    bias, relu = TensorDescriptor.packed((1, filters, 1, 1)), ActivationDescriptor.make("relu")
    fused = FusedConvolutionProblem(plain.x, plain.w, plain.y, plain.convolution, bias=bias, activation=relu)
    for found in (fastest(algorithms(Direction.FORWARD), plain, H200), fastest(FUSED, fused, H200)):
        assert found is not None
        assert (found[0].name, found[1].math) == (NAME, "tf32" if dtype is DType.FLOAT32 else "dtype")


def test_pixels_become_16_bits_alone() -> None:
    plain = _layer(dtype=DType.FLOAT32, math=MathType.TF32)
    pixels, table = TensorDescriptor.packed(plain.x.shape, DType.UINT8, "NHWC"), TensorDescriptor.packed((3, 256))
    reason = IMAGES[0].offer(ImageConvolutionProblem(pixels, plain.w, plain.y, table, plain.convolution), H200)
    assert reason == "pixels become float32; it looks up float16, bfloat16"


@pytest.mark.parametrize(
    ("planes", "message"),
    [
        (
            TensorDescriptor.packed((2, 3, 224, 226)),
            "x .* needs neighbouring columns, rows, planes and images a multiple of 4",
        ),
        (TensorDescriptor.packed((2, 3, 224, 224), layout="NHWC"), "x .* needs neighbouring columns"),
        (TensorDescriptor.packed((2, 3, 600, 224)), "takes [0-9]+ B of shared memory"),
    ],
    ids=["rows", "channels-last", "window"],
)
def test_planes_that_no_copy_brings_are_refused_with_the_reason(planes: TensorDescriptor, message: str) -> None:
    stride = 8 if planes.shape[2] == 600 else 2
    plain = _layer(planes.shape, stride=stride)
    problem = ImageConvolutionProblem(planes, plain.w, plain.y, None, plain.convolution)
    reason = IMAGES[0].offer(problem, H200)
    assert isinstance(reason, str)
    assert re.search(message, reason)
    other = fastest(IMAGES, problem, H200)
    assert other is not None
    assert other[0].name == "converted_first"


@pytest.mark.parametrize(("taps", "stride"), [(7, 2), (3, 2), (3, 1)])
def test_rows_of_planes_in_shared_memory_begin_in_different_banks(taps: int, stride: int) -> None:
    """Eight outputs of four rows meet every bank as often as 32 loads of words at such strides can."""
    plain = _layer(w=(64, 3, taps, taps), padding=taps // 2, stride=stride)
    window = PlaneWindow.of(plain, 20)
    banks = Counter((row * window.columns + output * stride) % 32 for row in range(4) for output in range(8))
    assert max(banks.values()) == stride
    assert window.columns_before % 4 == window.columns % 4 == 0
    assert window.columns >= window.first + 7 * stride + taps


def test_pixels_are_normalised_before_where_it_does_not_suit_a_part_of_the_batch_at_a_time() -> None:
    """In parts that stay in the second-level cache; without room for one, pixel by pixel."""
    x, table = TensorDescriptor.packed((256, 3, 224, 224), DType.UINT8, "NHWC"), TensorDescriptor.packed((3, 256))
    like = _layer((256, 3, 224, 224), dilation=2)
    problem = ImageConvolutionProblem(x, like.w, like.y, table, like.convolution)
    found, alone = (
        fastest(IMAGES, problem, H200),
        fastest(IMAGES, problem, H200, lambda offer: not offer.workspace_bytes),
    )
    assert found is not None
    assert alone is not None
    assert (found[0].name, alone[0].name) == ("converted_first", "direct")
    assert problem.images.nbytes > 70e6
    assert found[1].workspace_bytes < 64e6
