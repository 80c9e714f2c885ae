"""The index arithmetic, tiles and splits of the GEMM core, in Python alone: products are evaluated as the kernels would."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from dnncore.backend import Stream
from dnncore.cuda.convolution import algorithms
from dnncore.cuda.convolution.fused import FUSED
from dnncore.cuda.convolution.fused_product import fused_product
from dnncore.cuda.convolution.product import convolution_product
from dnncore.cuda.gemm.algorithm import SplitGemm, batches
from dnncore.cuda.gemm.index_space import Digit, Phase, Product, simplified
from dnncore.cuda.gemm.kernel import TABLE_ENTRY_BYTES, choose_variant, tiles_for, variants
from dnncore.cuda.gemm.params import Store, choose_store, make_params
from dnncore.cuda.gemm.tiling import EXTENDED_TILES, LONGEST_SUM, TILES, Schedule, Walk, choose_schedule, choose_walks
from dnncore.cuda.gemm.vectors import vector_walks
from dnncore.cuda.matmul import matmul_product
from dnncore.descriptors import ConvolutionDescriptor, Layout, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem, MatmulProblem
from dnncore.reference import convolution as reference

Shape = tuple[int, ...]

NO_DEVICE: Any = None
"""What these algorithms support does not depend on the device."""


def _problem(
    direction: Direction,
    x: Shape,
    w: Shape,
    conv: ConvolutionDescriptor,
    dtype: str = "float32",
    layout: Layout | str = "NCHW",
) -> ConvolutionProblem:
    y = conv.output_shape(x, w)
    tensors = [TensorDescriptor.packed(shape, dtype, layout) for shape in (x, w, y)]
    return ConvolutionProblem(direction, tensors[0], tensors[1], tensors[2], conv)


def _product(
    direction: Direction, x: Shape, w: Shape, conv: ConvolutionDescriptor, layout: Layout | str = "NCHW"
) -> Product:
    product = convolution_product(_problem(direction, x, w, conv, layout=layout))
    assert isinstance(product, Product), product
    return product


def _matmul(m: int, n: int, k: int) -> MatmulProblem:
    return MatmulProblem(
        TensorDescriptor.packed((m, k)), TensorDescriptor.packed((k, n)), TensorDescriptor.packed((m, n))
    )


def _offsets(digits: tuple[Digit, ...], count: int, stride: str) -> np.ndarray:
    numbers, total = np.arange(count), np.zeros(count, int)
    for digit in digits:
        total += numbers % digit.extent * getattr(digit, stride)
        numbers //= digit.extent
    return total


def _coordinates(digits: tuple[Digit, ...], count: int, axis: int) -> np.ndarray:
    return _offsets(tuple(replace(digit, b_stride=digit.steps[axis]) for digit in digits), count, "b_stride")


def _evaluate(product: Product, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Compute what the kernels do, over flat arrays; returns how often each element of c was written."""
    written = np.zeros(c.size, int)
    for phase in product.phases:
        for group in range(product.groups):
            k, columns = phase.reduction_length, phase.num_columns
            rows = np.arange(product.rows)[:, None]
            a_at = phase.a_offset + group * product.a_group_stride + rows * product.a_row_stride
            b_at = phase.b_offset + group * product.b_group_stride + _offsets(phase.column, columns, "b_stride")
            at = b_at + _offsets(phase.reduction, k, "b_stride")[:, None]
            inside = np.ones(at.shape, bool)
            for axis, bound in enumerate(product.bounds):
                place = phase.first[axis] + _coordinates(phase.column, columns, axis)
                place = place + _coordinates(phase.reduction, k, axis)[:, None]
                inside &= (place >= 0) & (place < bound)
            gathered = np.where(inside, b[np.where(inside, at, 0)], 0.0) if at.size else np.zeros(at.shape)
            sums = a[a_at + _offsets(phase.reduction, k, "other_stride")] @ gathered
            c_at = phase.c_offset + group * product.c_group_stride + rows * product.c_row_stride
            c_at = c_at + _offsets(phase.column, columns, "other_stride")
            c[c_at] = sums
            written[c_at] += 1
    return written


