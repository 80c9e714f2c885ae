"""Softmax and cross-entropy of rows with infinities, NaN and values in order; by every algorithm, and in place."""

from __future__ import annotations

import numpy as np
import pytest

from dnncore import CrossEntropyDescriptor, Handle, TensorDescriptor
from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.plan import Preference, rank
from dnncore.problems import (
    CrossEntropyBackwardProblem,
    CrossEntropyForwardProblem,
    Problem,
    SoftmaxBackwardProblem,
    SoftmaxForwardProblem,
)
from dnncore.testing import assert_close

INF, NAN = np.inf, np.nan
LENGTHS = (5, 40, 1025, 32772)
"""Rows that a thread, a warp and a block keep in registers, and one that nobody does; the second and the last are whole packs."""

KINDS = (SoftmaxAlgorithm.ACCURATE, SoftmaxAlgorithm.LOG)


def packed(array: np.ndarray) -> TensorDescriptor:
    return TensorDescriptor.packed(array.shape, array.dtype.name)


def solve(handle: Handle, problem: Problem, *inputs: np.ndarray, in_place: int | None = None) -> list[np.ndarray]:
    """The output by each algorithm that supports the problem; `in_place`, it overwrites an input."""
    found = []
    for algorithm in rank(problem, handle.device, Preference.PREFER_FASTEST):
        if algorithm.status is None:
            sources = [handle.upload(array) for array in inputs]
            output = handle.tensor(problem.outputs[0]) if in_place is None else sources[in_place]
            handle.run(handle.plan(problem, algorithm=algorithm.name), 1.0, sources, 0.0, [output])
            found.append(output.numpy())
            for tensor in {id(t): t for t in (*sources, output)}.values():
                tensor.close()
    return found


