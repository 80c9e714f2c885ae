"""What the cases of all algorithms do not show of Winograd: the matrices behind its error factors, and batches taken in parts."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dnncore import Handle
from dnncore.backend import Offer
from dnncore.cuda.convolution import winograd_nonfused
from dnncore.cuda.convolution.winograd import WINOGRAD, WINOGRAD_4X4, FusedWinograd
from dnncore.cuda.convolution.winograd_error import F2, F4, Filtering
from dnncore.cuda.convolution.winograd_nonfused import WINOGRAD_NONFUSED, WINOGRAD_NONFUSED_2X2, NonfusedWinograd
from dnncore.cuda.params import FLOATING
from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import H200
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import check

FILTERINGS = pytest.mark.parametrize("filtering", [F2, F4], ids=["F2", "F4"])


def _times(matrix: tuple[tuple[Fraction, ...], ...], vector: list[Fraction]) -> list[Fraction]:
    return [sum((a * b for a, b in zip(row, vector, strict=True)), start=Fraction(0)) for row in matrix]


def _primes(count: int) -> list[Fraction]:
    return [Fraction(p) for p in (2, 3, 5, 7, 11, 13)[:count]]


@FILTERINGS
def test_a_tile_is_the_correlation_of_inputs_and_filter(filtering: Filtering) -> None:
    filter_, inputs = _primes(filtering.taps)[::-1], _primes(filtering.outputs + filtering.taps - 1)
    points = zip(_times(filtering.filter_matrix(), filter_), _times(filtering.input_matrix(), inputs), strict=True)
    found = _times(filtering.output_matrix(), [u * v for u, v in points])
    assert found == [sum(g * inputs[i + r] for r, g in enumerate(filter_)) for i in range(filtering.outputs)]


@FILTERINGS
def test_the_adjoint_is_the_correlation_of_inputs_and_gradient(filtering: Filtering) -> None:
    gradient, inputs = _primes(filtering.outputs)[::-1], _primes(filtering.outputs + filtering.taps - 1)
    transposed = tuple(zip(*filtering.output_matrix(), strict=True))
    points = zip(_times(transposed, gradient), _times(filtering.input_matrix(), inputs), strict=True)
    found = _times(tuple(zip(*filtering.filter_matrix(), strict=True)), [t * v for t, v in points])
    assert found == [sum(e * inputs[i + r] for i, e in enumerate(gradient)) for r in range(filtering.taps)]


def _problem(
    direction: Direction, x: tuple[int, ...], filters: int, dtype: DType = DType.FLOAT32
) -> ConvolutionProblem:
    conv, w = ConvolutionDescriptor.make(padding=1), (filters, x[1], 3, 3)
    x_, w_, y_ = (TensorDescriptor.packed(shape, dtype) for shape in (x, w, conv.output_shape(x, w)))
    return ConvolutionProblem(direction, x_, w_, y_, conv)


def _offer(algorithm: FusedWinograd | NonfusedWinograd, problem: ConvolutionProblem) -> Offer:
    offer = algorithm.offer(problem, H200)
    assert isinstance(offer, Offer), offer
    return offer


def test_smaller_tiles_and_better_points_mean_smaller_errors() -> None:
    usual = Filtering(4, 3, tuple(Fraction(point) for point in (0, 1, -1, 2, -2)))
    assert 1 < F2.forward_factor() < F4.forward_factor() < usual.forward_factor() / 3
    assert F4.filter_gradient_factor() < usual.filter_gradient_factor() / 3

    def factor(algorithm: FusedWinograd | NonfusedWinograd) -> float:
        found = _offer(algorithm, _problem(Direction.FORWARD, (1, 3, 8, 8), 4)).error_factor
        assert found is not None
        return found

    assert 1 < factor(WINOGRAD) < factor(WINOGRAD_4X4) / 4
    assert 1 < factor(WINOGRAD_NONFUSED_2X2) < factor(WINOGRAD_NONFUSED) / 4


@pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.value)
def test_small_tiles_are_taken_to_be_faster_only_where_large_ones_are_half_empty(direction: Direction) -> None:
    def first(image: tuple[int, int]) -> str:
        problem = _problem(direction, (64, 256, *image), 256)
        return min((WINOGRAD_NONFUSED, WINOGRAD_NONFUSED_2X2), key=lambda each: _offer(each, problem).seconds).name

    assert [first(image) for image in ((2, 28), (28, 2), (1, 1))] == ["winograd_nonfused_2x2"] * 3
    assert [first(image) for image in ((3, 28), (7, 7), (56, 56))] == ["winograd_nonfused"] * 3


def test_fused_kernels_have_no_gradient_of_the_filter() -> None:
    for algorithm in (WINOGRAD, WINOGRAD_4X4):
        offers = {direction: algorithm.offer(_problem(direction, (1, 3, 8, 8), 4), H200) for direction in Direction}
        assert isinstance(offers[Direction.FORWARD], Offer)
        assert isinstance(offers[Direction.BACKWARD_DATA], Offer)
        assert offers[Direction.BACKWARD_FILTER] == "it has no backward-filter"


@pytest.mark.parametrize("dtype", FLOATING, ids=lambda dtype: dtype.value)
def test_fused_large_tiles_are_for_all_but_float64(dtype: DType) -> None:
    offer = WINOGRAD_4X4.offer(_problem(Direction.FORWARD, (1, 3, 8, 8), 4, dtype), H200)
    if dtype is DType.FLOAT64:
        assert offer == "a block's 36864 sums in float64 do not fit the registers of a multiprocessor"
    else:
        assert isinstance(offer, Offer)
    assert len(WINOGRAD_4X4.units()) == 3


@pytest.mark.cuda
@pytest.mark.parametrize("images", [1, 2, 3])
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("algorithm", [WINOGRAD_NONFUSED, WINOGRAD_NONFUSED_2X2], ids=lambda algorithm: algorithm.name)
def test_a_batch_in_parts_gives_what_the_whole_gives(
    algorithm: NonfusedWinograd, direction: Direction, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = _problem(direction, (5, 6, 7, 6), 8)
    tile = algorithm.filtering.outputs
    tiles, points = -(-7 // tile) * -(-6 // tile), algorithm.filtering.tile_points
    whole = _offer(algorithm, problem).workspace_bytes
    monkeypatch.setattr(winograd_nonfused, "_MOST_BYTES", images * points * tiles * (6 + 8) * 4 + 1024)
    assert _offer(algorithm, problem).workspace_bytes < whole
    with Handle(CUDA_DEVICES[0]) as handle:
        check(handle, Case("parts", problem, alpha=0.5, beta=-2.0), algorithm.name)
        if direction is Direction.FORWARD:
            x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
            fused = FusedConvolutionProblem(x, w, y, conv, z=y, activation=ActivationDescriptor.make("relu"))
            check(handle, Case("fused-parts", fused, beta=1.0), algorithm.name)
