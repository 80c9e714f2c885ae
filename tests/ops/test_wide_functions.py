"""GELU in float32: as accurate, relative to itself, as float32's functions are, in both tails and down to what is denormal."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dnncore import ActivationDescriptor, DType, Handle, ops
from dnncore.testing import assert_close

GELU = ActivationDescriptor.make("gelu")


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    """Steps through all that is neither 0 nor x, numbers close to 0, and the largest."""
    steps = np.linspace(-14.6, 14.6, 40001)
    small = np.geomspace(1e-38, 1, 2001)
    return np.concatenate([steps, small, -small, [0.0, -0.0, 16.0, -16.0, 3e38, -3e38]]).astype(np.float32)


def test_forward_is_accurate_in_both_tails(handle: Handle, x: np.ndarray) -> None:
    exact = torch.tensor(x.astype(np.float64))
    value = (exact * torch.erfc(-exact / 2**0.5) / 2).numpy()
    with handle.upload(x) as tx, handle.tensor(tx.descriptor) as ty:
        ops.activation_forward(handle, GELU, 1.0, tx, 0.0, ty)
        assert_close(ty.numpy(), value, np.abs(value), DType.FLOAT32, 1, "gelu")


def test_backward_is_accurate_to_the_size_of_its_terms(handle: Handle, x: np.ndarray) -> None:
    exact = torch.tensor(x.astype(np.float64))
    below = torch.erfc(-exact / 2**0.5) / 2
    density = torch.exp(-(exact**2) / 2) / (2 * torch.pi) ** 0.5
    value, magnitude = (below + exact * density).numpy(), (below + exact.abs() * density).numpy()
    with handle.upload(x) as tx, handle.upload(np.ones_like(x)) as dy, handle.tensor(tx.descriptor) as dx:
        ops.activation_backward(handle, GELU, 1.0, tx, dy, tx, 0.0, dx)
        assert_close(dx.numpy(), value, magnitude, DType.FLOAT32, 2, "the gradient of gelu")


def test_what_is_no_number_stays_so(handle: Handle) -> None:
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    with handle.upload(x) as tx, handle.tensor(tx.descriptor) as ty:
        ops.activation_forward(handle, GELU, 1.0, tx, 0.0, ty)
        found = ty.numpy()
    assert np.isnan(found[0])
    assert found[1] == np.inf
