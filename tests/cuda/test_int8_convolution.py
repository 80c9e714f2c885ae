"""Convolutions of int8 against integer arithmetic: sums are exact, whatever the values, and every algorithm gives the same bits."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dnncore import ConvolutionDescriptor, Handle, Preference, TensorDescriptor
from dnncore.plan import rank
from dnncore.problems import ConvolutionProblem, Direction
from tests.conftest import CUDA_DEVICES

pytestmark = pytest.mark.cuda

TILED = {"implicit_gemm", "implicit_precomp_gemm", "implicit_gemm_split_k"}


def _sums(x: np.ndarray, w: np.ndarray, padding: int, stride: int, groups: int) -> np.ndarray:
    """Every output of a two-dimensional convolution, one after the other, in int64."""
    x, w = (tensor.astype(np.int64) for tensor in (x, w))
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    (n, _, h, width), (k, c, r, s) = x.shape, w.shape
    y = np.zeros((n, k, (h - r) // stride + 1, (width - s) // stride + 1), np.int64)
    for i, f, p, q in itertools.product(*map(range, y.shape)):
        channels = slice(f // (k // groups) * c, (f // (k // groups) + 1) * c)
        y[i, f, p, q] = (x[i, channels, p * stride : p * stride + r, q * stride : q * stride + s] * w[f]).sum()
    return y


def _results(
    device: str,
    x: np.ndarray,
    w: np.ndarray,
    dtype: str,
    layout: str,
    alpha: float = 1.0,
    **settings: Any,
) -> dict[str, np.ndarray]:
    """y by every algorithm that supports it."""
    conv = ConvolutionDescriptor.make(**settings)
    x_, w_ = (TensorDescriptor.packed(tensor.shape, "int8", layout) for tensor in (x, w))
    y_ = TensorDescriptor.packed(conv.output_shape(x.shape, w.shape), dtype, layout)
    problem = ConvolutionProblem(Direction.FORWARD, x_, w_, y_, conv)
    found = {}
    with (
        Handle(device) as handle,
        handle.upload(x, layout) as tx,
        handle.upload(w, layout) as tw,
        handle.tensor(y_.shape, dtype, layout) as ty,
    ):
        for algorithm in rank(problem, handle.device, Preference.PREFER_FASTEST):
            if algorithm.status is None:
                ty.assign(np.full(ty.shape, 77, dtype))
                handle.run(handle.plan(problem, algorithm=algorithm.name), alpha, [tx, tw], 0.0, [ty])
                found[algorithm.name] = ty.numpy()
    return found


def _draw(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, shape, np.int8)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "CHWN"])
@pytest.mark.parametrize(("channels", "groups"), [(48, 1), (32, 2), (21, 3)])
def test_sums_are_those_of_integers(layout: str, channels: int, groups: int) -> None:
    x, w = _draw((2, channels, 6, 7), 1), _draw((4 * groups, channels // groups, 3, 3), 2)
    expected = _sums(x, w, 1, 2, groups)
    for dtype in ("int32", "float32"):
        found = _results(CUDA_DEVICES[0], x, w, dtype, layout, padding=1, stride=2, groups=groups)
        assert {"implicit_gemm", "direct"} <= found.keys()
        for name, y in found.items():
            np.testing.assert_array_equal(y, expected, name)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_every_algorithm_rounds_alike(dtype: str) -> None:
    x, w = _draw((1, 160, 4, 5), 3), _draw((6, 160, 3, 3), 4)
    found = _results(CUDA_DEVICES[0], x, w, dtype, "NHWC", 0.37 / 2**13)
    assert found.keys() == {*TILED, "direct"}
    for name, y in found.items():
        np.testing.assert_array_equal(y, found["direct"], name)
    scaled = np.float32(0.37 / 2**13) * _sums(x, w, 0, 1, 1).astype(np.float32)
    if dtype == "int8":
        scaled = np.clip(np.rint(scaled), -128, 127)
    np.testing.assert_array_equal(found["direct"], scaled)


@pytest.mark.parametrize("length", [2**17 - 1, 2**17])
def test_the_longest_sum_of_the_largest_values_is_exact(length: int) -> None:
    x, w = np.full((1, length, 1, 1), -128, np.int8), np.full((2, length, 1, 1), -128, np.int8)
    w[1] = 127
    found = _results(CUDA_DEVICES[0], x, w, "int32", "NHWC")
    assert found.keys() == ({*TILED, "direct"} if length < 2**17 else {"implicit_gemm_split_k", "direct"})
    for name, y in found.items():
        assert y.ravel().tolist() == [min(length * 2**14, 2**31 - 1), -length * 128 * 127], name