GEOMETRIES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "padded": ((2, 3, 7, 9), (5, 3, 3, 3), {"padding": 1}),
    "1x1": ((2, 5, 4, 6), (4, 5, 1, 1), {}),
    "strided": ((1, 4, 9, 7), (6, 4, 3, 2), {"padding": [(1, 0), (2, 1)], "stride": 2}),
    "grouped, dilated": ((2, 8, 6, 5), (8, 4, 3, 3), {"groups": 2, "padding": 2, "dilation": 2}),
    "rotated": ((1, 3, 11, 13), (4, 3, 5, 3), {"stride": [3, 2], "padding": [(2, 4), (0, 1)], "mode": "convolution"}),
    "1-d, stride and dilation share a factor": (
        (3, 4, 17),
        (5, 4, 4),
        {"padding": [(3, 1)], "stride": 4, "dilation": 2},
    ),
    "3-d": ((1, 2, 5, 6, 4), (3, 2, 3, 2, 3), {"padding": [1, 0, 1], "stride": [1, 2, 1], "mode": "convolution"}),
    "stride beyond the input": ((1, 2, 4, 9), (3, 2, 2, 2), {"stride": [6, 3], "padding": 1}),
    "padding wider than the input": ((2, 3, 2, 2), (4, 3, 3, 3), {"padding": [(3, 2), (2, 4)]}),
    "empty batch": ((0, 2, 5, 5), (3, 2, 2, 2), {}),
    "no channels": ((2, 0, 5, 5), (3, 0, 2, 2), {}),
}


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_product_is_the_convolution_and_writes_each_output_once(
    geometry: str, direction: Direction, layout: Layout
) -> None:
    x, w, options = GEOMETRIES[geometry]
    conv = ConvolutionDescriptor.make(len(x) - 2, **options)
    problem = _problem(direction, x, w, conv, "float64", layout)
    product = convolution_product(problem)
    assert isinstance(product, Product)
    rng = np.random.default_rng(7)
    inputs = [rng.standard_normal(d.size) for d in problem.inputs]
    (output,) = problem.outputs
    expected, got = np.full(output.size, np.nan), np.full(output.size, np.nan)
    launch = reference.algorithms(direction)[-1].prepare(problem, None)
    launch(cast(Stream, None), 1.0, [i.view(np.uint8) for i in inputs], 0.0, [expected.view(np.uint8)], None)

    a, b = (inputs[product.inputs.index(name)] for name in ("a", "b"))
    written = _evaluate(product, a, b, got)

    assert (written == 1).all()
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_strided_backward_data_multiplies_no_zeros() -> None:
    conv = ConvolutionDescriptor.make(stride=2, padding=1)
    product = _product(Direction.BACKWARD_DATA, (1, 4, 8, 8), (4, 4, 3, 3), conv)
    assert sorted(phase.reduction_length for phase in product.phases) == [4 * 1, 4 * 2, 4 * 2, 4 * 4]


def test_unpadded_convolution_keeps_no_coordinates() -> None:
    conv = ConvolutionDescriptor.make(stride=2)
    assert _product(Direction.FORWARD, (1, 4, 9, 9), (4, 4, 3, 3), conv).bounds == ()


