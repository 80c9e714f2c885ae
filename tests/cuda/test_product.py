"""The index arithmetic of the GEMM core: products are evaluated as the kernels would."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from dnncore.backend import Offer, Stream
from dnncore.cuda.convolution.plain import algorithms
from dnncore.cuda.convolution.product import convolution_outline, convolution_product
from dnncore.cuda.gemm import PrecomputedGemm, SplitGemm, TiledGemm
from dnncore.cuda.gemm.index_space import Digit, Phase, Product, simplified
from dnncore.cuda.gemm.params import make_params
from dnncore.cuda.gemm.vectors import vector_walks
from dnncore.cuda.matmul import matmul_product
from dnncore.descriptors import ConvolutionDescriptor, Layout
from dnncore.figures import CPU
from dnncore.problems import Direction
from dnncore.reference import convolution as reference
from tests.cuda.products import GEOMETRIES, matmul_of, offsets_of, problem_of, product_of, refused


def _coordinates(digits: tuple[Digit, ...], count: int, axis: int) -> np.ndarray:
    return offsets_of(tuple(digit._replace(b_stride=digit.steps[axis]) for digit in digits), count, "b_stride")


def _evaluate(product: Product, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Compute what the kernels do, over flat arrays; returns how often each element of c was written."""
    written = np.zeros(c.size, int)
    for phase in product.phases:
        for group in range(product.groups):
            k, columns = phase.reduction_length, phase.num_columns
            rows = np.arange(product.rows)[:, None]
            a_at = phase.a_offset + group * product.a_group_stride + rows * product.a_row_stride
            b_at = phase.b_offset + group * product.b_group_stride + offsets_of(phase.column, columns, "b_stride")
            at = b_at + offsets_of(phase.reduction, k, "b_stride")[:, None]
            inside = np.ones(at.shape, bool)
            for axis, bound in enumerate(product.bounds):
                place = phase.first[axis] + _coordinates(phase.column, columns, axis)
                place = place + _coordinates(phase.reduction, k, axis)[:, None]
                inside &= (place >= 0) & (place < bound)
            gathered = np.where(inside, b[np.where(inside, at, 0)], 0.0) if at.size else np.zeros(at.shape)
            sums = a[a_at + offsets_of(phase.reduction, k, "other_stride")] @ gathered
            c_at = phase.c_offset + group * product.c_group_stride + rows * product.c_row_stride
            c_at = c_at + offsets_of(phase.column, columns, "other_stride")
            c[c_at] = sums
            written[c_at] += 1
    return written


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_product_is_the_convolution_and_writes_each_output_once(
    geometry: str, direction: Direction, layout: Layout
) -> None:
    x, w, options = GEOMETRIES[geometry]
    conv = ConvolutionDescriptor.make(len(x) - 2, **options)
    problem = problem_of(direction, x, w, conv, "float64", layout)
    product = convolution_product(problem)
    assert isinstance(product, Product)
    rng = np.random.default_rng(7)
    inputs = [rng.standard_normal(d.size) for d in problem.inputs]
    (output,) = problem.outputs
    expected, got = np.full(output.size, np.nan), np.full(output.size, np.nan)
    offer = reference.EXACT[direction][-1].offer(problem, CPU)
    assert isinstance(offer, Offer)
    operands = [operand.view(np.uint8) for operand in (*inputs, expected)]
    offer.prepare().bind()(cast(Stream, None), 1.0, 0.0, [*operands, None])

    a, b = (inputs[product.inputs.index(name)] for name in ("a", "b"))
    written = _evaluate(product, a, b, got)

    assert (written == 1).all()
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


_SHAPES = {
    **GEOMETRIES,
    "vectors": ((8, 16, 8, 16), (8, 16, 3, 3), {"padding": 1}),
    "vectors without padding": ((8, 16, 10, 18), (8, 16, 3, 1), {}),
    "vectors of one tap": ((8, 16, 8, 16), (8, 16, 1, 1), {}),
    "vectors of a tap for each place": ((8, 16, 16, 32), (8, 16, 2, 2), {"stride": 2}),
    "vectors of distant taps": ((8, 16, 24, 24), (8, 16, 3, 3), {"dilation": 8}),
}


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("geometry", _SHAPES)
def test_an_outline_has_the_products_extents_and_knows_its_vectors(
    geometry: str, direction: Direction, dtype: str, layout: Layout
) -> None:
    x, w, options = _SHAPES[geometry]
    problem = problem_of(direction, x, w, ConvolutionDescriptor.make(len(x) - 2, **options), dtype, layout)
    product, outline = convolution_product(problem), convolution_outline(problem)
    assert isinstance(product, Product)
    if outline is None:
        assert not (problem.x.size and problem.w.size and problem.y.size)
        return
    assert outline.extents._replace(phases=()) == product.extents._replace(phases=())
    assert sorted(outline.extents.phases) == sorted(product.extents.phases)
    assert outline.may_read_vectors or vector_walks(product) is None


def test_some_of_these_read_vectors() -> None:
    """Else the test before would not say much."""
    problems = (
        problem_of(direction, x, w, ConvolutionDescriptor.make(len(x) - 2, **options), "float16", layout)
        for x, w, options in _SHAPES.values()
        for direction in Direction
        for layout in Layout
    )
    found = [
        vector_walks(product) for problem in problems if isinstance(product := convolution_product(problem), Product)
    ]
    assert len(found) - found.count(None) > 10


