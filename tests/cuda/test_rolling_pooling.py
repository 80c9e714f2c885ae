"""Pooling by threads that walk down rows, forward and backward: long walks, NaN and infinities at borders, who takes which rows,
what is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dnncore import Handle, PoolingDescriptor, TensorDescriptor
from dnncore.backend import Offer
from dnncore.choice import fastest
from dnncore.cuda import pooling
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Place, WhereAligned
from dnncore.cuda.pooling import rolling, rolling_gradients, rolling_planes
from dnncore.cuda.pooling.planar import PlanarPooling
from dnncore.cuda.pooling.rolling import RollingPooling
from dnncore.cuda.pooling.rolling_gradients import RollingGradients
from dnncore.cuda.pooling.walks import resident_threads
from dnncore.descriptors import PoolingMode
from dnncore.dtypes import DType
from dnncore.figures import A100, H200, DeviceFigures
from dnncore.problems import PoolingBackwardIndicesProblem, PoolingBackwardProblem, PoolingForwardProblem
from tests.cases import Case
from tests.conftest import CUDA_DEVICES
from tests.ops.harness import GUARD, check

NAN, INF = np.nan, np.inf
STEPS = 3


def problem_of(
    shape: tuple[int, ...],
    stride: int = 1,
    *,
    mode: PoolingMode | str = "max",
    dtype: str = "float16",
    layout: str = "NHWC",
    window: Any = 3,
    **settings: Any,
) -> PoolingForwardProblem:
    """Padding of 1 unless `settings` say otherwise."""
    descriptor = PoolingDescriptor.make(mode, window, stride=stride, **{"padding": 1, **settings})
    x, y = (TensorDescriptor.packed(s, dtype, layout) for s in (shape, descriptor.output_shape(shape)))
    return PoolingForwardProblem(x, y, descriptor)


@pytest.fixture
def walker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handle]:
    """A handle whose walks are STEPS steps long, as in large problems; small ones would be cut into single steps."""
    monkeypatch.setattr(rolling, "resident_threads", lambda *_: 0)
    monkeypatch.setattr(rolling, "_MOST_STEPS", STEPS)
    with Handle(CUDA_DEVICES[0]) as opened:
        yield opened


@pytest.fixture
def descender(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handle]:
    """The same for gradients."""
    monkeypatch.setattr(rolling_gradients, "resident_threads", lambda *_: 0)
    monkeypatch.setattr(rolling_gradients, "_MOST_STEPS", STEPS)
    with Handle(CUDA_DEVICES[0]) as opened:
        yield opened


def gradient_of(problem: PoolingForwardProblem) -> PoolingBackwardProblem | PoolingBackwardIndicesProblem:
    """Of maxima from their indices."""
    x, y, pooling = problem.x, problem.y, problem.pooling
    if pooling.mode is not PoolingMode.MAX:
        return gradient_from_x_of(problem)
    return PoolingBackwardIndicesProblem(y, replace(y, dtype=DType.INT32), x, pooling)


def gradient_from_x_of(problem: PoolingForwardProblem) -> PoolingBackwardProblem:
    """Without indices."""
    return PoolingBackwardProblem(problem.y, problem.y, problem.x, problem.x, problem.pooling)


def pooled(handle: Handle, x: np.ndarray, problem: PoolingForwardProblem) -> np.ndarray:
    """y by "rolling"."""
    plan = handle.plan(problem, algorithm="rolling")
    with handle.tensor(problem.x) as tx, handle.tensor(problem.y) as ty:
        tx.assign(x)
        handle.run(plan, 1.0, [tx], 0.0, [ty])
        return ty.numpy()


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mode", PoolingMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize(("stride", "rows", "padding"), [(1, 17, 1), (1, 12, ((2, 0), (0, 1))), (2, 16, 1), (2, 11, 0)])
def test_a_walk_of_many_steps_agrees_with_the_float64_answer(
    walker: Handle, stride: int, rows: int, padding: Any, mode: PoolingMode, dtype: str
) -> None:
    problem = problem_of((2, 16, rows, 6), stride, mode=mode, dtype=dtype, padding=padding, ceil_mode=True)
    split = rolling._walks(problem, walker.device.figures)
    assert split.walks > 1
    assert split.walk > 2 * rolling._rows_of_a_step(problem)
    check(walker, Case("rolling", problem, alpha=1.0), "rolling")


@pytest.mark.cuda
@pytest.mark.parametrize("keeps_indices", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("mode", PoolingMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize(
    ("window", "stride", "rows", "padding"),
    [(3, 1, 10, 1), (3, 1, 9, ((2, 0), (0, 1))), (3, 2, 16, 1), (3, 2, 11, 0), (2, 2, 13, 0), (2, 2, 12, 1)],
)
def test_walks_over_planes_agree_with_the_float64_answer(
    monkeypatch: pytest.MonkeyPatch,
    window: int,
    stride: int,
    rows: int,
    padding: Any,
    mode: PoolingMode,
    dtype: str,
    keeps_indices: bool,
) -> None:
    if keeps_indices and mode is not PoolingMode.MAX:
        pytest.skip("averages have no indices")
    monkeypatch.setattr(rolling_planes, "resident_threads", lambda *_: 0)
    monkeypatch.setattr(rolling_planes, "_MOST_ROWS", STEPS)
    problem = problem_of(
        (2, 3, rows, 6),
        stride,
        mode=mode,
        dtype=dtype,
        layout="NCHW",
        window=window,
        padding=padding,
        ceil_mode=True,
    )
    if keeps_indices:
        problem = replace(problem, indices=replace(problem.y, dtype=DType.INT32))
    with Handle(CUDA_DEVICES[0]) as handle:
        assert rolling_planes._walks(problem, handle.device.figures).walks > 1
        check(handle, Case("rolling_planes", problem, alpha=1.0), "rolling_planes")


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("mode", "keeps_indices"),
    [(mode, False) for mode in PoolingMode] + [(PoolingMode.MAX, True)],
    ids=lambda value: value.value if isinstance(value, PoolingMode) else "indices" if value else "",
)
@pytest.mark.parametrize(
    ("window", "stride", "rows", "padding"),
    [(3, 1, 10, 1), (3, 1, 9, ((2, 0), (0, 1))), (3, 2, 16, 1), (3, 2, 11, 0), (2, 2, 13, 0), (2, 2, 12, 1)],
)
def test_gradients_by_walks_of_many_steps_agree_with_the_float64_answer(
    descender: Handle,
    window: int,
    stride: int,
    rows: int,
    padding: Any,
    mode: PoolingMode,
    keeps_indices: bool,
    dtype: str,
    layout: str,
) -> None:
    forward = problem_of(
        (2, 16, rows, 6),
        stride,
        mode=mode,
        dtype=dtype,
        layout=layout,
        window=window,
        padding=padding,
        ceil_mode=True,
    )
    problem = gradient_of(forward) if keeps_indices else gradient_from_x_of(forward)
    walks = rolling_gradients._walks(problem, descender.device.figures, of_planes=layout == "NCHW")
    assert walks.walks > 1
    assert walks.walk > (window - 1) // stride
    check(descender, Case("rolling", problem, alpha=1.0), "rolling")


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("propagate", [True, False])
def test_nan_is_the_largest_or_the_smallest_of_all_and_padding_never_wins(
    walker: Handle, dtype: str, stride: int, propagate: bool
) -> None:
    rng = np.random.default_rng(5)
    x = rng.choice([NAN, NAN, -INF, -INF, -INF, INF, -2.0, -7.0, 0.5], (1, 8, 13, 7)).astype(DType.of(dtype).numpy)
    x[:, :, :3] = [[-INF], [NAN], [-INF]]  # three rows, and two columns, of what padding is easily taken for
    x[:, :, :, -2:] = NAN
    found = pooled(walker, x, problem_of(x.shape, stride, dtype=dtype, propagate_nan=propagate))
    expected = np.full(found.shape, -INF)
    for index in np.ndindex(*found.shape):
        (n, c), (top, left) = index[:2], (place * stride - 1 for place in index[2:])
        window = x[n, c, max(top, 0) : top + 3, max(left, 0) : left + 3].astype(np.float64)
        expected[index] = NAN if propagate and np.isnan(window).any() else np.fmax(window, -INF).max()
    assert np.array_equal(found.astype(np.float64), expected, equal_nan=True)
    kinds = [np.isnan(expected).any(), np.isinf(expected).any(), np.isfinite(expected).any()]
    assert kinds == [propagate, True, True]


@pytest.mark.cuda
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("window", "stride", "padding"), [(3, 1, 2), (3, 2, 1), (3, 2, 0), (2, 2, 1)])
@pytest.mark.parametrize("propagate", [True, False])
def test_the_gradient_goes_to_the_first_maximum_among_equals_nan_and_infinities(
    descender: Handle, layout: str, dtype: str, window: int, stride: int, padding: int, propagate: bool
) -> None:
    """As the reference has it, which looks for the maxima of all windows by itself."""
    forward = problem_of(
        (2, 8, 13, 8),
        stride,
        window=window,
        padding=padding,
        dtype=dtype,
        layout=layout,
        propagate_nan=propagate,
        ceil_mode=True,
    )
    problem, rng = gradient_from_x_of(forward), np.random.default_rng(7)
    x = rng.choice([NAN, -NAN, -INF, -INF, INF, -2.0, 0.0, -0.0, 0.0, -0.0, 3.0, 3.0], problem.x.shape)
    x[:, :, :3] = [[-INF], [NAN], [-INF]]  # rows, and columns, of what padding is easily taken for
    x[:, :, :, -2:] = NAN
    dy = rng.integers(1, 8, problem.dy.shape)  # sums of which are exact
    found = []
    with Handle("cpu") as reference:
        for handle, algorithm in ((descender, "rolling"), (reference, None)):
            plan = handle.plan(problem, algorithm=algorithm)
            with (
                handle.tensor(problem.y) as ty,
                handle.tensor(problem.dy) as tdy,
                handle.tensor(problem.x) as tx,
                handle.tensor(problem.dx) as tdx,
            ):
                tdy.assign(dy.astype(problem.dy.dtype.numpy))
                tx.assign(x.astype(problem.x.dtype.numpy))
                handle.run(plan, 1.0, [ty, tdy, tx], 0.0, [tdx])
                found.append(tdx.numpy())
    assert np.array_equal(found[0], found[1])


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("propagate", [True, False])
def test_of_zeros_the_positive_one_is_the_maximum_wherever_it_is(walker: Handle, dtype: str, propagate: bool) -> None:
    x = np.full((1, 8, 5, 5), -0.0, DType.of(dtype).numpy)
    for channel in range(8):
        x[0, channel, channel // 3, channel % 3] = 0.0  # another place of one window
    problem = problem_of(x.shape, 2, dtype=dtype, padding=0, propagate_nan=propagate)
    negative = np.signbit(pooled(walker, x, problem).astype(np.float64))
    assert not negative[0, :, 0, 0].any()
    assert negative[0, :, 1, 1].all()  # the only place that both windows see is none of the eight


@pytest.mark.cuda
@pytest.mark.parametrize("stride", [1, 2])
def test_averages_are_not_finite_in_the_windows_of_what_is_not_and_nowhere_else(walker: Handle, stride: int) -> None:
    x = np.ones((1, 8, 13, 9), np.float16)
    x[0, 0, 0, 0], x[0, 1, 6, 4], x[0, 2, 12, 8] = INF, -INF, NAN  # two of them in corners, beside padding
    x[0, 3, 5, 5], x[0, 3, 6, 5] = INF, -INF
    found = pooled(walker, x, problem_of(x.shape, stride, mode="average_exclude_padding"))
    expected = np.empty(found.shape)
    for index in np.ndindex(*found.shape):
        (n, c), (top, left) = index[:2], (place * stride - 1 for place in index[2:])
        with np.errstate(invalid="ignore"):
            expected[index] = x[n, c, max(top, 0) : top + 3, max(left, 0) : left + 3].astype(np.float64).mean()
    assert np.array_equal(found.astype(np.float64), expected, equal_nan=True)
    assert not np.isfinite(found[0, :4]).all(axis=(1, 2)).any()


@pytest.mark.cuda
@pytest.mark.parametrize("stride", [1, 2])
def test_tensors_that_start_at_an_odd_element_are_as_good(walker: Handle, stride: int) -> None:
    check(walker, Case("rolling", problem_of((1, 8, 5, 5), stride)), "rolling", GUARD + 1)


def offered(problem: PoolingForwardProblem, figures: DeviceFigures = H200) -> Offer:
    offer = RollingPooling().offer(problem, figures)
    assert isinstance(offer, Offer), offer
    return offer


def test_where_an_address_is_not_aligned_it_is_planar_pooling() -> None:
    problem = problem_of((2, 16, 8, 8))
    (choice,) = offered(problem).prepare()
    assert isinstance(choice, WhereAligned)
    assert choice.alignments == ((Place(0), 16), (Place(1), 16))
    otherwise = PlanarPooling("forward").offer(problem, H200)
    assert isinstance(otherwise, Offer)
    assert choice.otherwise == otherwise.prepare()


GOOGLENET = (
    ((64, 112, 112), 2),
    ((192, 56, 56), 2),
    ((192, 28, 28), 1),
    ((256, 28, 28), 1),
    ((480, 28, 28), 2),
    ((480, 14, 14), 1),
    ((512, 14, 14), 1),
    ((832, 7, 7), 1),
)


@pytest.mark.parametrize("images", [1, 8, 256])
@pytest.mark.parametrize("figures", [H200, A100], ids=["h200", "a100"])
@pytest.mark.parametrize(("plane", "stride"), GOOGLENET)
@pytest.mark.parametrize("mode", ["max", "average_include_padding"])
def test_walks_cover_every_row_once_and_leave_no_thread_waiting_if_there_are_few(
    mode: str, plane: tuple[int, int, int], stride: int, figures: DeviceFigures, images: int
) -> None:
    problem = problem_of((images, *plane), stride, mode=mode)
    split, rows, step = rolling._walks(problem, figures), problem.y.shape[2], rolling._rows_of_a_step(problem)
    assert (split.walks - 1) * split.walk < rows <= split.walks * split.walk
    assert split.walk % step == 0
    assert split.vectors * split.groups * 8 == plane[0]
    whole = split.items // split.walks
    registers = rolling._REGISTERS["max" if mode == "max" else "average", stride]
    resident = resident_threads(figures, rolling._THREADS, registers)
    if whole <= resident:
        assert split.items <= resident
    else:
        assert split.walk <= rolling._MOST_STEPS * step


@pytest.mark.parametrize("images", [1, 256])
@pytest.mark.parametrize(("plane", "stride"), GOOGLENET)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_training_keeps_to_vectors_of_channels(
    dtype: str, plane: tuple[int, int, int], stride: int, images: int
) -> None:
    forward = problem_of((images, *plane), stride, dtype=dtype, padding=2 - stride, ceil_mode=True)
    indices = replace(forward.y, dtype=DType.INT32)
    for algorithms, problem, name in (
        (pooling.FORWARD, replace(forward, indices=indices), "channels"),
        (pooling.BACKWARD, gradient_of(forward), "rolling"),
    ):
        found = fastest(algorithms, problem, H200)
        assert found is not None
        assert found[0].name == name


@pytest.mark.parametrize("images", [1, 256])
@pytest.mark.parametrize(("plane", "stride"), GOOGLENET)
def test_overlapping_windows_are_rolled_over(plane: tuple[int, int, int], stride: int, images: int) -> None:
    for dtype in ("float16", "bfloat16"):
        problem = problem_of((images, *plane), stride, dtype=dtype, padding=2 - stride, ceil_mode=True)
        found = fastest(pooling.FORWARD, problem, H200)
        assert found is not None
        assert found[0].name == "rolling"


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (problem_of((2, 16, 8, 8), dtype="float32"), "x is float32"),
        (problem_of((2, 12, 8, 8)), "no vectors of 8 channels"),
        (problem_of((2, 16, 8, 8), layout="NCHW"), "no vectors of 8 channels"),
        (problem_of((2, 16, 8, 8), window=2, padding=0), "windows of (2, 2) with strides (1, 1)"),
        (problem_of((2, 16, 8, 8), window=(3, 5)), "windows of (3, 5) with strides (1, 1)"),
        (problem_of((2, 16, 8, 8), stride=3), "windows of (3, 3) with strides (3, 3)"),
        (problem_of((2, 16, 8, 0), padding=2), "x is empty"),
        (problem_of((0, 16, 8, 8)), "y is empty"),
    ],
)
def test_what_it_does_not_compute_is_refused_with_the_reason(problem: PoolingForwardProblem, reason: str) -> None:
    found = RollingPooling().offer(problem, H200)
    assert isinstance(found, str)
    assert reason in found


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (problem_of((2, 16, 8, 8), dtype="float64"), "x is float64"),
        (problem_of((2, 12, 8, 8)), "no vectors of 8 channels"),
        (problem_of((2, 12, 8, 8)), "12 elements apart"),
        (problem_of((2, 16, 8, 8), window=2, padding=0), "windows of (2, 2) with strides (1, 1)"),
        (problem_of((2, 16, 8, 8), window=(3, 5)), "windows of (3, 5) with strides (1, 1)"),
        (problem_of((0, 16, 8, 8)), "dx is empty"),
    ],
)
def test_gradients_that_it_does_not_compute_are_refused_with_the_reason(
    problem: PoolingForwardProblem, reason: str
) -> None:
    found = RollingGradients().offer(gradient_of(problem), H200)
    assert isinstance(found, str)
    assert reason in found


def test_steps_that_32_bits_do_not_hold_are_refused() -> None:
    problem = problem_of((1, 8, 3, 3))
    far = TensorDescriptor(DType.FLOAT16, problem.x.shape, (1 << 33, 1, 1 << 30, 8))
    wide = problem_of((1, 1 << 30, 1, 1))
    algorithms: tuple[CudaAlgorithm, ...] = (RollingPooling(), pooling.FORWARD[1])
    for algorithm, each in itertools.product(algorithms, (replace(problem, x=far), wide)):
        found = algorithm.offer(each, H200)
        assert isinstance(found, str)
        assert "2147483648 bytes apart; at most 2147483647" in found
