"""How operations that move bytes and compute next to nothing are ranked: the fastest, as measured on an H200, comes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dnncore import TensorDescriptor
from dnncore.backend import Offer
from dnncore.cuda import optimizer, pooling, reduction_vectors, summation, tensor
from dnncore.cuda.calls import KernelCall
from dnncore.cuda.convert_transposed import PLACES, tile_of
from dnncore.descriptors import BinaryOperator, PoolingDescriptor, PoolingMode, ReduceOperator
from dnncore.dtypes import DType
from dnncore.figures import A100, H200, DeviceFigures
from dnncore.problems import (
    AdamProblem,
    AddProblem,
    BinaryProblem,
    MomentumProblem,
    PoolingBackwardProblem,
    PoolingForwardProblem,
    ReduceProblem,
    SumProblem,
    WhereProblem,
)

LARGE = (64, 64, 112, 112)


def offers(algorithms: tuple[object, ...], problem: object, figures: DeviceFigures = H200) -> dict[str, Offer]:
    found = {a.name: a.offer(problem, figures) for a in algorithms}  # type: ignore[attr-defined]
    return {name: offer for name, offer in found.items() if isinstance(offer, Offer)}


def microseconds(algorithms: tuple[object, ...], problem: object) -> dict[str, float]:
    return {name: offer.seconds * 1e6 for name, offer in offers(algorithms, problem).items()}


def first(algorithms: tuple[object, ...], problem: object) -> str:
    times = microseconds(algorithms, problem)
    return min(times, key=times.__getitem__)


def packed(shape: tuple[int, ...], dtype: str = "float32", layout: str = "NCHW") -> TensorDescriptor:
    return TensorDescriptor.packed(shape, dtype, layout)


# name, shape of x, shape of y, dtype, layout, the fastest sum, the fastest norm
REDUCTIONS = (
    ("few columns", (131, 40), (1, 40), "float32", "NCHW", "block_per_output", "columns"),
    ("columns", (65536, 64), (1, 64), "float32", "NCHW", "columns", "columns"),
    ("many columns", (65536, 1024), (1, 1024), "float64", "NCHW", "columns", "columns"),
    ("short columns", (40, 65536), (1, 65536), "float16", "NCHW", "thread_per_output", "columns"),
    ("short rows", (1 << 20, 20), (1 << 20, 1), "float32", "NCHW", "thread_per_output", "thread_per_output"),
    ("few short rows", (64, 20), (64, 1), "float32", "NCHW", "thread_per_output", "lines"),
    ("everything", (1 << 26,), (1,), "float16", "NCHW", "lines", "lines"),
    ("rows", (256, 32768), (256, 1), "float32", "NCHW", "block_per_output_whole", "lines"),
    ("many rows", (1024, 32768), (1024, 1), "float32", "NCHW", "block_per_output_whole", "lines"),
    ("bias gradient", LARGE, (1, 64, 1, 1), "float32", "NCHW", "lines", "lines"),
    ("bias gradient NHWC", LARGE, (1, 64, 1, 1), "float32", "NHWC", "columns", "columns"),
)


@pytest.mark.parametrize("case", REDUCTIONS, ids=lambda case: case[0])
def test_reductions_take_the_team_that_is_fastest(
    case: tuple[str, tuple[int, ...], tuple[int, ...], str, str, str, str],
) -> None:
    _, large, small, dtype, layout, fastest_sum, fastest_norm = case
    x, y = packed(large, dtype, layout), packed(small, dtype, layout)
    assert first(summation.SUM, SumProblem(x, y)) == fastest_sum
    assert first(reduction_vectors.ALGORITHMS, ReduceProblem(x, y, ReduceOperator.NORM2)) == fastest_norm


def test_parts_are_a_function_of_the_problem_and_the_multiprocessors() -> None:
    problem = SumProblem(packed((1 << 26,)), packed((1,)))
    wide, same, narrow = (
        offers(summation.SUM, problem, figures)["block_per_output"]
        for figures in (H200, replace(H200, bytes_per_second=1e12, launch_seconds=1e-3), A100)
    )
    assert wide.prepare() == same.prepare()
    assert wide.workspace_bytes == 4 * 16 * H200.multiprocessors
    assert narrow.workspace_bytes == 4 * 16 * A100.multiprocessors


def test_two_kernels_go_through_the_workspace_and_blend_once() -> None:
    calls = offers(summation.SUM, SumProblem(packed((1 << 26,)), packed((1,))))["block_per_output"].prepare()
    to_parts, from_parts = calls
    assert isinstance(to_parts, KernelCall)
    assert isinstance(from_parts, KernelCall)
    assert (to_parts.alpha, to_parts.beta) == (None, None)
    assert from_parts.alpha is not None
    assert from_parts.beta is not None


# a, c, the fastest
TRANSFORMS = (
    (packed(LARGE), packed(LARGE, layout="NHWC"), "transpose"),
    (packed(LARGE, layout="NHWC"), packed(LARGE), "transpose"),
    (packed(LARGE, "float16"), packed(LARGE, "float16", "NHWC"), "transpose_pairs"),
    (packed(LARGE, "float16", "NHWC"), packed(LARGE, "float16"), "transpose_pairs"),
    (packed((65536, 16, 16)), TensorDescriptor(DType.FLOAT32, (65536, 16, 16), (256, 1, 16)), "rows"),
    (packed(LARGE), packed(LARGE), "contiguous"),
    (TensorDescriptor(DType.FLOAT32, (1 << 24,), (2,)), packed((1 << 24,)), "rows"),
    (packed((1, 64, 1, 1)), packed(LARGE), "broadcast"),
    (packed(LARGE, "float16"), packed(LARGE), "convert_dense"),
)


@pytest.mark.parametrize(("a", "c", "fastest"), TRANSFORMS, ids=lambda value: str(value))
def test_transforms_take_the_kernel_that_is_fastest(a: TensorDescriptor, c: TensorDescriptor, fastest: str) -> None:
    assert first(tensor.ADD, AddProblem(a, c)) == fastest


# layout, dtype; microseconds measured on an H200 of adding a bias, also of a product by channels but in float16, which takes 65
BROADCAST = (("NCHW", "float16", 51), ("NHWC", "float16", 51), ("NCHW", "float32", 99), ("NHWC", "float32", 99))


@pytest.mark.parametrize(("layout", "dtype", "measured"), BROADCAST)
def test_what_is_broadcast_is_estimated_as_it_was_measured(layout: str, dtype: str, measured: float) -> None:
    large, channels = packed(LARGE, dtype, layout), packed((1, 64, 1, 1), dtype, layout)
    for algorithms, problem in (
        (tensor.BINARY, BinaryProblem(large, channels, large, BinaryOperator.MUL)),
        (tensor.ADD, AddProblem(channels, large)),
    ):
        assert first(algorithms, problem) == "broadcast"
    product = microseconds(tensor.BINARY, BinaryProblem(large, channels, large, BinaryOperator.MUL))["broadcast"]
    assert product == pytest.approx(measured, rel=0.1)


def test_what_is_broadcast_has_numbers_of_32_bits() -> None:
    for rows, has_offer in ((2**16 - 1, True), (2**16, False)):
        c, channels = packed((1, rows, 2**15), "int8"), packed((1, rows, 1), "int8")
        assert ("broadcast" in offers(tensor.ADD, AddProblem(channels, c))) is has_offer
        assert "rows" in offers(tensor.ADD, AddProblem(channels, c))


def test_what_is_broadcast_is_not_transposed_and_has_three_dimensions() -> None:
    c = packed((2, 3, 4, 5, 32))
    for shape, has_offer in (((1, 1, 4, 1, 1), True), ((2, 1, 4, 1, 32), False), ((2, 3, 4, 5, 1), True)):
        assert ("broadcast" in offers(tensor.ADD, AddProblem(packed(shape), c))) is has_offer
    assert "broadcast" not in offers(tensor.ADD, AddProblem(packed((2, 32, 32), layout="NHWC"), packed((2, 32, 32))))


@pytest.mark.parametrize("extents", [(64, 64, 3, 3), (512, 512, 3, 3), (192, 64, 5, 5), (32, 64, 11, 11)], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_filters_are_cast_and_relaid_at_once(extents: tuple[int, ...], dtype: str) -> None:
    """By estimate: it has not been measured."""
    wide, narrow = packed(extents), packed(extents, dtype, "NHWC")
    for a, c in ((wide, narrow), (narrow, wide)):
        estimates = microseconds(tensor.ADD, AddProblem(a, c))
        assert first(tensor.ADD, AddProblem(a, c)) == "convert_transposed"
        cast = packed(extents, dtype)
        apart = (
            (AddProblem(wide, cast), AddProblem(cast, narrow))
            if a is wide
            else (
                AddProblem(narrow, cast),
                AddProblem(cast, wide),
            )
        )
        assert estimates["convert_transposed"] < sum(min(microseconds(tensor.ADD, each).values()) for each in apart)


@pytest.mark.parametrize("short", [0, 1, 2, 3, 9, 25, 49, 63, 64, 65, 121, 5000])
@pytest.mark.parametrize("long", [16, 64, 65, 224, 225, 512, 5000])
def test_tiles_that_are_cast_and_transposed_fit_into_shared_memory(short: int, long: int) -> None:
    for rows, columns in ((short, long), (long, short)):
        down, across = tile_of(rows, columns)
        assert down * (across | 1) <= PLACES
        assert down * across >= min(rows * columns, PLACES // 4)


# Measured on an H200, in microseconds.
@pytest.mark.parametrize(
    ("direction", "window", "planar", "spatial"),
    [("forward", 2, 84, 1201), ("forward", 3, 91, 1454), ("backward", 2, 199, 7923), ("backward", 3, 249, 23848)],
)
def test_pooling_is_estimated_as_it_was_measured(direction: str, window: int, planar: float, spatial: float) -> None:
    pads = ((window // 2, window // 2),) * 2 if window == 3 else ((0, 0),) * 2
    descriptor = PoolingDescriptor(PoolingMode.MAX, window=(window,) * 2, stride=(2, 2), padding=pads)
    x, y = packed(LARGE), packed(descriptor.output_shape(LARGE))
    times = (
        microseconds(pooling.FORWARD, PoolingForwardProblem(x, y, descriptor))
        if direction == "forward"
        else microseconds(pooling.BACKWARD, PoolingBackwardProblem(y, y, x, x, descriptor))
    )
    assert times["planar"] == pytest.approx(planar, rel=0.5)
    assert times["spatial"] == pytest.approx(spatial, rel=0.5)


# Measured on an H200 with channels innermost, in microseconds: maxima with their indices.
@pytest.mark.parametrize(("dtype", "window", "planar"), [("float16", 2, 76), ("float16", 3, 96), ("float32", 3, 95)])
def test_pooling_with_indices_is_estimated_as_it_was_measured(dtype: str, window: int, planar: float) -> None:
    assert microseconds(pooling.FORWARD, _with_indices(dtype, window))["planar"] == pytest.approx(planar, rel=0.35)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("window", [2, 3])
def test_pooling_with_indices_never_goes_element_by_element_where_windows_are_unrolled(dtype: str, window: int) -> None:
    expected = "planar" if dtype == "float64" or (dtype, window) == ("float32", 3) else "channels"
    assert first(pooling.FORWARD, _with_indices(dtype, window)) == expected


def _with_indices(dtype: str, window: int) -> PoolingForwardProblem:
    pads = ((window // 2, window // 2),) * 2 if window == 3 else ((0, 0),) * 2
    descriptor = PoolingDescriptor(PoolingMode.MAX, window=(window,) * 2, stride=(2, 2), padding=pads)
    pooled = descriptor.output_shape(LARGE)
    indices = packed(pooled, "int32", "NHWC")
    return PoolingForwardProblem(packed(LARGE, dtype, "NHWC"), packed(pooled, dtype, "NHWC"), descriptor, indices)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("mode", "window"), [("max", 2), ("max", 3), ("average_include_padding", 2), ("average_include_padding", 3)]
)
def test_without_indices_vectors_of_channels_go_before_single_ones_but_where_windows_of_fp32_overlap(
    dtype: str, mode: str, window: int
) -> None:
    descriptor = PoolingDescriptor.make(mode, window, stride=2, padding=window // 2 if window == 3 else 0)
    x, y = packed(LARGE, dtype, "NHWC"), packed(descriptor.output_shape(LARGE), dtype, "NHWC")
    expected = "channels" if window == 2 else {"float16": "rolling", "float32": "planar"}[dtype]
    assert first(pooling.FORWARD, PoolingForwardProblem(x, y, descriptor)) == expected


# condition, a, b; the fastest
CHOICES = (
    (packed(LARGE, "bool"), packed(LARGE, "float16"), packed(LARGE, "float16"), "contiguous"),
    (packed(LARGE, "bool"), packed(LARGE), packed(LARGE), "contiguous"),
    (packed(LARGE, "bool"), packed(LARGE, "int32"), packed(LARGE, "int32"), "contiguous"),
    (packed((64, 1, 112, 112), "bool"), packed((1, 1, 1, 1), "float16"), packed(LARGE, "float16"), "broadcast"),
    (packed(LARGE, "bool"), packed(LARGE, "bool"), packed(LARGE, "bool"), "pointwise"),
)


@pytest.mark.parametrize(("condition", "a", "b", "fastest"), CHOICES, ids=lambda value: str(value))
def test_a_choice_by_conditions_takes_sixteen_bytes_at_a_time(
    condition: TensorDescriptor, a: TensorDescriptor, b: TensorDescriptor, fastest: str
) -> None:
    problem = WhereProblem(condition, a, b, packed(LARGE, b.dtype.value))
    assert first(tensor.WHERE, problem) == fastest


def test_a_step_takes_as_few_launches_as_their_parameters_hold_tensors() -> None:
    weights = tuple(packed((size,)) for size in (64, 0, 2048 * 1000, *(4097,) * 111))
    for algorithms, problem in (
        (optimizer.MOMENTUM, MomentumProblem(weights, 0.9, decay=0.1)),
        (optimizer.ADAM, AdamProblem(weights, 0.9, 0.99, 1e-8)),
    ):
        calls = offers(algorithms, problem)["chunks"].prepare()
        launches = [call for call in calls if isinstance(call, KernelCall)]
        assert len(launches) == len(calls) == 3
        assert [call.grid[0] for call in launches] == [1 + 500 + 54 * 2, 56 * 2, 2]
        assert all(len(call.params) <= 4096 for call in launches)
        read = [slot.place.operand for call in launches for slot in call.slots]
        assert sorted(read) == [i for i in range(len(problem.inputs) + len(problem.outputs)) if i % len(weights) != 1]


def test_a_step_of_parameters_without_elements_launches_nothing() -> None:
    for weights in ((), (packed((0, 3)),)):
        assert offers(optimizer.MOMENTUM, MomentumProblem(weights, 0.9))["chunks"].prepare() == ()
