"""Every variant of the tiled GEMM computes every product that it can be given, also where the heuristics would take another.

The cases of `tests/ops` run every algorithm, but their problems are small, and for small problems few tiles are ever chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from dnncore import Handle
from dnncore.backend import Device, Offer
from dnncore.cuda.algorithms import all_units
from dnncore.cuda.calls import Calls, KernelCall, WhereAligned
from dnncore.cuda.gemm import algorithm, clamped, kernel, precomputed
from dnncore.cuda.gemm.algorithm import whole_schedule
from dnncore.cuda.gemm.index_space import Product
from dnncore.cuda.gemm.kernel import Variant, choose_variant, clamped_variants, variants
from dnncore.cuda.gemm.schedule import Schedule
from dnncore.cuda.gemm.tiling import CLAMPED_TILES, AnyTile, MatrixTile, Walk
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem, MatmulProblem, Problem
from tests.cases import CASES, Case
from tests.conftest import CUDA_DEVICES
from tests.cuda.test_fft import KERNELS as KERNELS_OF_SPECTRA
from tests.cuda.test_parts import JOINED, JOINED_EXTENDED, SELECTED, by_another_launch
from tests.cuda.test_vector_planes import KERNELS as KERNELS_OF_VECTOR_PLANES
from tests.ops.harness import GUARD, check
from tests.ops.test_block_per_group import KERNELS as KERNELS_OF_GROUPS
from tests.ops.test_group_gradients import KERNELS as KERNELS_OF_GROUP_GRADIENTS
from tests.ops.test_inverted_residual import KERNELS as KERNELS_OF_BLOCKS
from tests.ops.test_resident_normalization import KERNELS as KERNELS_OF_RESIDENTS
from tests.ops.test_ring_normalization import KERNELS as KERNELS_OF_RINGS
from tests.ops.test_row_teams import KERNELS as KERNELS_OF_ROW_TEAMS
from tests.ops.test_tf32_planes import KERNELS as KERNELS_OF_PLANES
from tests.ops.test_tf32_rows import KERNELS as KERNELS_OF_TF32_ROWS
from tests.ops.test_thin_convolution import KERNELS as THIN_KERNELS
from tests.ops.test_wgmma_convolution import KERNELS
from tests.ops.test_wgmma_pooled import KERNELS as POOLED_KERNELS
from tests.ops.test_wgmma_rows import KERNELS as KERNELS_OF_ROWS

pytestmark = pytest.mark.cuda

# The wide ones have cases of their own.
CHOSEN = [variant for variant in variants() if not variant.wide]
EXTENDED = [variant for variant in variants(extended=True) if not variant.wide]
WITH_TOTALS = [variant for variant in CHOSEN if isinstance(variant.tile, MatrixTile) and variant.tile.has_totals]


@pytest.fixture(scope="module")
def device() -> str:
    return CUDA_DEVICES[0]


@pytest.fixture
def fresh_handle(device: str) -> Iterator[Handle]:
    """One that remembers no plan."""
    with Handle(device) as handle:
        yield handle


def _padded(variant: Variant) -> ConvolutionProblem:
    """A few more filters than the tile has rows over 2 images: 140 columns, sums of 27.

    A pipelined one gets sums of more slabs than it holds at a time, the last of them not whole. Where A's vectors follow its rows,
    filters lie together, and where B's follow its columns, images. Sums of int8 stay int32, and must be equal.
    """
    dtype, conv = variant.tile.dtype, ConvolutionDescriptor.make(padding=1)
    rows = variant.tile.rows + 3
    x, w, of_x, of_w = (2, 3, 7, 10), (rows, 3, 3, 3), "NCHW", "NCHW"
    if variant.pipelined:
        channels = (3 * 32 + 16) // dtype.itemsize
        of_w, of_x = ("NHWC" if walk is Walk.REDUCTION else "CHWN" for walk in variant.walks)
        rows += 5 if of_w == "CHWN" else 0
        x, w = (2 if of_x == "NHWC" else 8, channels, 7, 10), (rows, channels, 3, 3)
        if (of_w, of_x) == ("NHWC", "CHWN"):  # only channels are dense in both
            x, w = (8, 3 * channels, 2, 3), (rows, 3 * channels, 1, 1)
    y = TensorDescriptor.packed(conv.output_shape(x, w), DType.INT32 if dtype is DType.INT8 else dtype, of_x)
    x_, w_ = (TensorDescriptor.packed(shape, dtype, layout) for shape, layout in ((x, of_x), (w, of_w)))
    return ConvolutionProblem(Direction.FORWARD, x_, w_, y, conv)


def _dense(variant: Variant) -> MatmulProblem:
    rows = variant.tile.rows + 3
    a, b, c = ((rows, 27), (27, 140), (rows, 140))
    return MatmulProblem(*(TensorDescriptor.packed(shape, variant.tile.dtype) for shape in (a, b, c)))


def _fused(variant: Variant) -> FusedConvolutionProblem:
    """The same convolution with everything that may follow it; of int8 into fp32, which shows more than int8 would."""
    plain = _padded(variant)
    dtype = DType.FLOAT32 if plain.x.dtype is DType.INT8 else plain.x.dtype
    parameter, y = TensorDescriptor.packed((1, plain.w.shape[0], 1, 1), dtype), replace(plain.y, dtype=dtype)
    gelu = ActivationDescriptor.make("gelu")
    return FusedConvolutionProblem(plain.x, plain.w, y, plain.convolution, parameter, parameter, y, gelu, 0.5, -2.0)


def _use(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave algorithms no choice, nor schedules that they remember."""
    monkeypatch.setattr(kernel, "choose_walks", lambda _product: variant.walks)
    monkeypatch.setattr(algorithm, "tiles_for", lambda _product, **_: (variant.tile,))
    for module in (algorithm, precomputed):
        monkeypatch.setattr(module, "whole_schedule", whole_schedule.__wrapped__)


