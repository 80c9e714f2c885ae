"""Convolution by Fourier transforms: what it refuses, batches in parts, and how far special values reach."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dnncore import Handle, Tensor
from dnncore.backend import Offer
from dnncore.cuda.calls import KernelCall
from dnncore.cuda.convolution import fft
from dnncore.cuda.convolution.fft import FFT_TILING, FFT_TILING_3XTF32, FftTiling
from dnncore.cuda.convolution.fft_product_wgmma import BY_WGMMA
from dnncore.cuda.convolution.fft_products import Products
from dnncore.cuda.convolution.fft_tiles import Cut, cut_or_reason
from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.figures import A100, H200, DeviceFigures, Maths
from dnncore.problems import ConvolutionProblem, Direction
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import check


@pytest.fixture
def fresh_handle() -> Iterator[Handle]:
    """One that remembers no plan."""
    with Handle(CUDA_DEVICES[0]) as handle:
        yield handle


def _problem(
    direction: Direction, x: tuple[int, ...], w: tuple[int, ...], conv: ConvolutionDescriptor | None = None
) -> ConvolutionProblem:
    conv = conv or ConvolutionDescriptor.make(len(x) - 2)
    tx, tw, ty = (TensorDescriptor.packed(shape, "float32") for shape in (x, w, conv.output_shape(x, w)))
    return ConvolutionProblem(direction, tx, tw, ty, conv)


def _channels_last(problem: ConvolutionProblem) -> ConvolutionProblem:
    x, w, y = (TensorDescriptor.packed(each.shape, each.dtype, "NHWC") for each in (problem.x, problem.w, problem.y))
    return replace(problem, x=x, w=w, y=y)


KERNELS = frozenset({"fft_product_3xtf32_64x64"})
"""What the cases here run, and on Hopper no others: there wgmma multiplies."""


@pytest.fixture
def without_wgmma(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device that has mma.sync alone."""
    plain = Products.rate
    monkeypatch.setattr(
        Products, "rate", lambda by, dtype, figures: 0.0 if by is BY_WGMMA else plain(by, dtype, figures)
    )


BOTH = pytest.mark.parametrize("algorithm", [FFT_TILING, FFT_TILING_3XTF32], ids=lambda algorithm: algorithm.name)


def _offer(problem: ConvolutionProblem, algorithm: FftTiling = FFT_TILING) -> Offer:
    offer = algorithm.offer(problem, H200)
    assert isinstance(offer, Offer), offer
    return offer


def _tile_size(x: tuple[int, ...], w: tuple[int, ...], direction: Direction = Direction.FORWARD) -> int:
    cut = cut_or_reason(_problem(direction, x, w))
    assert isinstance(cut, Cut)
    return cut.size


@pytest.mark.parametrize(
    ("x", "w", "settings", "reason"),
    [
        ((1, 2, 20, 20), (3, 2, 5, 5), {"stride": (1, 2)}, "its stride is (1, 2); only 1 everywhere"),
        ((1, 2, 20, 20), (3, 2, 5, 18), {}, "its filter spans (5, 18) places; at most 17 fit into a tile"),
        ((1, 2, 40, 40), (3, 2, 9, 9), {"dilation": 3}, "its filter spans (25, 25) places; at most 17 fit into a tile"),
        ((1, 2, 20, 20), (3, 2, 1, 1), {}, "its filter has one tap"),
        ((1, 1, 4, 4, 4), (1, 1, 2, 2, 2), {}, "it has 3 spatial dimensions; at most 2"),
        ((1, 2048, 30, 30), (2048, 2048, 11, 11), {}, "at most 4294967296 B"),
    ],
)
def test_what_does_not_suit_tiles_is_refused_with_the_reason(
    x: tuple[int, ...], w: tuple[int, ...], settings: dict[str, Any], reason: str
) -> None:
    conv = ConvolutionDescriptor.make(len(x) - 2, **settings)
    for direction in Direction:
        for algorithm in (FFT_TILING, FFT_TILING_3XTF32):
            refusal = algorithm.offer(_problem(direction, x, w, conv), H200)
            assert isinstance(refusal, str)
            assert reason in refusal


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8"])
def test_tensor_cores_multiply_spectra_of_float32_alone(dtype: str) -> None:
    conv = ConvolutionDescriptor.make()
    x, w, y = (TensorDescriptor.packed(shape, dtype) for shape in ((1, 2, 20, 20), (3, 2, 5, 5), (1, 3, 16, 16)))
    problem = ConvolutionProblem(Direction.FORWARD, x, w, y, conv)
    assert FFT_TILING_3XTF32.offer(problem, H200) == f"{dtype} is not among what it transforms: float32"
    assert FFT_TILING_3XTF32.least_seconds(problem, H200) == math.inf