def test_what_is_no_product_has_no_outline() -> None:
    problem = problem_of(Direction.FORWARD, (1, 8, 8, 8), (8, 1, 3, 3), ConvolutionDescriptor.make(groups=8), "float32")
    assert isinstance(convolution_product(problem), str)
    assert convolution_outline(problem) is None


def test_strided_backward_data_multiplies_no_zeros() -> None:
    conv = ConvolutionDescriptor.make(stride=2, padding=1)
    product = product_of(Direction.BACKWARD_DATA, (1, 4, 8, 8), (4, 4, 3, 3), conv)
    assert sorted(phase.reduction_length for phase in product.phases) == [4 * 1, 4 * 2, 4 * 2, 4 * 4]


def test_unpadded_convolution_keeps_no_coordinates() -> None:
    conv = ConvolutionDescriptor.make(stride=2)
    assert product_of(Direction.FORWARD, (1, 4, 9, 9), (4, 4, 3, 3), conv).bounds == ()


def test_1x1_convolution_has_one_digit_for_its_places() -> None:
    product = product_of(Direction.FORWARD, (2, 4, 6, 5), (4, 4, 1, 1), ConvolutionDescriptor.make())
    (phase,) = product.phases
    assert [digit.extent for digit in phase.column] == [30, 2]
    assert [digit.extent for digit in phase.reduction] == [4]


def test_digits_that_are_contiguous_in_only_one_operand_stay_apart() -> None:
    assert len(simplified([Digit(3, 4, 4), Digit(4, 1, 1)])) == 1
    assert len(simplified([Digit(3, 4, 5), Digit(4, 1, 1)])) == 2
    assert len(simplified([Digit(3, 4, 4, (1,)), Digit(4, 1, 1, (0,))])) == 2


@pytest.mark.parametrize("extent", [1, 2, 3, 5, 7, 49, 127, 128, 129, 3136, 50176, 2**16 + 1, 2**30 - 1, 2**31 - 1])
def test_magic_division_is_exact(extent: int) -> None:
    digits = (Digit(extent, 1, 1),)
    product = replace(matmul_product(matmul_of(1, 1, 1)), phases=(Phase(digits, (), extent, 0),))
    record = make_params(product, product.phases, 64, 64)["phase"][0]["column"][0]
    rng = np.random.default_rng(extent)
    edges = [n for m in (0, 1, 2, (2**31 - 1) // extent) for n in (m * extent - 1, m * extent, m * extent + 1)]
    for n in (*edges, *rng.integers(0, 2**31, 2000).tolist(), 2**31 - 1):
        if 0 <= n < 2**31:
            assert (n * int(record["magic"])) >> int(record["shift"]) == n // extent
    assert int(record["magic"]) < 2**32


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("stride", [1, 2])
def test_a_step_between_columns_is_that_between_their_places_in_c(
    direction: Direction, layout: Layout, stride: int
) -> None:
    conv = ConvolutionDescriptor.make(padding=1, stride=stride)
    product = product_of(direction, (2, 8, 6, 5), (4, 8, 3, 2), conv, layout)
    records = make_params(product, product.phases, 64, 64)["phase"]
    steps = [int(record["c_column_step"]) for record, _ in zip(records, product.phases, strict=False)]
    for step, phase in zip(steps, product.phases, strict=True):
        places = offsets_of(phase.column, phase.num_columns, "other_stride")
        assert (step != 0) == (len(set(np.diff(places).tolist())) <= 1)
        assert step == 0 or np.array_equal(places, step * np.arange(phase.num_columns))
    if direction is Direction.FORWARD:
        assert steps == [{Layout.NCHW: 0, Layout.NHWC: 4, Layout.CHWN: 1}[layout]]


@pytest.mark.parametrize(("padding", "stride", "dilation"), [(2**40, 2**39, 1), (2**62, 2**61, 1), (2**35, 1, 2**35)])
@pytest.mark.parametrize("direction", list(Direction))
def test_padding_too_wide_for_the_kernels_is_a_reason(
    direction: Direction, padding: int, stride: int, dilation: int
) -> None:
    filters = 1 if padding == 2**62 else 3
    conv = ConvolutionDescriptor.make(padding=[(padding, padding)] * 2, stride=stride, dilation=dilation)
    problem = problem_of(direction, (1, 4, 4, 4), (4, 4, filters, filters), conv)
    for algorithm in algorithms(direction):
        if isinstance(algorithm, (TiledGemm, SplitGemm, PrecomputedGemm)):
            assert "at most" in refused(algorithm, problem)


def test_padding_that_the_kernels_can_hold_is_none() -> None:
    conv = ConvolutionDescriptor.make(1, padding=2**29, stride=2**28)
    problem = problem_of(Direction.FORWARD, (1, 4, 8), (4, 4, 3), conv)
    product = convolution_product(problem)
    assert isinstance(product, Product)
    assert product.why_not_tiled() is None
    assert make_params(product, product.phases, 64, 64)["phase"][0]["first"][0] == -(2**29)