def test_1x1_convolution_has_one_digit_for_its_places() -> None:
    product = _product(Direction.FORWARD, (2, 4, 6, 5), (4, 4, 1, 1), ConvolutionDescriptor.make())
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
    product = replace(matmul_product(_matmul(1, 1, 1)), phases=(Phase(digits, (), extent, 0),))
    record = make_params(product, product.phases, 64, 64)["phase"][0]["column"][0]
    rng = np.random.default_rng(extent)
    edges = [n for m in (0, 1, 2, (2**31 - 1) // extent) for n in (m * extent - 1, m * extent, m * extent + 1)]
    for n in (*edges, *rng.integers(0, 2**31, 2000).tolist(), 2**31 - 1):
        if 0 <= n < 2**31:
            assert (n * int(record["magic"])) >> int(record["shift"]) == n // extent
    assert int(record["magic"]) < 2**32


def _schedule(problem: MatmulProblem, *, split: bool = False) -> Schedule:
    product = matmul_product(problem)
    return choose_schedule(product, tiles_for(product), split=split)


def test_large_products_take_the_largest_tile_and_small_ones_do_not() -> None:
    assert _schedule(_matmul(8192, 8192, 64)).tile == TILES[DType.FLOAT32][0]
    assert _schedule(_matmul(64, 100_000, 64)).tile.rows == 64
    small = _schedule(_matmul(20, 600, 25)).tile
    assert (small.rows, small.columns) == (32, 64)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 576, 200_000), (1, 10, 7000), (32, 800, 10_000), (256, 196, 2304)])
def test_products_with_few_tiles_are_split_into_parts_that_are_not_too_short(m: int, n: int, k: int) -> None:
    whole, split = _schedule(_matmul(m, n, k)), _schedule(_matmul(m, n, k), split=True)
    assert split.splits > 1
    assert split.seconds < whole.seconds
    assert split.split_length >= 128


@pytest.mark.parametrize("k", [1, 127, 1000, 4097, 70_001])
def test_parts_cover_the_reduction_without_an_empty_one(k: int) -> None:
    schedule = _schedule(_matmul(40, 50, k), split=True)
    assert (schedule.splits - 1) * schedule.split_length < k <= schedule.splits * schedule.split_length
    assert schedule.split_length % schedule.tile.depth == 0


def test_products_that_fill_the_device_are_not_split() -> None:
    problem = _matmul(4096, 4096, 4096)
    reason = SplitGemm("split", matmul_product).supports(problem, None)
    assert reason is not None
    assert "512 tiles of 4096 summands" in reason


def test_sums_are_split_when_they_would_grow_too_long_for_their_accumulator() -> None:
    problem = _matmul(4096, 4096, 1 << 20)
    assert SplitGemm("split", matmul_product).supports(problem, None) is None
    assert _schedule(problem, split=True).split_length <= LONGEST_SUM


def test_workspace_holds_each_part_once() -> None:
    split = SplitGemm("split", matmul_product)
    problem = _matmul(64, 100, 4096)
    assert split.supports(problem, None) is None
    assert split.workspace_bytes(problem) % (64 * 100 * 4) == 0
    assert split.workspace_bytes(problem) >= 2 * 64 * 100 * 4


def test_empty_and_short_products_are_not_split() -> None:
    for shape in ((0, 5, 1000), (5, 0, 1000), (5, 5, 0), (5, 5, 200)):
        assert SplitGemm("split", matmul_product).supports(_matmul(*shape), None) is not None


@pytest.mark.parametrize(("layout", "walk"), [("NCHW", Walk.OUTER), ("NHWC", Walk.REDUCTION)])
def test_neighbouring_threads_follow_the_dense_dimension(layout: str, walk: Walk) -> None:
    conv = ConvolutionDescriptor.make(padding=1)
    assert choose_walks(_product(Direction.FORWARD, (2, 32, 14, 14), (64, 32, 3, 3), conv, layout)) == (
        Walk.REDUCTION,
        walk,
    )


ALONG, ACROSS = Walk.REDUCTION, Walk.OUTER


