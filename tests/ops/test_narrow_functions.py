"""GELU and the error function in 16 bits, over every number there is: as accurate, relative to themselves, as what is stored."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from dnncore import ActivationDescriptor, DType, Handle, ops
from dnncore.testing import assert_close

GELU = ActivationDescriptor.make("gelu")


def _every(dtype: str) -> np.ndarray:
    """All numbers, infinities and one NaN among them."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    numbers: np.ndarray = bits.view({"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype])
    nan = {"float16": 0x7C00, "bfloat16": 0x7F80}[dtype]  # and above, whatever the sign
    return numbers[(bits & 0x7FFF) <= nan + (bits == nan + 1)]  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_forward_is_accurate_in_both_tails(handle: Handle, dtype: str) -> None:
    x = _every(dtype)
    with np.errstate(invalid="ignore"):
        exact = torch.tensor(x.astype(np.float64))
    value = (exact * torch.erfc(-exact / 2**0.5) / 2).numpy()
    with handle.upload(x) as tx, handle.tensor(tx.descriptor) as ty:
        ops.activation_forward(handle, GELU, 1.0, tx, 0.0, ty)
        found = ty.numpy()
    finite = np.isfinite(value)
    assert_close(found[finite], value[finite], np.abs(value[finite]), DType.of(dtype), 1, dtype)
    assert np.array_equal(found[~finite].astype(np.float64), value[~finite], equal_nan=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_error_function_is_accurate_near_0_and_ends_at_1(handle: Handle, dtype: str) -> None:
    x = _every(dtype)
    with np.errstate(invalid="ignore"):
        value = torch.erf(torch.tensor(x.astype(np.float64))).numpy()
    with handle.upload(x) as tx, handle.tensor(tx.descriptor) as ty:
        ops.unary(handle, "erf", 1.0, tx, 0.0, ty)
        found = ty.numpy()
    assert_close(found, value, np.abs(value), DType.of(dtype), 1, dtype)
    far = x.astype(np.float32) > 3.2
    assert np.array_equal(found[far].astype(np.float32), np.ones(far.sum(), np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_backward_is_accurate_to_the_size_of_its_terms(handle: Handle, dtype: str) -> None:
    x = _every(dtype)
    x = x[np.isfinite(x.astype(np.float32))]
    exact = torch.tensor(x.astype(np.float64))
    below = torch.erfc(-exact / 2**0.5) / 2
    density = torch.exp(-(exact**2) / 2) / (2 * torch.pi) ** 0.5
    value, magnitude = (below + exact * density).numpy(), (below + exact.abs() * density).numpy()
    with handle.upload(x) as tx, handle.upload(np.ones_like(x)) as dy, handle.tensor(tx.descriptor) as dx:
        ops.activation_backward(handle, GELU, 1.0, tx, dy, tx, 0.0, dx)
        found = dx.numpy()
    assert_close(found, value, magnitude, DType.of(dtype), 2, dtype)