def _check_with(variant: Variant, problem: Problem, name: str, handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge what an algorithm computes while it may choose this variant only."""
    chosen: set[Variant] = set()

    def remember(product: Product, tile: AnyTile, *, extended: bool, joined: bool, aligned: bool) -> Variant:
        chosen.add(found := choose_variant(product, tile, extended=extended, joined=joined))
        return found

    _use(variant, monkeypatch)
    monkeypatch.setattr(algorithm, "choose_variant", remember)
    check(handle, Case(variant.unit.entry, problem), name)
    assert chosen == {variant}


@pytest.mark.parametrize("variant", CHOSEN, ids=lambda variant: variant.unit.entry)
def test_a_product_that_fills_one_tile_and_begins_another(
    variant: Variant, fresh_handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = _padded(variant) if variant.padded else _dense(variant)
    _check_with(variant, problem, "implicit_gemm" if variant.padded else "gemm", fresh_handle, monkeypatch)


@pytest.mark.parametrize("length", [4095, 4096, 8300])
@pytest.mark.parametrize("variant", WITH_TOTALS, ids=lambda variant: variant.unit.entry)
def test_sums_are_carried_over_into_totals(
    variant: Variant, length: int, fresh_handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = (9, length), (length, 21), (9, 21)
    problem = MatmulProblem(*(TensorDescriptor.packed(shape, variant.tile.dtype) for shape in shapes))
    _check_with(variant, problem, "gemm", fresh_handle, monkeypatch)


@pytest.mark.parametrize("variant", WITH_TOTALS, ids=lambda variant: variant.unit.entry)
def test_totals_keep_what_one_sum_would_round_away(
    variant: Variant, fresh_handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 2^24 a step of 16 products of 2^-4 is less than fp32 can add towards zero; 4096 of them alone are 2^8."""
    dtype = variant.tile.dtype.numpy
    a, b, c = (np.full(shape, value, dtype) for shape, value in (((1, 8192), 0.25), ((8192, 1), 0.25), ((1, 1), -4096)))
    a[0, 0] = b[0, 0] = 4096
    _use(variant, monkeypatch)
    with fresh_handle.upload(a) as ta, fresh_handle.upload(b) as tb, fresh_handle.upload(c) as tc:
        plan = fresh_handle.plan(MatmulProblem(ta.descriptor, tb.descriptor, tc.descriptor), algorithm="gemm")
        fresh_handle.run(plan, 2.0**-12, (ta, tb), 1.0, (tc,))
        assert tc.numpy()[0, 0] == 2.0**-4


@pytest.mark.parametrize("variant", EXTENDED, ids=lambda variant: variant.unit.entry)
def test_an_epilogue_of_a_product_that_fills_one_tile_and_begins_another(
    variant: Variant, fresh_handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_with(variant, _fused(variant), "implicit_gemm", fresh_handle, monkeypatch)


@pytest.mark.parametrize("variant", clamped_variants(), ids=lambda variant: variant.unit.entry)
def test_a_clamped_product_that_fills_one_tile_and_begins_another(
    variant: Variant, fresh_handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """320 columns, of which 16 bytes are written at once where they may be; three parts of the reduction where they are joined."""
    taps, conv = (3, ConvolutionDescriptor.make(padding=1)) if variant.padded else (1, ConvolutionDescriptor.make())
    rows, channels = variant.tile.rows + 3, 37 if variant.joined else 5
    x, w, y, bias = (
        TensorDescriptor.packed(shape, variant.tile.dtype)
        for shape in ((4, channels, 8, 10), (rows, channels, taps, taps), (4, rows, 8, 10), (1, rows, 1, 1))
    )
    relu = ActivationDescriptor.make("relu")
    problem = FusedConvolutionProblem(x, w, y, conv, bias=bias, z=y, activation=relu)
    monkeypatch.setitem(CLAMPED_TILES, variant.tile.dtype, (variant.tile,))
    monkeypatch.setattr(clamped, "clamped_variant", lambda *_, **__: variant)
    length = -(-channels * taps**2 // (3 * variant.tile.depth)) * variant.tile.depth
    joined = Schedule(variant.tile, 3, length, 0.0, joined=True)
    monkeypatch.setattr(clamped, "choose_split", lambda *_, **__: joined)
    name = "implicit_gemm_clamped_split_k" if variant.joined else "implicit_gemm_clamped"
    for guard in (GUARD, GUARD + 1):
        case = Case(f"{variant.unit.entry}-{guard}", problem, beta=float(guard == GUARD))
        check(fresh_handle, case, name, guard=guard)


@pytest.mark.parametrize("variant", EXTENDED, ids=lambda variant: variant.unit.entry)
def test_a_table_of_a_product_that_fills_one_tile_and_begins_another(
    variant: Variant, fresh_handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_with(variant, _padded(variant), "implicit_precomp_gemm", fresh_handle, monkeypatch)


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.INT8])
@pytest.mark.parametrize("name", ["implicit_gemm", "implicit_precomp_gemm", "fused"])
def test_vectors_are_not_read_from_operands_that_start_at_an_odd_element(
    dtype: DType, name: str, fresh_handle: Handle
) -> None:
    vectors = next(v for v in variants() if v.tile.dtype is dtype and v.pipelined)
    problem: Problem = _fused(vectors) if name == "fused" else _padded(vectors)
    for guard in (GUARD, GUARD + 1):  # a kernel that read 16 bytes all the same would fault
        check(fresh_handle, Case(f"{name}-{guard}", problem), "implicit_gemm" if name == "fused" else name, guard=guard)


def _units(calls: Calls) -> Iterator[Unit]:
    for call in calls:
        if isinstance(call, KernelCall):
            yield call.unit
        elif isinstance(call, WhereAligned):
            yield from _units(call.aligned)
            yield from _units(call.otherwise)


def _units_of(cases: Iterable[Case], device: Device) -> Iterator[Unit]:
    for case in cases:
        for candidate in device.algorithms(case.problem):
            offer = candidate.offer(case.problem, device.figures)
            if isinstance(offer, Offer):
                yield from _units(offer.prepare())


def test_the_cases_of_all_tests_together_run_every_kernel(
    handles: dict[str, Handle], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    covered = {variant.unit for variant in (*CHOSEN, *EXTENDED, *JOINED, *JOINED_EXTENDED, *clamped_variants())}
    covered.update(_units_of(CASES, handles[device].device))
    monkeypatch.setattr(algorithm, "choose_split", by_another_launch)
    covered.update(_units_of(SELECTED, handles[device].device))
    elsewhere = KERNELS | KERNELS_OF_BLOCKS | KERNELS_OF_PLANES | THIN_KERNELS | KERNELS_OF_ROWS | POOLED_KERNELS
    elsewhere |= (
        KERNELS_OF_SPECTRA
        | KERNELS_OF_TF32_ROWS
        | KERNELS_OF_RESIDENTS
        | KERNELS_OF_RINGS
        | KERNELS_OF_GROUPS
        | KERNELS_OF_GROUP_GRADIENTS
        | KERNELS_OF_ROW_TEAMS
        | KERNELS_OF_VECTOR_PLANES
    )
    assert sorted(unit.entry for unit in set(all_units()) - covered if unit.entry not in elsewhere) == []
