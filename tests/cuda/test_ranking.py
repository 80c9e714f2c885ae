"""Which algorithm is tried first, where an H200 was seen to have one that is far ahead."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.layers import LAYERS
from dnncore import RELU, DType, MathType, TensorDescriptor
from dnncore.backend import Offer
from dnncore.choice import fastest
from dnncore.cuda.algorithms import algorithms_for
from dnncore.cuda.calls import KernelCall
from dnncore.cuda.convolution.composed import COMPOSED
from dnncore.cuda.convolution.plain import best_offer
from dnncore.cuda.convolution.space_to_depth import SpaceToDepth
from dnncore.descriptors import ConvolutionDescriptor, Layout
from dnncore.figures import A100, H200, DeviceFigures
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem, Problem

_LAYERS = {layer.name: layer for layer in LAYERS}


def _first(problem: Problem) -> str:
    found = fastest(algorithms_for(problem), problem, H200)
    assert found is not None
    return found[0].name


def _fused(layer: str) -> FusedConvolutionProblem:
    plain = _LAYERS[layer].problem(Direction.FORWARD)
    bias = TensorDescriptor.packed((1, plain.w.shape[0], 1, 1))
    return FusedConvolutionProblem(plain.x, plain.w, plain.y, plain.convolution, bias=bias, activation=RELU)


@pytest.mark.parametrize(
    ("layer", "algorithm"),
    [
        ("cudnn-paper-1", "fft_tiling"),
        ("cudnn-paper-3", "fft_tiling_3xtf32"),
        ("r50-3x3-128", "fft_tiling_3xtf32"),
        ("r50-3x3-256-n1", "implicit_gemm_split_k"),
    ],
)
def test_forward(layer: str, algorithm: str) -> None:
    assert _first(_LAYERS[layer].problem(Direction.FORWARD)) == algorithm


@pytest.mark.parametrize(
    ("layer", "algorithm"),
    [
        ("cudnn-paper-3", "fft_tiling_3xtf32"),
        ("r50-3x3-128", "fft_tiling_3xtf32"),
        ("r50-3x3-256-n1", "implicit_gemm_split_k"),
    ],
)
def test_fused(layer: str, algorithm: str) -> None:
    assert _first(_fused(layer)) == algorithm


@pytest.mark.parametrize(
    ("layer", "algorithm"),
    [
        ("cudnn-paper-1", "implicit_gemm_3xtf32_rows"),
        ("cudnn-paper-2", "fft_tiling_3xtf32"),
        ("r50-3x3-256", "fft_tiling_3xtf32"),
        ("r50-1x1-1024-256", "implicit_gemm_3xtf32"),
        ("r50-1x1-512-2048", "implicit_gemm_3xtf32_merged"),
    ],
)
def test_the_gradient_of_filters(layer: str, algorithm: str) -> None:
    assert _first(_LAYERS[layer].problem(Direction.BACKWARD_FILTER)) == algorithm


@pytest.mark.parametrize("layer", ["alexnet-conv1", "r50-conv1", "announcement-2014"])
def test_phases_are_estimated_to_be_the_fastest_for_the_gradient_of_a_strided_first_layer(layer: str) -> None:
    problem = _LAYERS[layer].problem(Direction.BACKWARD_DATA)
    offers = {algorithm.name: algorithm.offer(problem, H200) for algorithm in algorithms_for(problem)}
    seconds = {name: offer.seconds for name, offer in offers.items() if isinstance(offer, Offer)}
    assert min(seconds, key=lambda name: seconds[name]) == "space_to_depth"


@pytest.mark.parametrize(
    ("dtype", "layers"),
    [
        (DType.FLOAT16, ("r50-conv1", "alexnet-conv1")),
        (DType.FLOAT32, ("r50-conv1", "cudnn-paper-1")),
        (DType.INT8, ("r50-conv1", "alexnet-conv1", "cudnn-paper-1")),
    ],
    ids=["float16", "tf32", "int8"],
)
def test_a_first_layer_is_computed_without_phases(dtype: DType, layers: tuple[str, ...]) -> None:
    for layer in layers:
        problem = _LAYERS[layer].problem(Direction.FORWARD, dtype, Layout.NHWC, MathType.TF32)
        assert _first(problem) == "implicit_gemm_wgmma_rows"


def test_the_bound_of_phases_is_below_their_offers() -> None:
    for direction in Direction:
        for layer in ("alexnet-conv1", "r50-conv1", "announcement-2014"):
            of_16_bits = ((DType.FLOAT16, Layout.NHWC),) if layer != "announcement-2014" else ()  # has 96 channels
            for dtype, layout in ((DType.FLOAT32, Layout.NCHW), *of_16_bits):
                problem = _LAYERS[layer].problem(direction, dtype, layout)
                phases = next(each for each in algorithms_for(problem) if isinstance(each, SpaceToDepth))
                offer = phases.offer(problem, H200)
                assert isinstance(offer, Offer)
                assert phases.least_seconds(problem, H200) <= offer.seconds


def _entries(offer: Offer) -> list[str]:
    return [call.unit.entry for call in offer.prepare() if isinstance(call, KernelCall)]


@pytest.mark.parametrize("figures", [H200, A100], ids=["H200", "A100"])
@pytest.mark.parametrize("layer", ["cudnn-paper-3", "r50-3x3-64", "r50-3x3-256-n1"])
def test_a_composed_convolution_is_the_fastest_one_on_the_same_device_and_an_epilogue(
    layer: str, figures: DeviceFigures
) -> None:
    composed = COMPOSED.offer(_fused(layer), figures)
    assert isinstance(composed, Offer)
    plain = best_offer(_LAYERS[layer].problem(Direction.FORWARD), figures)
    *convolution, epilogue = _entries(composed)
    assert convolution == _entries(plain)
    assert epilogue == "convolution_fused_epilogue_float"
    assert composed.seconds > plain.seconds
    assert composed.workspace_bytes == _fused(layer).y.nbytes + plain.workspace_bytes


@pytest.mark.parametrize(("layout", "algorithm"), [("NCHW", "space_to_depth"), ("NHWC", "space_to_depth")])
def test_the_gradient_of_an_image_does_not_go_to_what_reads_its_rows_in_steps(layout: str, algorithm: str) -> None:
    problem = _LAYERS["r50-conv1"].problem(Direction.BACKWARD_DATA, DType.FLOAT32, Layout(layout))
    assert _first(problem) == algorithm


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("layout", Layout, ids=lambda layout: layout.value)
@pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.value)
def test_depthwise(direction: Direction, layout: Layout, dtype: DType) -> None:
    conv = ConvolutionDescriptor.make(padding=1, groups=128)
    x = TensorDescriptor.packed((64, 128, 56, 56), dtype, layout)
    w = TensorDescriptor.packed((128, 1, 3, 3), dtype)
    walks = (direction, layout, dtype) == (Direction.BACKWARD_FILTER, Layout.NHWC, DType.FLOAT16)
    assert _first(ConvolutionProblem(direction, x, w, x, conv)) == ("depthwise_columns" if walks else "depthwise")


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("layout", [Layout.NCHW, Layout.NHWC])
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_an_algorithm_is_chosen_whatever_the_number_of_dimensions(
    ndim: int, dtype: DType, layout: Layout, direction: Direction
) -> None:
    """What suits images alone says so before it is asked for their rows."""
    for channels, outputs, taps in itertools.product((1, 3, 64, 65), (7, 8), (1, 3)):
        conv = ConvolutionDescriptor.make(ndim, padding=taps // 2)
        x, w = (4, channels, *[12] * ndim), (outputs, channels, *[taps] * ndim)
        shapes = x, w, conv.output_shape(x, w)
        of_x, of_w, of_y = (TensorDescriptor.packed(shape, dtype, layout) for shape in shapes)
        assert _first(ConvolutionProblem(direction, of_x, of_w, of_y, conv))