def test_products_by_tensor_cores_are_refused_where_there_are_none() -> None:
    problem = _problem(Direction.FORWARD, (1, 2, 20, 20), (3, 2, 5, 5))
    units = tuple((maths, rate) for maths, rate in H200.products_per_clock if maths is not Maths.TF32)
    figures = replace(H200, architecture="sm_75", products_per_clock=units)
    assert FFT_TILING_3XTF32.offer(problem, figures) == "a device of sm_75 has no units for its products"
    assert FFT_TILING_3XTF32.least_seconds(problem, figures) == math.inf
    assert isinstance(FFT_TILING.offer(problem, figures), Offer)


def _product_kernels(problem: ConvolutionProblem, algorithm: FftTiling, figures: DeviceFigures = H200) -> set[str]:
    offer = algorithm.offer(problem, figures)
    assert isinstance(offer, Offer), offer
    entries = {call.unit.entry for call in offer.prepare() if isinstance(call, KernelCall)}
    return {entry for entry in entries if entry.startswith("fft_product")}


@pytest.mark.parametrize(
    ("algorithm", "figures", "few", "many", "fewest_of_many"),
    [
        (FFT_TILING, H200, "fft_product_float_16x128", "fft_product_float_64x64", 17),
        (FFT_TILING_3XTF32, H200, "fft_product_3xtf32_8x128", "fft_product_3xtf32_wgmma_64x128", 9),
        (FFT_TILING_3XTF32, A100, "fft_product_3xtf32_8x128", "fft_product_3xtf32_64x64", 9),
    ],
    ids=lambda value: getattr(value, "name", getattr(value, "architecture", "")),
)
def test_few_rows_have_a_tile_of_their_own(
    algorithm: FftTiling, figures: DeviceFigures, few: str, many: str, fewest_of_many: int
) -> None:
    """As the three channels of a first layer, of which what takes many rows would mostly waste its own."""
    for filters in (3, fewest_of_many - 1, fewest_of_many, 200):
        problem = _problem(Direction.FORWARD, (2, 3, 12, 11), (filters, 3, 5, 5))
        assert _product_kernels(problem, algorithm, figures) == {many if filters >= fewest_of_many else few}


@pytest.mark.parametrize(
    ("channels", "filters", "tile"), [(64, 64, "64x64"), (64, 65, "64x128"), (65, 64, "64x128"), (9, 8, "8x128")]
)
def test_small_matrices_of_gradients_of_filters_have_a_tile_of_their_own(
    channels: int, filters: int, tile: str
) -> None:
    problem = _problem(Direction.BACKWARD_FILTER, (2, channels, 12, 11), (filters, channels, 5, 5))
    (found,) = _product_kernels(problem, FFT_TILING_3XTF32)
    assert found.endswith(f"_{tile}")


def test_whether_matrices_are_small_does_not_depend_on_the_batch() -> None:
    """Or an image would get other bits alone than beside others."""
    found = [
        _product_kernels(_problem(Direction.FORWARD, (n, 12, 12, 11), (16, 12, 5, 5)), FFT_TILING_3XTF32)
        for n in (1, 500)
    ]
    assert found[0] == found[1] == {"fft_product_3xtf32_wgmma_64x128"}


