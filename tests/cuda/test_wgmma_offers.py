"""What implicit_gemm_wgmma is offered for, in which tile, and how the copy engine sees the operands. No device.

Phases of backward-data are checked against the formula, and the pieces of backward-filter against each other.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnncore import ConvolutionDescriptor, DType, TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import KernelCall, Place, WhereAligned, rewired
from dnncore.cuda.convolution.copy_engine import forward_window, images_map
from dnncore.cuda.convolution.filter_schedule import Schedule
from dnncore.cuda.convolution.fused import FUSED
from dnncore.cuda.convolution.plain import algorithms, best_offer
from dnncore.cuda.convolution.wgmma_backward_data import phases
from dnncore.cuda.convolution.wgmma_backward_filter import TILES
from dnncore.cuda.convolution.wgmma_tile import LONGEST_SUM
from dnncore.cuda.tensor_map import PixelMap
from dnncore.descriptors import ActivationDescriptor
from dnncore.figures import A100, H200
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem


def _named(found: tuple[CudaAlgorithm, ...]) -> CudaAlgorithm:
    (algorithm,) = (each for each in found if each.name == "implicit_gemm_wgmma")
    return algorithm


PLAIN, FUSED_WGMMA = _named(algorithms(Direction.FORWARD)), _named(FUSED)
BACKWARD_DATA, BACKWARD_FILTER = (
    _named(algorithms(direction)) for direction in (Direction.BACKWARD_DATA, Direction.BACKWARD_FILTER)
)


TF32 = {"padding": 1, "math": "tf32"}


@dataclass(frozen=True)
class Layer:
    """A 3x3 layer that suits the kernel, but for what is said."""

    x: tuple[int, ...] = (2, 64, 14, 14)
    w: tuple[int, ...] = (128, 64, 3, 3)
    settings: dict[str, Any] = field(default_factory=lambda: {"padding": 1})
    dtype: DType = DType.FLOAT16
    layouts: tuple[str, str, str] = ("NHWC", "NHWC", "NHWC")
    y_dtype: DType | None = None

    @property
    def problem(self) -> ConvolutionProblem:
        conv = ConvolutionDescriptor.make(len(self.x) - 2, **self.settings)
        shapes = self.x, self.w, conv.output_shape(self.x, self.w)
        x, w, y = (
            TensorDescriptor.packed(shape, dtype, layout)
            for shape, dtype, layout in zip(
                shapes, (self.dtype, self.dtype, self.y_dtype or self.dtype), self.layouts, strict=True
            )
        )
        return ConvolutionProblem(Direction.FORWARD, x, w, y, conv)


def _kernel(offer: Offer | str) -> KernelCall:
    assert isinstance(offer, Offer), offer
    (choice,) = offer.prepare()
    assert isinstance(choice, WhereAligned)
    call = choice.aligned[0]
    assert isinstance(call, KernelCall)
    return call


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Layer(dtype=DType.FLOAT64), "x is float64; it takes float16, bfloat16, int8, float32"),
        (Layer(dtype=DType.FLOAT32), "x is float32 and math strict: it would round x and w, which tf32 permits"),
        (Layer((2, 62, 14, 14), (128, 62, 3, 3), TF32, DType.FLOAT32), "x .* strides that are multiples of 4"),
        (Layer((2, 64, 14, 4, 4), (128, 64, 3, 1, 1), {}), "3 spatial dimensions"),
        (Layer((2, 64, 14, 14), (128, 32, 3, 3), {"groups": 2}), "2 groups"),
        (Layer(settings={"mode": "convolution"}), "1 groups, convolution"),
        (Layer(layouts=("NCHW", "NHWC", "NHWC")), "x .* needs neighbouring channels"),
        (Layer(layouts=("NHWC", "NCHW", "NHWC")), "w .* needs neighbouring channels"),
        (Layer(layouts=("NHWC", "NHWC", "NCHW")), "y .* needs neighbouring channels"),
        (Layer((2, 60, 14, 14), (128, 60, 3, 3)), "x .* strides that are multiples of 8"),
        (Layer(w=(100, 64, 3, 3)), "y .* pixels a multiple of 8 elements apart"),
        (Layer((2, 72, 14, 14), (128, 72, 3, 3), dtype=DType.INT8), "x .* strides that are multiples of 16"),
        (Layer(dtype=DType.INT8, y_dtype=DType.FLOAT32), "y is float32; it stores int8, as x is"),
        (Layer((0, 64, 14, 14)), "nothing to multiply"),
        (Layer((2, 64, 14, 14), (128, 64, 33, 33), {"padding": 16}), "sums of 69696 products; at most 65536"),
        (Layer((2, 64, 40, 40), settings={"stride": 9}), r"strides \(9, 9\); at most 8"),
        (Layer((2, 64, 500, 14), settings={"dilation": (128, 1)}), "taps 256 pixels apart; at most 255"),
        (Layer(settings={"padding": 129}), "-129"),
        (Layer((2**31, 64, 1, 1), (128, 64, 1, 1), {}), "pixels of y and x, filters and tiles; at most"),
    ],
)  # fmt: skip
def test_what_the_kernel_does_not_suit_is_refused_with_the_reason(layer: Layer, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        _kernel(PLAIN.offer(layer.problem, H200))


def test_it_is_for_one_architecture() -> None:
    problem = Layer().problem
    assert {unit.architectures for unit in PLAIN.units()} == {("sm_90a",)}
    assert PLAIN.offer(problem, A100) == (
        "convolution_wgmma_float16_128x192 is a kernel for sm_90a, not for sm_80"
    )  # fmt: skip
    assert PLAIN.offer(replace(problem, direction=Direction.BACKWARD_DATA), H200) == "it has no backward_data"


def test_of_phases_without_taps_a_slab_of_zeros_is_counted() -> None:
    """1x1 with stride 2: three of four phases of dx are zeros."""
    layer = Layer((64, 1024, 14, 14), (2048, 1024, 1, 1), {"stride": 2})
    problem = replace(layer.problem, direction=Direction.BACKWARD_DATA)
    whole, *nothing = phases(problem)
    assert whole.work(2048, 16).summands == 2048
    assert [phase.work(2048, 16).summands for phase in nothing] == [64] * 3


def test_few_filters_of_int8_go_to_both_consumers() -> None:
    layer = Layer((256, 256, 28, 28), (64, 256, 1, 1), {}, DType.INT8)
    assert _kernel(PLAIN.offer(layer.problem, H200)).unit.entry == "convolution_wgmma_int8_64x192"


def test_of_activations_it_knows_those_that_are_comparisons() -> None:
    plain = Layer().problem
    problem = FusedConvolutionProblem(plain.x, plain.w, plain.y, plain.convolution)
    for mode, refused in (
        ("relu", False),
        ("clipped_relu", False),
        ("leaky_relu", False),
        ("silu", True),
        ("gelu", True),
    ):
        offer = FUSED_WGMMA.offer(replace(problem, activation=ActivationDescriptor.make(mode)), H200)
        assert isinstance(offer, str) == refused, mode
    other = TensorDescriptor.packed(plain.y.shape, DType.FLOAT16, "CHWN")
    assert "z (" in str(FUSED_WGMMA.offer(replace(problem, z=other), H200))


@pytest.mark.parametrize(
    ("layer", "tile"),
    [
        (Layer((64, 64, 56, 56), (64, 64, 3, 3)), "64x224"),
        (Layer((64, 256, 56, 56), (64, 256, 1, 1), {}), "64x192"),
        (Layer((64, 64, 56, 56), (256, 64, 1, 1), {}), "128x192"),
        (Layer((64, 256, 14, 14), (256, 256, 3, 3)), "128x192"),
        (Layer((64, 512, 7, 7), (512, 512, 3, 3)), "128x96"),
        (Layer((1, 256, 14, 14), (256, 256, 3, 3)), "64x64_by_8"),
        (Layer((1, 512, 7, 7), (512, 512, 3, 3)), "64x64_by_8"),
        (Layer((1, 1024, 14, 14), (256, 1024, 1, 1), {}), "64x64_by_4"),
        (Layer((1, 256, 14, 14), (1024, 256, 1, 1), {}), "64x64_by_1"),
        (Layer((1, 2048, 1), (1000, 2048, 1), {}), "64x64_by_8"),
    ],
)
def test_the_tile_is_the_one_that_an_h200_was_seen_to_be_fastest_with(layer: Layer, tile: str) -> None:
    assert _kernel(PLAIN.offer(layer.problem, H200)).unit.entry == f"convolution_wgmma_float16_{tile}"


@pytest.mark.parametrize(
    ("dtype", "settings", "kernel"),
    [(DType.FLOAT32, TF32, "float_64x64_by_8"), (DType.INT8, {"padding": 1}, "int8_64x64_by_4")],
    ids=["tf32", "int8"],
)
def test_few_outputs_are_shared_out_by_clusters_in_every_dtype(
    dtype: DType, settings: dict[str, Any], kernel: str
) -> None:
    """A step has as many bytes of each: half as many channels of tf32 as of 16 bits, twice as many of int8."""
    x, w = (1, 256, 14, 14), (256, 256, 3, 3)
    problem = Layer(x, w, settings, dtype).problem
    found, in_16_bits = best_offer(problem, H200), best_offer(Layer(x, w).problem, H200)
    assert _kernel(found).unit.entry == f"convolution_wgmma_{kernel}"
    assert (found.seconds > in_16_bits.seconds) == (dtype is DType.FLOAT32)


@pytest.mark.parametrize("layer", [((32, 64, 224, 224), (64, 64, 3, 3)), ((64, 64, 56, 56), (64, 64, 3, 3))])
def test_pixels_of_few_channels_of_int8_are_loaded_once_for_all_taps(
    layer: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    """Tap by tap they took an H200 longer than those of 16 bits, whose patches were loaded once."""
    in_int8, in_16_bits = (
        best_offer(Layer(*layer, dtype=dtype).problem, H200) for dtype in (DType.INT8, DType.FLOAT16)
    )
    assert _kernel(in_int8).unit.entry == "convolution_wgmma_int8_64x224"
    assert in_int8.seconds < in_16_bits.seconds


def test_tf32_is_for_those_alone_who_ask_for_it() -> None:
    """Nothing, plain or fused, is offered in tf32 to a convolution whose math is strict."""
    asked = Layer((64, 256, 14, 14), (256, 256, 3, 3), TF32, DType.FLOAT32).problem
    strict = Layer((64, 256, 14, 14), (256, 256, 3, 3), {"padding": 1}, DType.FLOAT32).problem
    for direction in Direction:
        for algorithm in algorithms(direction):
            offer = algorithm.offer(replace(strict, direction=direction), H200)
            assert isinstance(offer, str) or offer.math != "tf32", algorithm.name
    fused = FusedConvolutionProblem(strict.x, strict.w, strict.y, strict.convolution)
    for algorithm in FUSED:
        offer = algorithm.offer(fused, H200)
        assert isinstance(offer, str) or offer.math != "tf32", algorithm.name
    for direction in (Direction.FORWARD, Direction.BACKWARD_DATA):
        best, exact = (best_offer(replace(problem, direction=direction), H200) for problem in (asked, strict))
        assert best.math == "tf32"
        assert best.seconds < exact.seconds / 2
    in_bf16 = Layer((64, 256, 14, 14), (256, 256, 3, 3), TF32, DType.BFLOAT16).problem
    assert best_offer(in_bf16, H200).math == "dtype"


def test_a_slice_of_channels_is_written_whole_sixteen_bytes_at_a_time() -> None:
    """What lies behind the slice, another's channels, an H200 would overwrite: its engine writes no part of 16 bytes."""
    problem = Layer(w=(104, 64, 3, 3)).problem
    assert isinstance(PLAIN.offer(problem, H200), Offer)
    y = problem.y
    narrow = TensorDescriptor(y.dtype, (y.shape[0], 100, *y.shape[2:]), y.strides)
    few = replace(problem, w=problem.w.with_shape((100, 64, 3, 3)), y=narrow)
    assert PLAIN.offer(few, H200) == "y has 100 channels; 8 are written at a time"
    x = TensorDescriptor(y.dtype, narrow.shape, y.strides)
    gradient = replace(Layer((2, 104, 14, 14), (64, 104, 3, 3)).problem, direction=Direction.BACKWARD_DATA)
    fewer = replace(gradient, x=x, w=TensorDescriptor(x.dtype, (64, 100, 3, 3), gradient.w.strides))
    assert isinstance(BACKWARD_DATA.offer(gradient, H200), Offer)
    assert BACKWARD_DATA.offer(fewer, H200) == "dx has 100 channels; 8 are written at a time"


