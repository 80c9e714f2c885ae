"""What the cases cannot say about the fused convolution: the operation, its aliasing, its refusals, what its parts cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dnncore import ConvolutionDescriptor, DType, Handle, Preference, Tensor, ops
from dnncore.cuda.absent import AbsentDevice
from dnncore.descriptors import ActivationDescriptor, TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.figures import H200
from dnncore.plan import rank
from dnncore.problems import FusedConvolutionProblem
from dnncore.testing import assert_close

RELU = ActivationDescriptor.make("relu")
CONV = ConvolutionDescriptor.make(padding=1)


def _draw(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


X, W, Z = _draw((2, 3, 5, 4), 1), _draw((6, 3, 3, 3), 2), _draw((2, 6, 5, 4), 3)
X_, W_, Y_ = (TensorDescriptor.packed(array.shape) for array in (X, W, Z))
SCALE, BIAS = _draw((1, 6, 1, 1), 4), _draw((1, 6, 1, 1), 5)


def _sums(handle: Handle) -> np.ndarray:
    with handle.upload(X) as x, handle.upload(W) as w, handle.tensor(Z.shape) as y:
        ops.convolution_forward(handle, 1.0, x, w, CONV, 0.0, y, algorithm=None)
        return y.numpy().astype(np.float64)


def _algorithms(handle: Handle, problem: FusedConvolutionProblem) -> list[str]:
    found = rank(problem, handle.device, Preference.PREFER_FASTEST)
    return [algorithm.name for algorithm in found if algorithm.status is None]


def test_the_operation_applies_its_parts_in_the_documented_order(handle: Handle) -> None:
    with (
        handle.upload(X) as x,
        handle.upload(W) as w,
        handle.upload(SCALE) as scale,
        handle.upload(BIAS) as bias,
        handle.upload(Z) as z,
        handle.upload(np.full(Z.shape, np.nan, np.float32)) as y,
    ):
        ops.convolution_bias_activation_forward(handle, 0.5, x, w, CONV, bias, RELU, y, scale=scale, z=z, alpha2=-2.0)
        found = y.numpy()
    parts = (0.5 * _sums(handle) * SCALE, BIAS, -2.0 * Z)
    magnitude: np.ndarray = sum((np.abs(part) for part in parts), np.zeros(Z.shape)) + 27
    assert_close(found, np.maximum(parts[0] + parts[1] + parts[2], 0), magnitude, y.descriptor.dtype, 27)


def test_the_residual_may_be_the_output(handle: Handle) -> None:
    problem = FusedConvolutionProblem(X_, W_, Y_, CONV, z=Y_, activation=RELU)
    expected = np.maximum(_sums(handle) + Z, 0)
    for algorithm in _algorithms(handle, problem):
        with handle.upload(X) as x, handle.upload(W) as w, handle.upload(Z) as y:
            ops.convolution_bias_activation_forward(handle, 1.0, x, w, CONV, None, RELU, y, z=y, algorithm=algorithm)
            assert_close(y.numpy(), expected, np.abs(expected) + 28, y.descriptor.dtype, 28, algorithm)


def test_the_residual_may_be_the_output_where_vectors_are_read_ahead(handle: Handle) -> None:
    rng = np.random.default_rng(3)
    x, w, z = (rng.uniform(-1, 1, shape).astype(np.float16) for shape in ((2, 16, 9, 8), (72, 16, 1, 1), (2, 72, 9, 8)))
    conv = ConvolutionDescriptor.make()
    expected = np.einsum("nchw,kc->nkhw", x.astype(float), w[:, :, 0, 0].astype(float)) + z
    of_x, of_w, of_y = (TensorDescriptor.packed(value.shape, "float16", "NHWC") for value in (x, w, z))
    problem = FusedConvolutionProblem(of_x, of_w, of_y, conv, z=of_y)
    for algorithm in _algorithms(handle, problem):
        with handle.upload(x, "NHWC") as tx, handle.upload(w, "NHWC") as tw, handle.upload(z, "NHWC") as y:
            ops.convolution_bias_activation_forward(handle, 1.0, tx, tw, conv, None, None, y, z=y, algorithm=algorithm)
            assert_close(y.numpy(), expected, np.full(expected.shape, 17.0), DType.FLOAT16, 17, algorithm)


def test_what_is_overwritten_is_neither_blended_with_nor_the_residual(handle: Handle) -> None:
    problem = FusedConvolutionProblem(X_, W_, Y_, CONV, z=Y_, overwrites=True)
    plan = handle.plan(problem)
    with handle.upload(X) as x, handle.upload(W) as w, handle.upload(Z) as z, handle.upload(Z) as y:
        with pytest.raises(BadParamError, match=r"beta is 1\.0, but the plan is for a y that is overwritten"):
            handle.run(plan, 1.0, (x, w, z), 1.0, (y,))
        with pytest.raises(BadParamError, match="shares memory with z"):
            handle.run(plan, 1.0, (x, w, y), 0.0, (y,))


def test_sums_in_y_take_no_workspace() -> None:
    x, w, y = (TensorDescriptor.packed(shape) for shape in ((32, 64, 56, 56), (64, 64, 1, 1), (32, 64, 56, 56)))
    conv = ConvolutionDescriptor.make()
    taken, refused = (
        {one.name: one.workspace_bytes for one in rank(problem, AbsentDevice(H200), Preference()) if one.status is None}
        for problem in (FusedConvolutionProblem(x, w, y, conv, overwrites=overwrites) for overwrites in (True, False))
    )
    assert (taken["composed_in_place"], taken["composed"]) == (0, y.nbytes)
    assert "composed_in_place" not in refused


def test_a_residual_with_factor_0_is_not_read(handle: Handle) -> None:
    nans = np.full(Z.shape, np.nan, np.float32)
    problem = FusedConvolutionProblem(X_, W_, Y_, CONV, z=Y_, alpha2=0.0)
    for algorithm in _algorithms(handle, problem):
        with handle.upload(X) as x, handle.upload(W) as w, handle.upload(nans) as z, handle.tensor(Z.shape) as y:
            ops.convolution_bias_activation_forward(
                handle, 1.0, x, w, CONV, None, None, y, z=z, alpha2=0.0, algorithm=algorithm
            )
            assert np.isfinite(y.numpy()).all(), algorithm


def test_a_plan_says_which_algorithm_was_asked_for(handle: Handle) -> None:
    problem = FusedConvolutionProblem(X_, W_, Y_, CONV)
    names = _algorithms(handle, problem)
    assert [handle.plan(problem, algorithm=name).algorithm for name in names] == names


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": TensorDescriptor.packed((6,))}, r"scale has shape \(6,\) but w \(6, 3, 3, 3\) needs \(1, 6, 1, 1\)"),
        ({"bias": TensorDescriptor.packed((1, 5, 1, 1))}, r"bias has shape \(1, 5, 1, 1\)"),
        ({"bias": TensorDescriptor.packed((1, 6, 1, 1), "float64")}, "bias is float64 but x is float32"),
        ({"z": TensorDescriptor.packed((2, 6, 5, 5))}, "z is float32.* but y is float32"),
        ({"z": TensorDescriptor.packed((2, 6, 5, 4), "float16")}, "z is float16.* but y is float32"),
        ({"alpha2": 2.0}, "alpha2 is 2.0 but there is no z"),
        ({"alpha1": float("nan")}, "alpha1 nan and alpha2 1.0 must be finite"),
        ({"y": TensorDescriptor.packed((2, 6, 5, 5))}, "y has shape"),
    ],
)
def test_operands_that_disagree_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"x": X_, "w": W_, "y": Y_, "convolution": CONV}
    with pytest.raises(BadParamError, match=message):
        FusedConvolutionProblem(**(fields | changes))


@pytest.mark.parametrize(("y", "parameter", "message"), [
    ("int32", "float32", "y is int32 but x is int8; y must be int8 or float32"),
    ("int8", "int8", "scale is int8 but x is int8; it must be float32"),
])  # fmt: skip
def test_int8_needs_its_own_dtypes(y: str, parameter: str, message: str) -> None:
    x, w = (TensorDescriptor.packed(like.shape, "int8") for like in (X_, W_))
    scale = TensorDescriptor.packed((1, 6, 1, 1), parameter)
    with pytest.raises(BadParamError, match=message):
        FusedConvolutionProblem(x, w, TensorDescriptor.packed(Y_.shape, y), CONV, scale)


def test_scale_and_bias_are_of_one_dtype() -> None:
    x, w, y = (TensorDescriptor.packed(like.shape, "float16") for like in (X_, W_, Y_))
    one, other = (TensorDescriptor.packed((1, 6, 1, 1), dtype) for dtype in ("float16", "float32"))
    with pytest.raises(BadParamError, match="scale is float16 but bias is float32"):
        FusedConvolutionProblem(x, w, y, CONV, one, other)


def test_a_parameter_may_be_one_number_for_all_filters(handle: Handle) -> None:
    one = np.full(1, 3, np.float32)
    stretched = TensorDescriptor(TensorDescriptor.of(one).dtype, (1, 6, 1, 1), (1, 0, 1, 1))
    problem = FusedConvolutionProblem(X_, W_, Y_, CONV, bias=stretched)
    expected = _sums(handle) + 3
    for algorithm in _algorithms(handle, problem):
        with handle.upload(X) as x, handle.upload(W) as w, handle.upload(one) as b, handle.tensor(Z.shape) as y:
            bias: Tensor = b.view(stretched)
            ops.convolution_bias_activation_forward(handle, 1.0, x, w, CONV, bias, None, y, algorithm=algorithm)
            assert_close(y.numpy(), expected, np.abs(expected) + 28, y.descriptor.dtype, 28, algorithm)
