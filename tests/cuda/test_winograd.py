"""What the cases of all algorithms do not show of Winograd: the matrices behind its error factors, and batches taken in parts."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dnncore import Handle
from dnncore.cuda.convolution import winograd_nonfused
from dnncore.cuda.convolution.winograd_error import F2, F4, Filtering
from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction
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


def test_smaller_tiles_and_better_points_mean_smaller_errors() -> None:
    usual = Filtering(4, 3, tuple(Fraction(point) for point in (0, 1, -1, 2, -2)))
    assert 1 < F2.forward_factor() < F4.forward_factor() < usual.forward_factor() / 3
    assert F4.filter_gradient_factor() < usual.filter_gradient_factor() / 3


@pytest.mark.cuda
@pytest.mark.parametrize("images", [1, 2, 3])
@pytest.mark.parametrize("direction", Direction)
def test_a_batch_in_parts_gives_what_the_whole_gives(
    direction: Direction, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    conv = ConvolutionDescriptor.make(padding=1)
    x, w = (TensorDescriptor.packed(shape, DType.FLOAT32) for shape in ((5, 6, 7, 6), (8, 6, 3, 3)))
    y = TensorDescriptor.packed(conv.output_shape(x.shape, w.shape), DType.FLOAT32)
    problem = ConvolutionProblem(direction, x, w, y, conv)
    tiles, channels, filters = 2 * 2, 6, 8
    whole = winograd_nonfused.WINOGRAD_NONFUSED.workspace_bytes(problem)
    monkeypatch.setattr(winograd_nonfused, "_MOST_BYTES", images * 36 * tiles * (channels + filters) * 4 + 1024)
    assert winograd_nonfused.WINOGRAD_NONFUSED.workspace_bytes(problem) < whole
    with Handle(CUDA_DEVICES[0]) as handle:
        check(handle, Case("parts", problem, alpha=0.5, beta=-2.0), "winograd_nonfused")