def test_filters_of_int8_come_in_groups_whose_taps_are_evenly_spaced() -> None:
    problem = Layer(dtype=DType.INT8).problem
    w = problem.w
    assert isinstance(PLAIN.offer(problem, H200), Offer)
    few = replace(problem, w=w.with_shape((120, 64, 3, 3)), y=problem.y.with_shape((2, 120, 14, 14)))
    assert PLAIN.offer(few, H200) == "120 filters; it takes multiples of 16"
    spread = replace(problem, w=TensorDescriptor(w.dtype, w.shape, (w.strides[0] * 2, 1, 4 * 64, 64)))
    assert "needs taps that are evenly spaced" in str(PLAIN.offer(spread, H200))


@given(
    extents=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    taps=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(*[st.tuples(st.integers(0, 4), st.integers(0, 4))] * 2),
    stride=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_the_pixels_between_the_corners_are_those_of_the_output(
    extents: tuple[int, int],
    taps: tuple[int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    reach = zip(extents, taps, padding, dilation, strict=True)
    if any(extent + sum(around) < (count - 1) * step + 1 for extent, count, around, step in reach):
        return  # the filter does not fit
    settings = {"padding": padding, "stride": stride, "dilation": dilation}
    problem = Layer((2, 16, *extents), (8, 16, *taps), settings).problem
    found = images_map(problem.x, forward_window(problem), 64, 96)
    if not isinstance(found, PixelMap):
        assert taps == (1, 1)
        return
    for axis, place in ((0, 1), (1, 0)):  # rows and columns, of which the engine has columns first
        lower, upper, step = found.lower[place], found.upper[place], found.steps[place]
        span = extents[axis] + upper - lower
        assert (lower, step) == (-padding[axis][0], stride[axis])
        assert -(-span // step) == problem.y.shape[2 + axis]


def test_operands_elsewhere_have_their_maps_elsewhere() -> None:
    offer = PLAIN.offer(Layer().problem, H200)
    assert isinstance(offer, Offer)
    places = [Place(7, 16), Place(5, 32), Place(6, 48)]
    (moved,) = rewired(offer.prepare(), places)
    assert isinstance(moved, WhereAligned)
    (call,) = moved.aligned
    assert isinstance(call, KernelCall)
    assert {slot.place for slot in call.maps} == set(places)


@pytest.mark.parametrize(
    ("algorithm", "layer", "message"),
    [
        (BACKWARD_DATA, Layer(dtype=DType.FLOAT32), "x is float32"),
        (BACKWARD_DATA, Layer((2, 60, 14, 14), (128, 60, 3, 3)), "w .* strides that are multiples of 8"),
        (BACKWARD_DATA, Layer(layouts=("NHWC", "NHWC", "NCHW")), "dy .* needs neighbouring channels"),
        (BACKWARD_DATA, Layer(settings={"stride": 3}), r"strides \(3, 3\) make more than 4 phases"),
        (BACKWARD_DATA, Layer((2, 64, 14, 14), (8192, 64, 3, 3)), "sums of 73728 products; at most 65536"),
        (BACKWARD_DATA, Layer((2, 64, 500, 14), settings={"dilation": (128, 1)}), "taps 256 pixels apart"),
        (BACKWARD_FILTER, Layer((2, 64, 14), (128, 64, 3), {}), "1 spatial dimensions"),
        (BACKWARD_FILTER, Layer(w=(100, 64, 3, 3)), "dy .* pixels a multiple of 8 elements apart"),
        (BACKWARD_FILTER, Layer((2, 60, 14, 14), (128, 60, 3, 3)), "x .* strides that are multiples of 8"),
        (BACKWARD_FILTER, Layer((6000, 512, 112, 112), (512, 512, 3, 3)), "tiles; neither they nor their steps times"),
    ],
)  # fmt: skip
def test_what_the_kernels_of_gradients_do_not_suit(algorithm: CudaAlgorithm, layer: Layer, message: str) -> None:
    direction = Direction.BACKWARD_DATA if algorithm is BACKWARD_DATA else Direction.BACKWARD_FILTER
    with pytest.raises(AssertionError, match=message):
        _kernel(algorithm.offer(replace(layer.problem, direction=direction), H200))


@pytest.mark.parametrize("algorithm", [BACKWARD_DATA, BACKWARD_FILTER])
def test_gradients_are_for_one_architecture_and_one_direction(algorithm: CudaAlgorithm) -> None:
    assert {unit.architectures for unit in algorithm.units()} == {("sm_90a",)}
    assert algorithm.offer(Layer().problem, H200) == "it has no forward"


_PAIR = st.tuples(st.integers(1, 4), st.integers(1, 4))


@given(
    extents=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    taps=_PAIR,
    padding=st.tuples(*[st.tuples(st.integers(0, 4), st.integers(0, 4))] * 2),
    stride=st.sampled_from([(1, 1), (2, 2), (1, 2), (4, 1), (3, 1)]),
    dilation=_PAIR,
)
def test_phases_are_the_formula(
    extents: tuple[int, int],
    taps: tuple[int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    """Each place of dx is that of one phase, and gets from dy, tap by tap, what the formula says."""
    reach = zip(extents, taps, padding, dilation, strict=True)
    if any(extent + sum(around) < (count - 1) * step + 1 for extent, count, around, step in reach):
        return  # the filter does not fit
    settings = {"padding": padding, "stride": stride, "dilation": dilation}
    problem = replace(Layer((1, 8, *extents), (8, 8, *taps), settings).problem, direction=Direction.BACKWARD_DATA)
    expected = {
        (h, w): {
            (r, s): (
                (h + padding[0][0] - r * dilation[0]) // stride[0],
                (w + padding[1][0] - s * dilation[1]) // stride[1],
            )
            for r, s in itertools.product(*map(range, taps))
            if (h + padding[0][0] - r * dilation[0]) % stride[0]
            == (w + padding[1][0] - s * dilation[1]) % stride[1]
            == 0
        }
        for h, w in itertools.product(*map(range, extents))
    }
    found = {}
    _, _, of_h, of_w = problem.x.strides
    for phase in phases(problem):
        is_empty = phase.slabs[0] > 0
        first = divmod(phase.y_offset_bytes // 2, of_h) if extents[0] > 1 else (0, phase.y_offset_bytes // 2)
        for i, j in itertools.product(*map(range, phase.window.outputs)):
            place = (first[0] + i * stride[0], first[1] // of_w + j * stride[1])
            assert place not in found
            found[place] = (
                {}
                if is_empty
                else {
                    (phase.first_tap[0] + a * phase.next_tap[0], phase.first_tap[1] + b * phase.next_tap[1]): (
                        phase.window.first[0] + i + a * phase.dilation[0],
                        phase.window.first[1] + j + b * phase.dilation[1],
                    )
                    for a, b in itertools.product(*map(range, phase.taps))
                }
            )
    assert found == expected


@pytest.mark.parametrize(
    ("layer", "tile"),
    [
        (Layer((64, 64, 56, 56), (64, 64, 3, 3)), "64x576"),
        (Layer((64, 128, 28, 28), (128, 128, 3, 3)), "128x192"),
        (Layer((64, 256, 14, 14), (256, 256, 3, 3)), "128x192"),
        (Layer((64, 64, 56, 56), (256, 64, 1, 1), {}), "128x64"),
        (Layer((64, 256, 56, 56), (64, 256, 1, 1), {}), "64x256"),
        (Layer((64, 1024, 14, 14), (256, 1024, 1, 1), {}), "128x128"),
        (Layer((64, 256, 14, 14), (1024, 256, 1, 1), {}), "64x256"),
        (Layer((64, 256, 56, 56), (512, 256, 1, 1), {"stride": 2}), "64x256"),
    ],
)
def test_the_tile_of_dw_is_the_one_that_an_h200_was_seen_to_be_fastest_with(layer: Layer, tile: str) -> None:
    problem = replace(layer.problem, direction=Direction.BACKWARD_FILTER)
    entry = _kernel(BACKWARD_FILTER.offer(problem, H200)).unit.entry
    assert entry == f"convolution_wgmma_backward_filter_float16_{tile}"


@pytest.mark.parametrize(
    ("layer", "blocks"),
    [
        (Layer((128, 128, 32, 32), (128, 128, 9, 9), {}), 108),
        (Layer((128, 384, 13, 13), (384, 384, 3, 3), {}), 108),
        (Layer((32, 512, 28, 28), (512, 512, 3, 3)), 132),
        (Layer((64, 256, 14, 14), (256, 256, 3, 3)), 132),
    ],
)
def test_blocks_stay_in_step_where_that_was_seen_to_be_worth_idle_multiprocessors(layer: Layer, blocks: int) -> None:
    problem = replace(layer.problem, direction=Direction.BACKWARD_FILTER)
    assert _kernel(BACKWARD_FILTER.offer(problem, H200)).grid == (blocks, 1, 1)


@pytest.mark.parametrize(
    "layer", [Layer((1, 256, 14, 14), (256, 256, 3, 3)), Layer((1, 2048, 7, 7), (512, 2048, 1, 1), {})]
)
def test_a_batch_of_one_is_for_the_kernel_that_an_h200_was_seen_to_be_fastest_with(layer: Layer) -> None:
    problem = replace(layer.problem, direction=Direction.BACKWARD_FILTER)
    found = [(each.offer(problem, H200), each.name) for each in algorithms(Direction.BACKWARD_FILTER)]
    assert min((offer.seconds, name) for offer, name in found if isinstance(offer, Offer))[1] == "implicit_gemm_wgmma"


@pytest.mark.parametrize(
    "layer", [Layer((128, 64, 64, 64), (128, 64, 9, 9), {}), Layer((256, 64, 224, 224), (64, 64, 3, 3))]
)
def test_sums_that_would_be_too_long_are_shared_by_more_blocks_than_multiprocessors(layer: Layer) -> None:
    problem = replace(layer.problem, direction=Direction.BACKWARD_FILTER)
    found = [schedule for tile in TILES for schedule in Schedule.of(problem, tile, H200)]
    assert any(schedule.blocks > H200.multiprocessors for schedule in found)
    assert all(min(schedule.longest, schedule.steps) * schedule.tile.pixels <= LONGEST_SUM for schedule in found)


def test_parts_are_added_by_a_kernel_that_starts_early() -> None:
    problem = replace(Layer((64, 64, 56, 56), (64, 64, 3, 3)).problem, direction=Direction.BACKWARD_FILTER)
    offer = BACKWARD_FILTER.offer(problem, H200)
    assert isinstance(offer, Offer)
    (choice,) = offer.prepare()
    assert isinstance(choice, WhereAligned)
    assert [isinstance(call, KernelCall) and call.starts_early for call in choice.aligned] == [True, True]
