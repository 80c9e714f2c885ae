"""Maxima: which of several equal ones wins, what NaN does, what indices may name. Averages of int8: how they are rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnncore import Handle, PoolingDescriptor, TensorDescriptor, ops
from dnncore.descriptors import PoolingMode
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.plan import Preference, rank
from dnncore.problems import PoolingBackwardIndicesProblem, PoolingBackwardProblem, PoolingForwardProblem, Problem

NAN, INF = np.nan, np.inf


LAYOUTS = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])


def packed(array: np.ndarray, layout: str = "NCHW") -> TensorDescriptor:
    return TensorDescriptor.packed(array.shape, array.dtype.name, layout)


def solve(
    handle: Handle, problem: Problem, *inputs: np.ndarray, alpha: float = 1.0, beta: float = 0.0, old: Any = 0
) -> list[np.ndarray]:
    """Its outputs by the algorithm that would be chosen, the same by every other one that computes in the same type."""
    found: list[list[np.ndarray]] = []
    chosen = handle.plan(problem).offer.math
    for algorithm in rank(problem, handle.device, Preference.PREFER_FASTEST):
        if algorithm.status is None and algorithm.math == chosen:
            sources = [handle.tensor(descriptor) for descriptor in problem.inputs]
            for source, array in zip(sources, inputs, strict=True):
                source.assign(array)
            targets = [handle.tensor(descriptor) for descriptor in problem.outputs]
            for target in targets:
                target.assign(np.broadcast_to(old, target.descriptor.shape).astype(target.descriptor.dtype.numpy))
            handle.run(handle.plan(problem, algorithm=algorithm.name), alpha, sources, beta, targets)
            found.append([target.numpy() for target in targets])
            for tensor in (*sources, *targets):
                tensor.close()
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            assert np.array_equal(a.astype(np.float64), b.astype(np.float64), equal_nan=True)
    return found[0]


def forward(handle: Handle, x: np.ndarray, pooling: PoolingDescriptor, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """y, the same with the indices and without, and the indices."""
    shape = pooling.output_shape(x.shape)
    y, places = (TensorDescriptor.packed(shape, dtype, layout) for dtype in (x.dtype.name, "int32"))
    (alone,) = solve(handle, PoolingForwardProblem(packed(x, layout), y, pooling), x)
    together, indices = solve(handle, PoolingForwardProblem(packed(x, layout), y, pooling, places), x)
    assert np.array_equal(alone, together, equal_nan=True)
    return alone, indices


def backward(
    handle: Handle, x: np.ndarray, dy: np.ndarray, pooling: PoolingDescriptor, layout: str
) -> tuple[np.ndarray, np.ndarray]:
    """dx from x, and dx from the indices."""
    y, indices = forward(handle, x, pooling, layout)
    tx, ty, places = packed(x, layout), packed(y, layout), packed(indices, layout)
    by_x = PoolingBackwardProblem(ty, ty, tx, tx, pooling)
    by_indices = PoolingBackwardIndicesProblem(ty, places, tx, pooling)
    return solve(handle, by_x, y, dy, x)[0], solve(handle, by_indices, dy, indices)[0]


GEOMETRIES = ((2, 2, 0), (3, 2, 1), (3, 1, 1))
ROW: list[tuple[bool, list[float], float, int]] = [
    (True, [1, 3, 3, 2], 3, 1),
    (True, [1, NAN, 3, NAN], NAN, 1),
    (True, [-INF, -INF, -INF, -INF], -INF, 0),
    (True, [INF, NAN, INF, 0], NAN, 1),
    (False, [1, NAN, 3, 3], 3, 2),
    (False, [NAN, -INF, -5, NAN], -5, 2),
    (False, [NAN, NAN, NAN, NAN], -INF, 0),
    (False, [NAN, 2, INF, INF], INF, 2),
]


@LAYOUTS
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize(("propagate", "values", "maximum", "place"), ROW)
def test_the_first_maximum_wins_and_nan_is_the_largest_or_the_smallest_of_all(
    handle: Handle,
    geometry: tuple[int, int, int],
    propagate: bool,
    values: list[float],
    maximum: float,
    place: int,
    layout: str,
) -> None:
    window, stride, padding = geometry
    x = np.tile(np.array(values, np.float32).reshape(1, 1, 2, 2), (1, 4, 1, 1))
    pooling = PoolingDescriptor.make("max", window, stride=stride, padding=padding, propagate_nan=propagate)
    y, indices = forward(handle, x, pooling, layout)
    assert np.array_equal(y, np.full(y.shape, maximum), equal_nan=True)
    assert np.array_equal(indices, np.full(y.shape, place))
    dy = np.arange(1, y.size + 1, dtype=np.float32).reshape(y.shape)
    expected = np.zeros((4, 4))
    expected[:, place] = dy.sum((0, 2, 3))
    for dx in backward(handle, x, dy, pooling, layout):
        assert np.array_equal(dx.reshape(4, 4), expected)


@LAYOUTS
@pytest.mark.parametrize("geometry", [*GEOMETRIES, (5, 3, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_both_backward_operations_agree_bit_for_bit_where_windows_hold_equal_maxima(
    handle: Handle, geometry: tuple[int, int, int], dtype: str, layout: str
) -> None:
    window, stride, padding = geometry
    pooling = PoolingDescriptor.make("max", window, stride=stride, padding=padding, ceil_mode=True)
    rng = np.random.default_rng(3)
    numpy_type = DType.of(dtype).numpy
    x = rng.integers(0, 3, (2, 8, 11, 14)).astype(numpy_type)
    dy = rng.standard_normal(pooling.output_shape(x.shape)).astype(numpy_type)
    by_x, by_indices = backward(handle, x, dy, pooling, layout)
    assert np.array_equal(by_x, by_indices)
    assert 0 < np.count_nonzero(by_x) <= dy.size


@LAYOUTS
@pytest.mark.parametrize("geometry", [(2, 2), (3, 2), (3, 1)], ids=str)
def test_an_index_outside_its_own_window_adds_nothing(handle: Handle, geometry: tuple[int, int], layout: str) -> None:
    window, stride = geometry
    pooling = PoolingDescriptor.make("max", window, stride=stride)
    dx = TensorDescriptor.packed((1, 4, 8, 8), layout=layout)
    wild = np.full(pooling.output_shape(dx.shape), -1, np.int32)
    wild[0, 0, 0, :3] = [64, 1 << 30, -(1 << 31)]  # behind the plane, and before it
    wild[0, 0, 1, :] = 7 * 8 + np.arange(wild.shape[3])  # in its last row
    wild[0, 1, 1, 0] = stride * 8 - 1  # the end of the row above the window
    wild[0, 1, 1, 1] = stride * 8 + stride  # its first place
    wild[0, 1, 2, 1] = (2 * stride - 1) * 8 + stride  # the place above that
    dy = np.ones(wild.shape, np.float32)
    (found,) = solve(
        handle, PoolingBackwardIndicesProblem(packed(dy, layout), packed(wild, layout), dx, pooling), dy, wild
    )
    expected = np.zeros(dx.shape)
    expected[0, 1, stride, stride] = 1
    assert np.array_equal(found, expected)


def test_indices_count_places_of_the_plane_in_row_major_order_however_the_input_lies(handle: Handle) -> None:
    x = TensorDescriptor.packed((2, 3, 5, 7), layout="NHWC")
    pooling = PoolingDescriptor.make("max", 3, stride=2, padding=1)
    values = np.random.default_rng(1).permutation(x.size).reshape(x.shape).astype(np.float32)
    shape = pooling.output_shape(x.shape)
    with handle.tensor(x) as tx, handle.tensor(shape) as ty, handle.tensor(shape, "int32") as indices:
        tx.assign(values)
        ops.pooling_forward(handle, 1.0, tx, pooling, 0.0, ty, indices)
        found = np.take_along_axis(values.reshape(2, 3, 35), indices.numpy().reshape(2, 3, -1), 2)
        assert np.array_equal(found, ty.numpy().reshape(2, 3, -1))


@pytest.mark.parametrize(
    ("alpha", "beta", "expected"),
    [(1.0, 0.0, [0, 2, 0, -2, -2, 127, -128, 52]), (2.0, -1.0, [0, 1, -4, -7, -8, 127, -128, 95])],
)
def test_averages_of_int8_are_rounded_to_even_and_saturate(
    handle: Handle, alpha: float, beta: float, expected: list[int]
) -> None:
    pairs = [[0, 1], [1, 2], [-1, 0], [-2, -1], [-3, 0], [127, 127], [-128, -128], [100, 3]]
    x = np.array(pairs, np.int8).reshape(1, 8, 1, 2)
    pooling = PoolingDescriptor.make("average_exclude_padding", (1, 2))
    problem = PoolingForwardProblem(packed(x), TensorDescriptor.packed((1, 8, 1, 1), "int8"), pooling)
    old = np.arange(1, 9, dtype=np.int8).reshape(1, 8, 1, 1)
    (y,) = solve(handle, problem, x, alpha=alpha, beta=beta, old=old)
    assert y.ravel().tolist() == expected


def _tensor(shape: tuple[int, ...], dtype: str = "float32") -> TensorDescriptor:
    return TensorDescriptor.packed(shape, dtype)


X, Y = _tensor((1, 2, 4, 4)), _tensor((1, 2, 2, 2))
MAX, AVERAGE = PoolingDescriptor.make("max", 2), PoolingDescriptor.make(PoolingMode.AVERAGE_INCLUDE_PADDING, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoolingForwardProblem(X, Y, AVERAGE, _tensor(Y.shape, "int32")), "mode average_include_padding"),
        (lambda: PoolingForwardProblem(X, Y, MAX, Y), "must be int32"),
        (lambda: PoolingForwardProblem(X, Y, MAX, _tensor((1, 2, 2, 3), "int32")), "of the shape of y"),
        (lambda: PoolingForwardProblem(X, _tensor(Y.shape, "float16"), MAX), "x is float32 but y is float16"),
        (lambda: PoolingForwardProblem(_tensor(X.shape, "int32"), _tensor(Y.shape, "int32"), MAX), "x is int32"),
        (lambda: PoolingForwardProblem(_tensor(X.shape, "int8"), Y, MAX), "x is int8 but y is float32"),
        (lambda: PoolingForwardProblem(X, X, MAX), "y has shape"),
        (lambda: PoolingBackwardIndicesProblem(X, _tensor(X.shape, "int32"), X, MAX), "dy has shape"),
        (lambda: PoolingBackwardIndicesProblem(Y, _tensor(Y.shape, "int32"), X, AVERAGE), "indices are those of"),
        (lambda: PoolingBackwardIndicesProblem(Y, Y, X, MAX), "of the shape of dy"),
        (
            lambda: PoolingBackwardIndicesProblem(
                _tensor(Y.shape, "int8"), _tensor(Y.shape, "int32"), _tensor(X.shape, "int8"), MAX
            ),
            "dy is int8",
        ),
        (
            lambda: PoolingForwardProblem(
                TensorDescriptor(X.dtype, (1, 1, 1 << 16, 1 << 16), (0, 0, 0, 0)),
                _tensor((1, 1, 1 << 15, 1 << 15)),
                MAX,
                _tensor((1, 1, 1 << 15, 1 << 15), "int32"),
            ),
            "4294967296 places",
        ),
        (lambda: PoolingDescriptor.make("max", 2, padding=2), "less than the window"),
    ],
)
def test_problems_that_contradict_themselves_name_what_disagrees(make: Any, message: str) -> None:
    with pytest.raises(BadParamError, match=message):
        make()