@pytest.mark.parametrize(
    ("dtype", "channels", "layout", "direction", "walks"),
    [
        ("float16", 16, "NHWC", Direction.FORWARD, (ALONG, ALONG)),
        ("float16", 12, "NHWC", Direction.FORWARD, None),  # 24 bytes
        ("float16", 16, "NCHW", Direction.FORWARD, None),
        ("bfloat16", 16, "NHWC", Direction.BACKWARD_DATA, (ACROSS, ALONG)),
        ("bfloat16", 12, "NHWC", Direction.BACKWARD_DATA, None),
        ("float16", 16, "NHWC", Direction.BACKWARD_FILTER, (ACROSS, ACROSS)),
        ("float16", 20, "NHWC", Direction.BACKWARD_FILTER, None),
        ("float16", 16, "CHWN", Direction.FORWARD, (ACROSS, ACROSS)),
        ("int8", 32, "NHWC", Direction.FORWARD, (ALONG, ALONG)),
        ("int8", 24, "NHWC", Direction.FORWARD, None),
        ("int8", 16, "NCHW", Direction.FORWARD, None),
        ("int8", 16, "CHWN", Direction.FORWARD, None),  # bytes are not transposed
        ("float32", 16, "NHWC", Direction.FORWARD, None),
    ],
)
def test_operands_of_16_and_8_bits_are_read_in_vectors_where_both_allow_it(
    dtype: str, channels: int, layout: str, direction: Direction, walks: tuple[Walk, Walk] | None
) -> None:
    x, w = (16, channels, 9, 7), (24, channels, 3, 3)
    product = convolution_product(_problem(direction, x, w, ConvolutionDescriptor.make(padding=1), dtype, layout))
    assert isinstance(product, Product)
    assert vector_walks(product) == walks
    for tile in tiles_for(product):
        chosen, anywhere = choose_variant(product, tile), choose_variant(product, tile, aligned=False)
        assert chosen.pipelined is (walks is not None)
        assert chosen.walks == walks or walks is None
        assert not anywhere.pipelined
        assert {chosen, anywhere} <= set(variants())


@pytest.mark.parametrize(
    ("w", "settings", "walks"),
    [
        ((24, 16, 1, 1), {"stride": 2}, (ACROSS, ALONG)),  # three of four phases add up nothing
        ((24, 16, 3, 3), {"stride": 2, "padding": 1}, (ACROSS, ALONG)),
        ((24, 8, 3, 3), {"groups": 2}, None),  # 12 filters a group
        ((32, 8, 3, 3), {"groups": 2}, (ACROSS, ALONG)),
    ],
)
def test_backward_data_reads_vectors_of_channels_and_of_filters(
    w: Shape, settings: dict[str, Any], walks: tuple[Walk, Walk] | None
) -> None:
    conv = ConvolutionDescriptor.make(**settings)
    product = convolution_product(_problem(Direction.BACKWARD_DATA, (2, 16, 9, 7), w, conv, "float16", "NHWC"))
    assert isinstance(product, Product)
    assert vector_walks(product) == walks


def test_vectors_do_not_cross_a_row_that_is_not_a_multiple_of_them() -> None:
    rows = TensorDescriptor(DType.FLOAT16, (4, 16), (20, 1))
    columns, c = TensorDescriptor.packed((8, 16), "float16").transposed(), TensorDescriptor.packed((4, 8), "float16")
    assert vector_walks(matmul_product(MatmulProblem(rows, columns, c))) is None
    dense = TensorDescriptor.packed((4, 16), "float16")
    assert vector_walks(matmul_product(MatmulProblem(dense, columns, c))) == (ALONG, ALONG)
    across = TensorDescriptor.packed((16, 8), "float16")
    assert vector_walks(matmul_product(MatmulProblem(dense, across, c))) == (ALONG, ACROSS)
    narrow = TensorDescriptor.packed((16, 4), "float16"), TensorDescriptor.packed((4, 4), "float16")
    assert vector_walks(matmul_product(MatmulProblem(dense, *narrow))) is None


def test_operands_that_are_not_aligned_have_tiles_of_their_own() -> None:
    """A launch for them has as many blocks as their tile needs."""
    product = matmul_product(
        MatmulProblem(*(TensorDescriptor.packed(shape, "float16") for shape in ((256, 64), (64, 256), (256, 256))))
    )
    (tile,) = tiles_for(product)
    assert (tile.rows, tile.columns) == (64, 128)
    forward = _problem(
        Direction.FORWARD, (8, 64, 8, 8), (256, 64, 1, 1), ConvolutionDescriptor.make(), "float16", "NHWC"
    )
    product = cast(Product, convolution_product(forward))
    large = max(tiles_for(product), key=lambda tile: tile.rows)
    anywhere = choose_variant(product, large, aligned=False).tile
    assert [(each.rows, each.columns) for each in (large, anywhere)] == [(128, 128), (64, 128)]
    assert large.depth % anywhere.depth == 0  # parts of a reduction are whole slabs of both


