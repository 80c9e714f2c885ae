"""NaN and infinities go where the mathematics sends them and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dnncore import RELU, DType, Handle, PoolingDescriptor, ops
from dnncore.testing import assert_close


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_max_pooling_and_relu_let_special_values_through(handle: Handle, value: float) -> None:
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 1, 2] = value
    with handle.upload(x) as tx, handle.tensor(x.shape) as relu, handle.tensor((1, 1, 2, 2)) as pooled:
        ops.activation_forward(handle, RELU, 1.0, tx, 0.0, relu)
        ops.pooling_forward(handle, 1.0, tx, PoolingDescriptor.make("max", 2), 0.0, pooled)
        assert np.array_equal(relu.numpy(), x, equal_nan=True)
        assert np.array_equal(pooled.numpy(), np.array([[[[0, value], [0, 0]]]]), equal_nan=True)


def test_equal_maxima_send_the_gradient_to_the_first(handle: Handle) -> None:
    x = np.ones((1, 1, 2, 2), np.float32)
    pooling = PoolingDescriptor.make("max", 2)
    with handle.upload(x) as tx, handle.upload(x[:, :, :1, :1]) as ty, handle.tensor(x.shape) as tdx:
        ops.pooling_backward(handle, 1.0, ty, ty, tx, pooling, 0.0, tdx)
        assert np.array_equal(tdx.numpy(), [[[[1, 0], [0, 0]]]])


@pytest.mark.parametrize("geometry", [(2, 2, 0), (3, 2, 1), (3, 3, 1)], ids=str)
@pytest.mark.parametrize(("value", "first"), [(np.nan, 1), (-np.inf, 0)])
def test_gradients_go_to_the_first_nan_and_to_the_first_of_nothing_but_minus_infinity(
    handle: Handle, geometry: tuple[int, int, int], value: float, first: int
) -> None:
    window, stride, padding = geometry
    x = np.full((1, 1, 2, 2), value, np.float32)
    x[0, 0, 0, :first] = 7
    pooling = PoolingDescriptor.make("max", window, stride=stride, padding=padding)
    dy = np.full((1, 1, 1, 1), 5, np.float32)
    with handle.upload(x) as tx, handle.tensor(dy.shape) as ty, handle.upload(dy) as tdy, handle.tensor(x.shape) as tdx:
        ops.pooling_forward(handle, 1.0, tx, pooling, 0.0, ty)
        ops.pooling_backward(handle, 1.0, ty, tdy, tx, pooling, 0.0, tdx)
        expected = np.zeros(4, np.float32)
        expected[first] = 5
        assert np.array_equal(tdx.numpy().ravel(), expected)


def test_accurate_softmax_survives_large_inputs_where_fast_overflows(handle: Handle) -> None:
    from dnncore import SoftmaxAlgorithm, SoftmaxMode

    x = np.array([[1e4, 1e4 - 1]], np.float32)
    with handle.upload(x) as tx, handle.tensor(x.shape) as ty:
        ops.softmax_forward(handle, SoftmaxAlgorithm.ACCURATE, SoftmaxMode.CHANNEL, 1.0, tx, 0.0, ty)
        expected = np.array([[1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))]])
        assert_close(ty.numpy(), expected, expected, DType.FLOAT32, 2)
        ops.softmax_forward(handle, SoftmaxAlgorithm.FAST, SoftmaxMode.CHANNEL, 1.0, tx, 0.0, ty)
        assert np.isnan(ty.numpy()).all()


_TAKEN = np.array([-np.inf, -2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, 1e5, np.inf, np.nan])


@pytest.mark.parametrize(
    ("operator", "function"),
    [
        ("abs", np.abs),
        ("ceil", np.ceil),
        ("floor", np.floor),
        ("round", np.rint),
        ("sign", np.sign),
        ("sin", np.sin),
        ("cos", np.cos),
        ("exp", np.exp),
        ("log", np.log),
        ("softplus", lambda x: np.logaddexp(0, x)),
        ("rsqrt", lambda x: 1 / np.sqrt(x)),
        ("reciprocal", np.reciprocal),
    ],
)
def test_functions_of_halves_large_numbers_infinities_and_nan(
    handle: Handle, operator: str, function: Callable[[np.ndarray], np.ndarray]
) -> None:
    with np.errstate(all="ignore"):
        expected = function(_TAKEN)
    with handle.upload(_TAKEN.astype(np.float32)) as x, handle.tensor(_TAKEN.shape) as y:
        ops.unary(handle, operator, 1.0, x, 0.0, y)
        assert_close(y.numpy(), expected, np.abs(expected), DType.FLOAT32, 2)
