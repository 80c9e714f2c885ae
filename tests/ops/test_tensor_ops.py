"""What the cases do not show of the tensor operations: aliasing, refusals, special values."""

from __future__ import annotations

import numpy as np
import pytest

from dnncore import DType, Handle, ops
from dnncore.descriptors import BinaryOperator, ReduceOperator, TensorDescriptor
from dnncore.errors import BadParamError


def test_set_fills_the_elements_and_not_the_gaps(handle: Handle) -> None:
    with handle.upload(np.zeros(12, np.int32)) as block:
        ops.set_tensor(handle, 7, block.view(TensorDescriptor(DType.INT32, (2, 2), (6, 3))))
        assert block.numpy().tolist() == [7, 0, 0, 7, 0, 0, 7, 0, 0, 7, 0, 0]


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype is not DType.BOOL], ids=lambda dtype: dtype.value)
def test_set_and_scale_in_every_dtype(handle: Handle, dtype: DType) -> None:
    with handle.tensor((37,), dtype) as y:
        ops.set_tensor(handle, 21, y)
        factor = 2 if dtype is DType.UINT8 else -2
        ops.scale_tensor(handle, factor, y)
        assert (y.numpy().astype(np.float64) == 21 * factor).all()


def test_int8_is_rounded_to_even_and_saturated(handle: Handle) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, 127.4, 300, -300, np.inf, np.nan], np.float32)
    with handle.upload(x) as tx, handle.tensor(x.shape, "int8") as ty:
        ops.transform(handle, 1.0, tx, 0.0, ty)
        assert ty.numpy().tolist() == [0, 2, 2, 0, 127, 127, -128, 127, 0]


def test_a_result_may_overwrite_an_operand(handle: Handle) -> None:
    a, b = np.arange(40, dtype=np.float32), np.full(40, 2, np.float32)
    with handle.upload(a) as ta, handle.upload(b) as tb:
        ops.binary(handle, BinaryOperator.MUL, 1.0, ta, 3.0, tb, 0.0, ta)
        assert np.array_equal(ta.numpy(), a * 6)
        ops.binary(handle, "sub", 1.0, ta, 1.0, tb, 0.0, tb)
        assert np.array_equal(tb.numpy(), a * 6 - 2)


@pytest.mark.parametrize("operator", [BinaryOperator.MIN, BinaryOperator.MAX])
def test_the_extreme_of_anything_and_nan_is_nan(handle: Handle, operator: BinaryOperator) -> None:
    a, b = np.array([1, np.nan, np.nan], np.float32), np.array([np.nan, 1, np.nan], np.float32)
    with handle.upload(a) as ta, handle.upload(b) as tb:
        ops.binary(handle, operator, 1.0, ta, 1.0, tb, 0.0, ta)
        assert np.isnan(ta.numpy()).all()


@pytest.mark.parametrize("operator", [ReduceOperator.MIN, ReduceOperator.MAX, ReduceOperator.AMAX])
@pytest.mark.parametrize("length", [7, 300])
def test_reductions_find_the_first_nan_and_the_first_of_equals(
    handle: Handle, operator: ReduceOperator, length: int
) -> None:
    x = np.ones((2, length), np.float32)
    x[0, [3, 5]] = np.nan
    with handle.upload(x) as tx, handle.tensor((2, 1)) as ty, handle.tensor((2, 1), "int32") as ti:
        ops.reduce(handle, operator, 1.0, tx, 0.0, ty, ti)
        assert np.array_equal(ty.numpy(), np.array([[np.nan], [1]]), equal_nan=True)
        assert ti.numpy().tolist() == [[3], [0]]


@pytest.mark.parametrize("length", [9, 300])
def test_the_largest_come_in_order_nan_first_and_equals_by_index(handle: Handle, length: int) -> None:
    x = np.resize(np.array([0.0, np.inf, -0.0, np.nan, 3, -np.inf, 3, np.nan, 1], np.float32), length)
    order = sorted(range(length), key=lambda place: (not np.isnan(x[place]), -np.nan_to_num(x[place]), place))
    with (
        handle.upload(x[None]) as tx,
        handle.tensor((1, length)) as values,
        handle.tensor((1, length), "int32") as indices,
    ):
        ops.top_k(handle, 1, 1.0, tx, 0.0, values, indices)
        assert indices.numpy()[0].tolist() == order
        assert np.array_equal(values.numpy()[0], x[order], equal_nan=True)


def test_more_of_the_largest_than_there_are_elements_are_refused(handle: Handle) -> None:
    with handle.tensor((2, 3)) as x, handle.tensor((2, 4)) as values, handle.tensor((2, 4), "int32") as indices:
        with pytest.raises(BadParamError, match="4 elements of 3 are wanted"):
            ops.top_k(handle, 1, 1.0, x, 0.0, values, indices)
        with pytest.raises(BadParamError, match="must have the shape of x"):
            ops.top_k(handle, 0, 1.0, x, 0.0, values, indices)


def test_indices_without_an_element_to_find_are_refused(handle: Handle) -> None:
    with handle.tensor((2, 3)) as x, handle.tensor((2, 1)) as y, handle.tensor((2, 1), "int32") as indices:
        with pytest.raises(BadParamError, match="add finds no element"):
            ops.reduce(handle, "add", 1.0, x, 0.0, y, indices)
        with pytest.raises(BadParamError, match="use one of add, mul"):
            ops.reduce(handle, "median", 1.0, x, 0.0, y)


def test_operands_that_do_not_broadcast_are_named(handle: Handle) -> None:
    with (
        handle.tensor((2, 3)) as a,
        handle.tensor((2, 4)) as c,
        pytest.raises(BadParamError, match=r"b has shape \(2, 3\)"),
    ):
        ops.binary(handle, "add", 1.0, c, 1.0, a, 0.0, c)