@pytest.mark.parametrize("direction", list(Direction))
def test_whole_vectors_are_stored_where_the_output_allows(direction: Direction) -> None:
    def store(layout: str, extent: int) -> Store:
        conv = ConvolutionDescriptor.make(padding=1)
        return choose_store(_product(direction, (2, 8, extent, extent), (8, 8, 3, 3), conv, layout))

    if direction is Direction.BACKWARD_FILTER:
        assert (store("NCHW", 8), store("NHWC", 7)) == (Store.COLUMNS, Store.COLUMNS)
    else:
        assert (store("NCHW", 6), store("NCHW", 7), store("NHWC", 7)) == (Store.COLUMNS, Store.SINGLE, Store.ROWS)


@pytest.mark.parametrize(("gap", "expected"), [(0, Store.COLUMNS), (1, Store.SINGLE), (4, Store.COLUMNS)])
def test_whole_vectors_are_not_stored_where_a_stride_misaligns_them(gap: int, expected: Store) -> None:
    a, b = TensorDescriptor.packed((6, 5)), TensorDescriptor.packed((5, 8))
    rows_apart = matmul_product(MatmulProblem(a, b, TensorDescriptor(DType.FLOAT32, (6, 8), (8 + gap, 1))))
    assert choose_store(rows_apart) is expected
    x, w = TensorDescriptor.packed((2, 3, 4, 4)), TensorDescriptor.packed((8, 3, 1, 1))
    y = TensorDescriptor(DType.FLOAT32, (2, 8, 4, 4), (128 + gap, 16, 4, 1))
    images_apart = convolution_product(ConvolutionProblem(Direction.FORWARD, x, w, y, ConvolutionDescriptor.make()))
    assert isinstance(images_apart, Product)
    assert choose_store(images_apart) is expected


def test_offsets_that_may_leave_32_bits_take_the_wide_variant() -> None:
    near = TensorDescriptor(DType.FLOAT32, (4, 4), (2**28, 1))
    far = TensorDescriptor(DType.FLOAT32, (4, 4), (2**30, 1))
    c = TensorDescriptor.packed((4, 4))
    for a, wide in ((near, False), (far, True)):
        product = matmul_product(MatmulProblem(a, c, c))
        assert choose_variant(product, choose_schedule(product, tiles_for(product)).tile).wide is wide


def _for_each_dtype(x: Shape, w: Shape, options: dict[str, Any], layout: Layout) -> Iterator[Product]:
    """Every convolution of a geometry that has columns."""
    conv = ConvolutionDescriptor.make(len(x) - 2, **options)
    for dtype in TILES:
        for direction in Direction if dtype.is_floating else (Direction.FORWARD,):
            product = convolution_product(_problem(direction, x, w, conv, dtype.value, layout))
            assert isinstance(product, Product)
            if product.num_columns:
                yield product


@pytest.mark.parametrize("layout", list(Layout))
def test_every_variant_that_is_chosen_is_among_those_that_are_built(layout: Layout) -> None:
    built = set(variants())
    assert len({variant.unit.entry for variant in built}) == len(built)
    for geometry in GEOMETRIES.values():
        for product in _for_each_dtype(*geometry, layout):
            assert choose_variant(product, choose_schedule(product, tiles_for(product)).tile) in built


@pytest.mark.parametrize("layout", list(Layout))
def test_every_extended_variant_that_is_chosen_is_among_those_that_are_built(layout: Layout) -> None:
    built = set(variants(extended=True))
    assert len({variant.unit.entry for variant in built}) == len(built)
    for geometry in GEOMETRIES.values():
        for product in _for_each_dtype(*geometry, layout):
            for tile in tiles_for(product, extended=True):
                assert choose_variant(product, tile, extended=True) in built