def test_large_tiles_are_taken_where_they_leave_much_less_to_multiply() -> None:
    assert _tile_size((1, 3, 30, 30), (4, 3, 5, 5)) == 32  # 26 x 26 outputs: 9 tiles of 130 frequencies, or 1 of 514
    assert _tile_size((1, 3, 18, 18), (4, 3, 5, 5)) == 16  # 14 x 14 outputs: 4 tiles, which is only a little more
    assert _tile_size((1, 3, 16, 16), (4, 3, 5, 5)) == 16  # 12 x 12 outputs: 1 tile either way
    assert _tile_size((1, 3, 29, 29), (4, 3, 5, 5), Direction.BACKWARD_DATA) == 32  # 29 x 29 of dx
    assert _tile_size((1, 3, 16, 16), (4, 3, 5, 5), Direction.BACKWARD_DATA) == 16  # 16 x 16, around which dy is 0
    assert _tile_size((1, 3, 18, 18), (4, 3, 10, 1)) == 32  # spans more than half of a small one


def test_large_batches_are_taken_in_parts_that_fit() -> None:
    many = _offer(_problem(Direction.FORWARD, (1000, 64, 64, 64), (128, 64, 9, 9)))
    one = _offer(_problem(Direction.FORWARD, (1, 64, 64, 64), (128, 64, 9, 9)))
    assert one.workspace_bytes < many.workspace_bytes <= 2**30


