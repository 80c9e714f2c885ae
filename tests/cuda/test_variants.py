"""Kernels of the GEMM core: how they walk over operands, how they store, and the tables that they read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from dnncore.cuda.convolution.plain import algorithms
from dnncore.cuda.convolution.product import convolution_product
from dnncore.cuda.gemm.algorithm import batches
from dnncore.cuda.gemm.index_space import Product
from dnncore.cuda.gemm.kernel import (
    TABLE_ENTRY_BYTES,
    choose_variant,
    clamped_variant,
    clamped_variants,
    tiles_for,
    variants,
    why_wide,
)
from dnncore.cuda.gemm.params import Store, choose_store
from dnncore.cuda.gemm.schedule import choose_schedule
from dnncore.cuda.gemm.tiling import CLAMPED_TILES, TILES, Walk, choose_walks
from dnncore.cuda.gemm.vectors import vector_walks
from dnncore.cuda.matmul import matmul_product
from dnncore.descriptors import ConvolutionDescriptor, Layout, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import H200
from dnncore.problems import ConvolutionProblem, Direction, MatmulProblem
from tests.cuda.products import GEOMETRIES, Shape, offered, problem_of, product_of, refused


@pytest.mark.parametrize(("layout", "walk"), [("NCHW", Walk.OUTER), ("NHWC", Walk.REDUCTION)])
def test_neighbouring_threads_follow_the_dense_dimension(layout: str, walk: Walk) -> None:
    conv = ConvolutionDescriptor.make(padding=1)
    assert choose_walks(product_of(Direction.FORWARD, (2, 32, 14, 14), (64, 32, 3, 3), conv, layout)) == (
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
    product = convolution_product(problem_of(direction, x, w, ConvolutionDescriptor.make(padding=1), dtype, layout))
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
    product = convolution_product(problem_of(Direction.BACKWARD_DATA, (2, 16, 9, 7), w, conv, "float16", "NHWC"))
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
    forward = problem_of(
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
        return choose_store(product_of(direction, (2, 8, extent, extent), (8, 8, 3, 3), conv, layout))

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
        assert choose_variant(product, choose_schedule(product, tiles_for(product), H200).tile).wide is wide


def _for_each_dtype(x: Shape, w: Shape, options: dict[str, Any], layout: Layout) -> Iterator[Product]:
    """Every convolution of a geometry that has columns."""
    conv = ConvolutionDescriptor.make(len(x) - 2, **options)
    for dtype in TILES:
        for direction in Direction if dtype.is_floating else (Direction.FORWARD,):
            product = convolution_product(problem_of(direction, x, w, conv, dtype.value, layout))
            assert isinstance(product, Product)
            if product.num_columns:
                yield product


@pytest.mark.parametrize("layout", list(Layout))
def test_every_variant_that_is_chosen_is_among_those_that_are_built(layout: Layout) -> None:
    built = set(variants())
    assert len({variant.unit.entry for variant in built}) == len(built)
    for geometry in GEOMETRIES.values():
        for product in _for_each_dtype(*geometry, layout):
            assert choose_variant(product, choose_schedule(product, tiles_for(product), H200).tile) in built


@pytest.mark.parametrize("layout", list(Layout))
def test_every_extended_variant_that_is_chosen_is_among_those_that_are_built(layout: Layout) -> None:
    built = set(variants(extended=True))
    assert len({variant.unit.entry for variant in built}) == len(built)
    for geometry in GEOMETRIES.values():
        for product in _for_each_dtype(*geometry, layout):
            for tile in tiles_for(product, extended=True):
                assert choose_variant(product, tile, extended=True) in built


@pytest.mark.parametrize("layout", list(Layout))
def test_every_clamped_variant_that_is_chosen_is_among_those_that_are_built(layout: Layout) -> None:
    built = set(clamped_variants())
    assert len({variant.unit.entry for variant in built}) == len(built)
    for geometry in GEOMETRIES.values():
        for product in _for_each_dtype(*geometry, layout):
            for tile in () if why_wide(product) else CLAMPED_TILES.get(product.dtype, ()):
                assert clamped_variant(product, tile) in built
                assert not tile.joins or clamped_variant(product, tile, joined=True) in built


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("layout", list(Layout))
def test_every_joined_variant_that_is_chosen_is_among_those_that_are_built(layout: Layout, *, extended: bool) -> None:
    built = set(variants(extended=extended, joined=True))
    assert len({variant.unit.entry for variant in built}) == len(built)
    for geometry in GEOMETRIES.values():
        for product in _for_each_dtype(*geometry, layout):
            for tile in tiles_for(product, extended=extended):
                for aligned in (False, True) if tile.joins else ():
                    assert choose_variant(product, tile, extended=extended, joined=True, aligned=aligned) in built


@pytest.mark.parametrize("direction", list(Direction))
def test_a_table_has_an_entry_of_each_reduction_index_of_a_launch(direction: Direction) -> None:
    conv = ConvolutionDescriptor.make(stride=4, padding=1)
    problem = problem_of(direction, (1, 4, 9, 9), (5, 4, 3, 3), conv)
    (precomputed,) = (a for a in algorithms(direction) if a.name == "implicit_precomp_gemm")
    product = convolution_product(problem)
    assert isinstance(product, Product)
    lengths = [sum(max(phase.reduction_length, 1) for phase in phases) for phases in batches(product)]
    assert len(lengths) == (2 if direction is Direction.BACKWARD_DATA else 1)
    assert offered(precomputed, problem).workspace_bytes == max(lengths) * TABLE_ENTRY_BYTES


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
    problem = problem_of(Direction.FORWARD, x, w, ConvolutionDescriptor.make(len(x) - 2, padding=1))
    if strides is not None:
        problem = replace(problem, x=replace(problem.x, strides=strides))
    (precomputed,) = (a for a in algorithms(Direction.FORWARD) if a.name == "implicit_precomp_gemm")
    assert refused(precomputed, problem) == f"only narrow kernels read a table: {reason}"