def _long(length: int, y: str = "int32") -> ConvolutionProblem:
    """Sums of so many products of int8."""
    x, w = (TensorDescriptor.packed((n, length, 1, 1), "int8", "NHWC") for n in (2, 3))
    return ConvolutionProblem(
        Direction.FORWARD, x, w, TensorDescriptor.packed((2, 3, 1, 1), y), ConvolutionDescriptor.make()
    )


def test_sums_of_int8_that_int32_may_not_hold_are_cut_into_parts_that_it_holds() -> None:
    whole = [a for a in algorithms(Direction.FORWARD) if a.name in ("implicit_gemm", "implicit_precomp_gemm")]
    (split,) = (a for a in algorithms(Direction.FORWARD) if a.name == "implicit_gemm_split_k")
    longest = (2**31 - 1) // (128 * 128)
    for algorithm in whole:
        assert algorithm.supports(_long(longest), NO_DEVICE) is None
        assert f"{longest + 1} products" in str(algorithm.supports(_long(longest + 1), NO_DEVICE))
    for length in (2**15, 2**16 - 1, longest + 1, 10 * longest, 2**24 + 1, 2**25 - 1):
        assert split.supports(_long(length), NO_DEVICE) is None
        product = convolution_product(_long(length))
        assert isinstance(product, Product)
        assert choose_schedule(product, tiles_for(product), split=True).split_length <= longest
    assert split.supports(_long(2**26), NO_DEVICE) is not None  # more parts than there may be


def test_parts_of_int8_are_stored_in_int32() -> None:
    product = convolution_product(_long(2**17, "float32"))
    assert isinstance(product, Product)
    assert (product.output, product.partial_sums().output) == (DType.FLOAT32, DType.INT32)


def test_sums_of_16_bit_types_are_vectors_of_fp32() -> None:
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        assert [(tile.rows, tile.columns) for tile in TILES[dtype]] == [(64, 128), (32, 64)]
        split = SplitGemm("split", matmul_product)
        tensors = [TensorDescriptor.packed(shape, dtype) for shape in ((64, 4096), (4096, 100), (64, 100))]
        nbytes = split.workspace_bytes(MatmulProblem(*tensors))
        assert nbytes
        assert nbytes % (64 * 100 * 4) == 0


@pytest.mark.parametrize(("padding", "stride", "dilation"), [(2**40, 2**39, 1), (2**62, 2**61, 1), (2**35, 1, 2**35)])
@pytest.mark.parametrize("direction", list(Direction))
def test_padding_too_wide_for_the_kernels_is_a_reason(
    direction: Direction, padding: int, stride: int, dilation: int
) -> None:
    filters = 1 if padding == 2**62 else 3
    conv = ConvolutionDescriptor.make(padding=[(padding, padding)] * 2, stride=stride, dilation=dilation)
    problem = _problem(direction, (1, 4, 4, 4), (4, 4, filters, filters), conv)
    for algorithm in algorithms(direction):
        if algorithm.name.startswith("implicit"):
            reason = algorithm.supports(problem, NO_DEVICE)
            assert reason is not None
            assert "at most" in reason


def test_padding_that_the_kernels_can_hold_is_none() -> None:
    conv = ConvolutionDescriptor.make(1, padding=2**29, stride=2**28)
    problem = _problem(Direction.FORWARD, (1, 4, 8), (4, 4, 3), conv)
    product = convolution_product(problem)
    assert isinstance(product, Product)
    assert product.why_not_tiled() is None
    assert make_params(product, product.phases, 64, 64)["phase"][0]["first"][0] == -(2**29)