@pytest.mark.cuda
@BOTH
@pytest.mark.parametrize("direction", Direction)
def test_a_batch_in_parts_gives_the_same(
    direction: Direction, algorithm: FftTiling, fresh_handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two images, as many that follow, and one that is left."""
    conv = ConvolutionDescriptor.make(padding=2, groups=2)
    _check_in_parts_of_two((5, 4, 12, 11), (6, 2, 5, 5), conv, direction, algorithm, fresh_handle, monkeypatch)


@pytest.mark.cuda
@BOTH
@pytest.mark.parametrize("direction", Direction)
def test_a_batch_in_parts_gives_the_same_where_there_are_many_rows(
    direction: Direction, algorithm: FftTiling, fresh_handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other kernels multiply, and add to what the part before has left. To them groups are more frequencies."""
    conv = ConvolutionDescriptor.make(padding=2)
    _check_in_parts_of_two((3, 9, 12, 11), (10, 9, 5, 5), conv, direction, algorithm, fresh_handle, monkeypatch)


def _check_in_parts_of_two(
    x: tuple[int, ...],
    w: tuple[int, ...],
    conv: ConvolutionDescriptor,
    direction: Direction,
    algorithm: FftTiling,
    handle: Handle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = _problem(direction, x, w, conv)
    of_two = _offer(_problem(direction, (2, *x[1:]), w, conv)).workspace_bytes
    assert of_two < _offer(problem).workspace_bytes
    monkeypatch.setattr(fft, "_MANY_BYTES", of_two)
    assert _offer(problem).workspace_bytes == of_two
    check(handle, Case(f"parts-{direction.value}", problem, alpha=0.5, beta=2.0), algorithm.name)


@pytest.mark.cuda
@pytest.mark.parametrize("direction", Direction)
def test_spectra_are_multiplied_without_wgmma(direction: Direction, without_wgmma: None, fresh_handle: Handle) -> None:
    problem = _problem(direction, (3, 18, 12, 11), (70, 18, 5, 5), ConvolutionDescriptor.make(padding=2))
    (kernel,) = KERNELS
    assert f"{kernel}: " in fresh_handle.plan(problem, algorithm=FFT_TILING_3XTF32.name).describe()
    case = Case(f"without-wgmma-{direction.value}", problem, alpha=0.5, beta=2.0)
    check(fresh_handle, case, FFT_TILING_3XTF32.name)


def _forward(handle: Handle, algorithm: FftTiling, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    problem = _problem(Direction.FORWARD, x.shape, w.shape)
    plan = handle.plan(problem, algorithm=algorithm.name)
    with handle.upload(x) as tx, handle.upload(w) as tw, handle.tensor(problem.y.shape) as ty:
        inputs: list[Tensor] = [tx, tw]
        handle.run(plan, 1.0, inputs, 0.0, [ty])
        return ty.numpy()


@pytest.mark.cuda
@BOTH
def test_an_image_gets_the_same_bits_alone_and_in_a_batch(fresh_handle: Handle, algorithm: FftTiling) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((20, 3, 11, 26), np.float32), rng.standard_normal((4, 3, 5, 5), np.float32)
    batch = _forward(fresh_handle, algorithm, x, w)
    assert np.array_equal(batch[7:8], _forward(fresh_handle, algorithm, x[7:8], w))


@pytest.mark.cuda
@BOTH
def test_a_nan_makes_nan_of_its_tiles_and_of_nothing_else(fresh_handle: Handle, algorithm: FftTiling) -> None:
    x, w = np.ones((2, 3, 26, 36), np.float32), np.ones((4, 3, 3, 3), np.float32)
    assert _tile_size(x.shape, w.shape) == 16  # of 14 x 14 outputs
    x[1, 2, 17, 20] = (
        np.nan
    )  # in the second tile down, and the second across; tiles share inputs only at 14, 15, 28, 29
    found = np.isnan(_forward(fresh_handle, algorithm, x, w))
    expected = np.zeros_like(found)
    expected[1, :, 14:28, 14:28] = True
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("x", "w"), [((128, 64, 64, 64), (128, 64, 9, 9)), ((128, 128, 32, 32), (128, 128, 9, 9))])
def test_products_by_tensor_cores_are_estimated_to_take_less(
    x: tuple[int, ...], w: tuple[int, ...], direction: Direction
) -> None:
    problem = _problem(direction, x, w)
    found = _offer(problem, FFT_TILING_3XTF32)
    assert FFT_TILING_3XTF32.least_seconds(problem, H200) <= found.seconds < _offer(problem).seconds
    assert found.workspace_bytes == _offer(problem).workspace_bytes


def test_tensor_cores_are_not_estimated_to_gain_where_a_slab_of_theirs_has_three_channels() -> None:
    """The cuDNN paper's first layer, of 96 filters, took 2113 us on an H200 by tensor cores forward, and 1928 without."""
    layer = (128, 3, 128, 128), (96, 3, 11, 11)
    for direction, gains in (
        (Direction.FORWARD, False),
        (Direction.BACKWARD_DATA, True),
        (Direction.BACKWARD_FILTER, True),
    ):
        problem = _problem(direction, *layer)
        assert (_offer(problem, FFT_TILING_3XTF32).seconds < _offer(problem).seconds) is gains


def test_channels_whose_sectors_the_cache_loses_between_them_are_estimated_to_take_longer() -> None:
    """The cuDNN paper's first layer took 10.7 ms on an H200 channels-last and 1.9 as planes; its second one's outputs stay."""
    first, second = ((128, 3, 128, 128), (96, 3, 11, 11)), ((128, 64, 64, 64), (128, 64, 9, 9))
    for layer, direction, least, most in (
        (first, Direction.FORWARD, 4.0, 6.0),
        (first, Direction.BACKWARD_FILTER, 1.0, 2.0),
        (second, Direction.FORWARD, 1.0, 2.0),
    ):
        planes = _problem(direction, *layer)
        found = _offer(_channels_last(planes)).seconds / _offer(planes).seconds
        assert least < found < most, (layer, direction)
        assert FFT_TILING.least_seconds(_channels_last(planes), H200) <= _offer(_channels_last(planes)).seconds


def test_a_part_of_a_batch_that_stays_in_the_cache_is_not_estimated_to_take_longer() -> None:
    """Whatever the batch: of 1024 images of the cuDNN paper's second layer a channel's sectors are more than the cache."""
    few, many = (_channels_last(_problem(Direction.FORWARD, (n, 64, 64, 64), (128, 64, 9, 9))) for n in (128, 1024))
    assert many.y.size // many.y.shape[1] * 32 > H200.l2_bytes
    assert _offer(many).seconds < 8.5 * _offer(few).seconds