def row_of(length: int, *special: tuple[int, float]) -> np.ndarray:
    x = np.random.default_rng(length).uniform(-2, 2, (1, length)).astype(np.float32)
    for place, value in special:
        x[0, place] = value
    return x


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_minus_infinity_has_probability_0_wherever_it_stands(
    handle: Handle, length: int, kind: SoftmaxAlgorithm
) -> None:
    x = row_of(length, (0, -INF), (length // 2, -INF), (length - 1, -INF))
    with np.errstate(divide="ignore"):
        probabilities = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum()
        expected = np.log(probabilities) if kind is SoftmaxAlgorithm.LOG else probabilities
    magnitude = np.where(np.isinf(expected), 1.0, np.abs(expected)) + 4.0 * (kind is SoftmaxAlgorithm.LOG)
    for y in solve(handle, SoftmaxForwardProblem(packed(x), packed(x), kind, SoftmaxMode.CHANNEL), x):
        assert_close(y, expected, magnitude, DType.FLOAT32, length)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("special", ["nan", "infinity", "nothing but minus infinity"])
def test_a_row_without_a_softmax_is_nan_and_its_neighbour_is_not(
    handle: Handle, length: int, kind: SoftmaxAlgorithm, special: str
) -> None:
    x = np.concatenate([row_of(length), row_of(length)])
    if special == "nothing but minus infinity":
        x[1] = -INF
    else:
        x[1, length // 2] = NAN if special == "nan" else INF
    for y in solve(handle, SoftmaxForwardProblem(packed(x), packed(x), kind, SoftmaxMode.CHANNEL), x):
        assert np.isfinite(y[0]).all()
        assert np.isnan(y[1]).all()


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_long_row_in_order_is_as_accurate_as_any(handle: Handle, order: int, dtype: str) -> None:
    """Its sum is rescaled with every new maximum."""
    x = np.sort(np.random.default_rng(5).uniform(-30, 30, (1, 33001)))[:, ::order].astype(dtype)
    exponentials = np.exp(x.astype(np.float64) - x.max())
    expected = exponentials / exponentials.sum()
    problem = SoftmaxForwardProblem(packed(x), packed(x), SoftmaxAlgorithm.ACCURATE, SoftmaxMode.CHANNEL)
    for y in solve(handle, problem, x):
        # The difference from the largest is rounded too, and an exponential is as much off as its argument.
        assert_close(y, expected, expected * (1 + (x.max() - x.astype(np.float64))), DType.of(dtype), x.size)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", tuple(SoftmaxAlgorithm))
def test_an_output_may_be_an_input(handle: Handle, length: int, kind: SoftmaxAlgorithm) -> None:
    x = np.concatenate([row_of(length), row_of(length)[:, ::-1]])
    forward = SoftmaxForwardProblem(packed(x), packed(x), kind, SoftmaxMode.CHANNEL)
    for y, apart in zip(solve(handle, forward, x, in_place=0), solve(handle, forward, x), strict=True):
        assert np.array_equal(y, apart)
    dy = np.cos(np.arange(x.size, dtype=np.float32)).reshape(x.shape)
    backward = SoftmaxBackwardProblem(packed(x), packed(x), packed(x), kind, SoftmaxMode.CHANNEL)
    for dx, apart in zip(solve(handle, backward, y, dy, in_place=1), solve(handle, backward, y, dy), strict=True):
        assert np.array_equal(dx, apart)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_small_loss_is_not_lost_beside_large_logits(handle: Handle, length: int) -> None:
    x = np.zeros((1, length), np.float32)
    x[0, length // 3] = 1000
    x[0, 0] = 988
    labels, loss = np.array([length // 3], np.int32), TensorDescriptor.packed((1,))
    for found in solve(handle, CrossEntropyForwardProblem(packed(x), packed(labels), loss), x, labels):
        assert found[0] == pytest.approx(np.log1p(np.exp(-12)), rel=1e-2)  # 6.1e-6, a hundred roundings of 1


@pytest.mark.parametrize("length", LENGTHS)
def test_impossible_classes_cost_nothing_until_they_are_right(handle: Handle, length: int) -> None:
    x = np.concatenate([row_of(length, (1, -INF))] * 2)
    labels = np.array([0, 1], np.int32)
    forward = CrossEntropyForwardProblem(packed(x), packed(labels), TensorDescriptor.packed((2,)))
    for loss in solve(handle, forward, x, labels):
        assert np.isfinite(loss[0])
        assert loss[1] == INF
    probabilities = np.zeros(x.shape, np.float32)
    probabilities[:, 0] = 1
    same = CrossEntropyForwardProblem(packed(x), packed(probabilities), TensorDescriptor.packed((2,)))
    for first, second in zip(solve(handle, forward, x, labels), solve(handle, same, x, probabilities), strict=True):
        assert second[0] == second[1] == first[0]
    backward = CrossEntropyBackwardProblem(packed(x), packed(labels), packed(x))
    for dx in solve(handle, backward, x, labels):
        assert np.array_equal(dx[:, 1], [0, -1])


@pytest.mark.parametrize(
    ("labels", "loss", "settings", "message"),
    [
        (TensorDescriptor.packed((3, 4)), "float32", {"ignore_index": 1}, "ignore_index is 1"),
        (TensorDescriptor.packed((3, 5)), "float32", {}, "probabilities of the dtype and shape of x"),
        (TensorDescriptor.packed((3, 4), "float64"), "float32", {}, "probabilities of the dtype and shape of x"),
        (TensorDescriptor.packed((4,), "int32"), "float32", {}, "one per row of x"),
        (TensorDescriptor.packed((3,), "int32"), "float64", {}, "x is float32 but loss is float64"),
        (TensorDescriptor.packed((3,), "int32"), "float32", {"label_smoothing": 1.5}, "from 0 to 1"),
    ],
)
def test_labels_losses_and_settings_that_do_not_fit_are_refused(
    labels: TensorDescriptor, loss: str, settings: dict[str, float], message: str
) -> None:
    with pytest.raises(BadParamError, match=message):
        CrossEntropyForwardProblem(
            TensorDescriptor.packed((3, 4)),
            labels,
            TensorDescriptor.packed((3,), loss),
            CrossEntropyDescriptor(**settings),  # type: ignore[arg-type]
        )