@pytest.mark.parametrize("direction", list(Direction))
def test_a_table_has_an_entry_of_each_reduction_index_of_a_launch(direction: Direction) -> None:
    conv = ConvolutionDescriptor.make(stride=4, padding=1)
    problem = _problem(direction, (1, 4, 9, 9), (5, 4, 3, 3), conv)
    (precomputed,) = (a for a in algorithms(direction) if a.name == "implicit_precomp_gemm")
    assert precomputed.supports(problem, NO_DEVICE) is None
    product = convolution_product(problem)
    assert isinstance(product, Product)
    lengths = [sum(max(phase.reduction_length, 1) for phase in phases) for phases in batches(product)]
    assert len(lengths) == (2 if direction is Direction.BACKWARD_DATA else 1)
    assert precomputed.workspace_bytes(problem) == max(lengths) * TABLE_ENTRY_BYTES


@pytest.mark.parametrize(
    ("x", "w", "strides", "reason"),
    [
        ((2, 1, 4, 4, 4), (4, 1, 3, 3, 3), None, "an index of 4 digits; narrow kernels take 3"),
        ((1, 1, 4, 4, 4), (4, 1, 3, 3, 3), None, "3 coordinates in padding; narrow kernels take 2"),
        ((2, 4, 8), (4, 4, 3), (8, 2**30, 1), "offsets of more than 32 bits"),
    ],
)
def test_without_a_table_the_reason_that_applies_is_given(
    x: Shape, w: Shape, strides: Shape | None, reason: str
) -> None:
    problem = _problem(Direction.FORWARD, x, w, ConvolutionDescriptor.make(len(x) - 2, padding=1))
    if strides is not None:
        problem = replace(problem, x=replace(problem.x, strides=strides))
    (precomputed,) = (a for a in algorithms(Direction.FORWARD) if a.name == "implicit_precomp_gemm")
    assert precomputed.supports(problem, NO_DEVICE) == f"only narrow kernels read a table: {reason}"


def _fused(z: TensorDescriptor | None, y_layout: str = "NCHW") -> FusedConvolutionProblem:
    plain = _problem(Direction.FORWARD, (2, 8, 5, 5), (8, 8, 3, 3), ConvolutionDescriptor.make(padding=1))
    y = TensorDescriptor.packed(plain.y.shape, layout=y_layout)
    return FusedConvolutionProblem(plain.x, plain.w, y, plain.convolution, z=z)


def test_a_residual_that_is_laid_out_otherwise_is_composed() -> None:
    alike = TensorDescriptor.packed((2, 8, 5, 5))
    assert isinstance(fused_product(_fused(alike)), Product)
    reason = fused_product(_fused(alike, "NHWC"))
    assert isinstance(reason, str)
    assert str(alike.strides) in reason
    reasons = {a.name: a.supports(_fused(alike, "NHWC"), NO_DEVICE) for a in FUSED}
    assert [name for name, why in reasons.items() if why is None] == ["composed", "direct"]


def test_tiles_that_stage_their_sums_fit_into_static_shared_memory() -> None:
    for tiles in EXTENDED_TILES.values():
        for tile in tiles:
            assert tile.rows * (tile.columns + 1) * tile.dtype.compute.itemsize <= 48 * 1024


def test_depthwise_convolution_is_left_to_the_direct_kernel() -> None:
    conv = ConvolutionDescriptor.make(groups=6)
    reason = convolution_product(_problem(Direction.FORWARD, (1, 6, 5, 5), (6, 1, 3, 3), conv))
    assert isinstance(reason, str)
    assert "6 groups" in reason


def test_parts_are_packed_in_the_workspace() -> None:
    product = _product(Direction.FORWARD, (2, 8, 5, 5), (8, 4, 3, 3), ConvolutionDescriptor.make(groups=2), "NHWC")
    partial = product.partial_sums()
    (phase,) = partial.phases
    columns = _offsets(phase.column, phase.num_columns, "other_stride")
    assert columns.tolist() == list(range(phase.num_columns))
    assert (partial.c_row_stride, partial.c_group_stride) == (phase.num_columns, 4 * phase.num_columns)
    assert math.prod((partial.groups, partial.rows, partial.num_columns)) == 8 * 2 * 9
