"""Tiles and splits of the GEMM core: what is chosen, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dnncore.backend import Offer
from dnncore.cuda.convolution.fused import FUSED
from dnncore.cuda.convolution.fused_product import fused_product
from dnncore.cuda.convolution.plain import algorithms
from dnncore.cuda.convolution.product import convolution_product
from dnncore.cuda.gemm.algorithm import SplitGemm, TiledGemm
from dnncore.cuda.gemm.index_space import Product
from dnncore.cuda.gemm.kernel import tiles_for
from dnncore.cuda.gemm.precomputed import PrecomputedGemm
from dnncore.cuda.gemm.schedule import LONGEST_SUM, Schedule, choose_schedule, choose_split
from dnncore.cuda.gemm.tiling import EXTENDED_TILES, TILES, tile_counts
from dnncore.cuda.matmul import ALGORITHMS, matmul_product
from dnncore.descriptors import ConvolutionDescriptor, Layout, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import A100, H200, DeviceFigures
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem, MatmulProblem
from tests.cuda.products import matmul_of, offered, offsets_of, problem_of, product_of, refused


def _whole(problem: MatmulProblem) -> Schedule:
    product = matmul_product(problem)
    return choose_schedule(product, tiles_for(product), H200)


def _split(product: Product) -> Schedule:
    schedule = choose_split(product, tiles_for(product), H200)
    assert schedule is not None
    return schedule


def test_large_products_take_the_largest_tile_and_small_ones_do_not() -> None:
    assert _whole(matmul_of(8192, 8192, 64)).tile == TILES[DType.FLOAT32][0]
    assert _whole(matmul_of(64, 100_000, 64)).tile.rows == 64
    small = _whole(matmul_of(20, 600, 25)).tile
    assert (small.rows, small.columns) == (32, 64)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 576, 200_000), (1, 10, 7000), (32, 800, 10_000), (256, 196, 2304)])
def test_products_with_few_tiles_are_split_into_parts_that_are_not_too_short(m: int, n: int, k: int) -> None:
    whole, split = _whole(matmul_of(m, n, k)), _split(matmul_product(matmul_of(m, n, k)))
    assert split.splits > 1
    assert split.seconds < whole.seconds
    assert split.split_length >= 128


@pytest.mark.parametrize(("m", "n", "k"), [(64, 576, 200_000), (32, 800, 10_000), (256, 196, 2304), (4096, 4096, 4096)])
def test_a_limit_leaves_the_same_choice_or_none(m: int, n: int, k: int) -> None:
    product = matmul_product(matmul_of(m, n, k))
    best = _split(product)
    for than, expected in ((best.seconds * 1.001, best), (best.seconds, None)):
        assert choose_split(product, tiles_for(product), H200, than) == expected


@pytest.mark.parametrize(("m", "n", "k"), [(64, 576, 200_000), (1, 10, 7000), (256, 196, 2304), (700, 300, 5000)])
@pytest.mark.parametrize("figures", [H200, A100], ids=["H200", "A100"])
def test_no_option_that_was_passed_over_is_faster(m: int, n: int, k: int, figures: DeviceFigures) -> None:
    """Each tile by itself is looked at with nothing to beat."""
    product = matmul_product(matmul_of(m, n, k))
    tiles = tiles_for(product)
    alone = [choose_split(product, (tile,), figures) for tile in tiles]
    best = choose_split(product, tiles, figures)
    assert best == min((each for each in alone if each is not None), key=lambda schedule: schedule.seconds)


def test_a_product_is_worked_out_once_for_all_algorithms_that_are_asked() -> None:
    asked = []

    def product_of(problem: MatmulProblem) -> Product:
        asked.append(problem)
        return matmul_product(problem)

    for algorithm in (SplitGemm("split", product_of), TiledGemm("tiled", product_of), PrecomputedGemm("t", product_of)):
        assert offered(algorithm, matmul_of(40, 50, 7000)).seconds > 0
    assert len(asked) == 1


def test_a_device_with_fewer_multiprocessors_is_filled_by_fewer_parts() -> None:
    product = matmul_product(matmul_of(64, 64, 30_000))
    few = choose_split(product, tiles_for(product), replace(H200, multiprocessors=16))
    assert few is not None
    assert few.splits < _split(product).splits


@pytest.mark.parametrize("k", [1, 127, 1000, 4097, 70_001])
def test_parts_cover_the_reduction_without_an_empty_one(k: int) -> None:
    schedule = _split(matmul_product(matmul_of(40, 50, k)))
    assert (schedule.splits - 1) * schedule.split_length < k <= schedule.splits * schedule.split_length
    assert schedule.split_length % schedule.tile.depth == 0


def test_products_that_fill_the_device_are_not_split() -> None:
    assert "512 tiles of 4096 summands" in refused(SplitGemm("split", matmul_product), matmul_of(4096, 4096, 4096))


def test_sums_are_split_when_they_would_grow_too_long_for_their_accumulator() -> None:
    problem = matmul_of(4096, 4096, 1 << 20)
    assert offered(SplitGemm("split", matmul_product), problem).workspace_bytes
    assert _split(matmul_product(problem)).split_length <= LONGEST_SUM


def test_matrices_are_split_for_accuracy_where_that_takes_longer() -> None:
    problem = matmul_of(12 * 128, 11 * 256, 70_000)  # 132 of the largest tiles
    assert _whole(problem).seconds < _split(matmul_product(problem)).seconds
    tiled = [each for each in ALGORITHMS if isinstance(each, SplitGemm | TiledGemm)]
    assert min(tiled, key=lambda algorithm: offered(algorithm, problem).seconds).name == "gemm_split_k"


def test_workspace_holds_each_part_once() -> None:
    """Parts that another launch adds up as C, those that are joined in whole tiles."""
    split = SplitGemm("split", matmul_product)
    for problem in (matmul_of(64, 100, 2048), matmul_of(64, 576, 200_000)):
        product = matmul_product(problem)
        schedule, (_, n) = _split(product), problem.c.shape
        (tiles,) = tile_counts(schedule.tile, product)
        elements = tiles * schedule.tile.rows * schedule.tile.columns if schedule.joined else 64 * n
        assert offered(split, problem).workspace_bytes == schedule.splits * elements * 4


def test_parts_are_joined_where_they_are_few() -> None:
    few, many = _split(matmul_product(matmul_of(64, 196, 576))), _split(matmul_product(matmul_of(64, 576, 200_000)))
    assert (few.splits, few.joined) == (4, True)
    assert not many.joined
    product = matmul_product(matmul_of(64, 576, 200_000))
    slow = choose_split(product, tiles_for(product), replace(H200, launch_seconds=1e-3))
    assert slow is not None
    assert slow.joined


@pytest.mark.parametrize(
    ("dtype", "layout", "shape", "filters", "splits", "joined"),
    [
        ("float32", "NCHW", (1, 64, 14, 14), (64, 64, 3, 3), 4, True),
        ("float32", "NCHW", (1, 64, 56, 56), (64, 64, 3, 3), 4, True),
        ("float32", "NCHW", (1, 1024, 14, 14), (256, 1024, 1, 1), 8, False),
        ("float32", "NCHW", (1, 256, 14, 14), (256, 256, 3, 3), 16, False),
        ("float16", "NHWC", (1, 64, 56, 56), (64, 64, 3, 3), 1, False),
        ("float16", "NHWC", (1, 512, 7, 7), (2048, 512, 1, 1), 1, False),
        ("float16", "NHWC", (1, 1024, 14, 14), (256, 1024, 1, 1), 4, True),
        ("float16", "NHWC", (8, 512, 7, 7), (512, 512, 3, 3), 8, False),
    ],
)
def test_what_was_fastest_on_an_h200_is_chosen(
    dtype: str,
    layout: str,
    shape: tuple[int, ...],
    filters: tuple[int, ...],
    splits: int,
    *,
    joined: bool,
) -> None:
    x, w = (TensorDescriptor.packed(each, DType(dtype), Layout(layout)) for each in (shape, filters))
    conv = ConvolutionDescriptor.make(padding=filters[-1] // 2)
    y = TensorDescriptor.packed(conv.output_shape(shape, filters), DType(dtype), Layout(layout))
    product = convolution_product(ConvolutionProblem(Direction.FORWARD, x, w, y, conv))
    assert isinstance(product, Product)
    whole = choose_schedule(product, tiles_for(product, whole=True), H200)
    split = choose_split(product, tiles_for(product), H200)
    assert split is not None
    best = min(whole, split, key=lambda schedule: schedule.seconds)
    assert (best.splits, best.joined) == (splits, joined)


def test_either_way_can_be_asked_for() -> None:
    for problem in (matmul_of(64, 100, 2048), matmul_of(64, 576, 200_000)):
        product = matmul_product(problem)
        best, ways = _split(product), []
        for joined in (False, True):
            schedule = choose_split(product, tiles_for(product), H200, joined=joined)
            assert schedule is not None
            assert schedule.joined == joined
            ways.append(schedule)
        assert best == min(ways, key=lambda schedule: schedule.seconds)


@pytest.mark.parametrize(("rows", "joined"), [(32 * 512, True), (32 * 512 + 1, False)])
def test_there_are_only_so_many_tickets(rows: int, *, joined: bool) -> None:
    product, tiles = matmul_product(matmul_of(rows, 64, 1 << 16)), TILES[DType.FLOAT32][3:4]
    schedule = choose_split(product, tiles, replace(H200, launch_seconds=1.0))
    assert schedule is not None
    assert (schedule.splits > 1, schedule.joined) == (True, joined)


def test_only_tiles_that_join_are_joined() -> None:
    product = matmul_product(matmul_of(128, 256, 1 << 16))
    for tile, joined in zip(TILES[DType.FLOAT32], (False, False, True, True, False), strict=True):
        schedule = choose_split(product, (tile,), replace(H200, launch_seconds=1.0))
        assert schedule is not None
        assert (schedule.splits > 1, schedule.joined) == (True, joined)


def test_totals_of_int8_that_int32_may_not_hold_are_not_joined() -> None:
    longest = (2**31 - 1) // (128 * 128)
    for length in (longest, longest + 1):
        product = convolution_product(_long(length))
        assert isinstance(product, Product)
        schedule = choose_split(product, tiles_for(product), replace(H200, launch_seconds=1.0))
        assert schedule is not None
        assert schedule.splits > 1
        assert schedule.joined == (length == longest)


def test_parts_of_a_fused_product_are_joined_by_a_kernel_that_knows_epilogues() -> None:
    plain = problem_of(Direction.FORWARD, (1, 512, 7, 7), (2048, 512, 1, 1), ConvolutionDescriptor.make())
    problem = FusedConvolutionProblem(plain.x, plain.w, plain.y, plain.convolution)
    split = next(algorithm for algorithm in FUSED if algorithm.name == "implicit_gemm_split_k")
    (call,) = offered(split, problem).prepare()
    assert call.unit.entry.endswith("_extended_joined")
    (call,) = offered(SplitGemm("split", convolution_product), plain).prepare()
    assert call.unit.entry.endswith("_dense_joined")


def test_empty_and_short_products_are_not_split() -> None:
    for shape in ((0, 5, 1000), (5, 0, 1000), (5, 5, 0), (5, 5, 200)):
        assert refused(SplitGemm("split", matmul_product), matmul_of(*shape))


def _long(length: int, dtype: str = "int8", y: str | None = None) -> ConvolutionProblem:
    """Sums of so many products."""
    x, w = (TensorDescriptor.packed((n, length, 1, 1), dtype, "NHWC") for n in (2, 3))
    of_y = TensorDescriptor.packed((2, 3, 1, 1), y or dtype)
    return ConvolutionProblem(Direction.FORWARD, x, w, of_y, ConvolutionDescriptor.make())


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_sums_that_are_too_long_for_an_accumulator_of_tensor_cores_are_cut_into_parts(dtype: str) -> None:
    (split,) = (a for a in algorithms(Direction.FORWARD) if a.name == "implicit_gemm_split_k")
    for length in (2**15, 2**16 - 1, 131_072, 1_310_710, 2**24 + 1, 2**25 - 1, 2**26, 2**30 + 1):
        assert offered(split, _long(length, dtype)).workspace_bytes
        product = convolution_product(_long(length, dtype))
        assert isinstance(product, Product)
        assert _split(product).split_length < 2**16


_WHOLE_SUMS = [a for a in algorithms(Direction.FORWARD) if a.name in ("implicit_gemm", "implicit_precomp_gemm")]


def test_sums_of_int8_that_int32_may_not_hold_are_refused_where_they_cannot_be_cut() -> None:
    longest = (2**31 - 1) // (128 * 128)
    for algorithm in _WHOLE_SUMS:
        assert offered(algorithm, _long(longest, "int8"))
        assert f"{longest + 1} products" in refused(algorithm, _long(longest + 1, "int8"))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize(("length", "rows"), [(2**16, 64), (2**16 + 8, 32), (2**22, 32)])
def test_long_sums_of_16_bits_get_a_tile_that_carries_them_over(dtype: DType, length: int, rows: int) -> None:
    product = convolution_product(_long(length, dtype.value))
    assert isinstance(product, Product)
    tiles = tiles_for(product, whole=True)
    assert min(tile.rows for tile in tiles) == rows
    assert all(offered(algorithm, _long(length, dtype.value)) for algorithm in _WHOLE_SUMS)


def test_parts_of_int8_are_stored_in_int32() -> None:
    product = convolution_product(_long(2**17, y="float32"))
    assert isinstance(product, Product)
    assert (product.output, product.partial_sums().output) == (DType.FLOAT32, DType.INT32)


def test_sums_of_16_bit_types_are_vectors_of_fp32() -> None:
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        assert [(tile.rows, tile.columns) for tile in TILES[dtype]] == [(64, 128), (32, 64)]
        split = SplitGemm("split", matmul_product)
        tensors = [TensorDescriptor.packed(shape, dtype) for shape in ((64, 4096), (4096, 100), (64, 100))]
        nbytes = offered(split, MatmulProblem(*tensors)).workspace_bytes
        assert nbytes
        assert nbytes % (32 * 64 * 4) == 0


def _fused(z: TensorDescriptor | None, y_layout: str = "NCHW") -> FusedConvolutionProblem:
    plain = problem_of(Direction.FORWARD, (2, 8, 5, 5), (8, 8, 3, 3), ConvolutionDescriptor.make(padding=1))
    y = TensorDescriptor.packed(plain.y.shape, layout=y_layout)
    return FusedConvolutionProblem(plain.x, plain.w, y, plain.convolution, z=z)


def test_a_residual_that_is_laid_out_otherwise_is_composed() -> None:
    alike = TensorDescriptor.packed((2, 8, 5, 5))
    assert isinstance(fused_product(_fused(alike)), Product)
    reason = fused_product(_fused(alike, "NHWC"))
    assert isinstance(reason, str)
    assert str(alike.strides) in reason
    offers = {a.name: a.offer(_fused(alike, "NHWC"), H200) for a in FUSED}
    assert [name for name, offer in offers.items() if isinstance(offer, Offer)] == ["composed", "direct"]


def test_tiles_that_stage_their_sums_fit_into_static_shared_memory() -> None:
    for tiles in EXTENDED_TILES.values():
        for tile in tiles:
            assert tile.rows * (tile.columns + 1) * tile.dtype.compute.itemsize <= 48 * 1024


def test_depthwise_convolution_is_left_to_the_direct_kernel() -> None:
    conv = ConvolutionDescriptor.make(groups=6)
    reason = convolution_product(problem_of(Direction.FORWARD, (1, 6, 5, 5), (6, 1, 3, 3), conv))
    assert isinstance(reason, str)
    assert "6 groups" in reason


def test_parts_are_packed_in_the_workspace() -> None:
    product = product_of(Direction.FORWARD, (2, 8, 5, 5), (8, 4, 3, 3), ConvolutionDescriptor.make(groups=2), "NHWC")
    partial = product.partial_sums()
    (phase,) = partial.phases
    columns = offsets_of(phase.column, phase.num_columns, "other_stride")
    assert columns.tolist() == list(range(phase.num_columns))
    assert (partial.c_row_stride, partial.c_group_stride) == (phase.num_columns, 4 * phase.num_columns)
    assert math.prod((partial.groups, partial.rows, partial.num_columns)) == 8 * 2 * 9
