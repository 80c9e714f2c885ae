"""Dropout, forward and backward, and its random state."""

from __future__ import annotations

import numpy as np

from dnncore.descriptors.settings import number, whole
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.problems import DropoutProblem
from dnncore.tensor import Tensor

__all__ = ["dropout_backward", "dropout_forward", "dropout_state"]


def dropout_state(seed: int, offset: int = 0) -> np.ndarray:
    """The state of the generator, int32 [4], to be uploaded: `handle.upload(dropout_state(7))`.

    Args:
        seed: 64 bits: another seed, other elements.
        offset: 64 bits: the step of a training run, say. Every offset gives elements that have nothing to do with the others'.
    """
    seed, offset = whole(seed, "seed"), whole(offset, "offset")
    if not (0 <= seed < 2**64 and 0 <= offset < 2**64):
        raise BadParamError(f"seed {seed} and offset {offset} must be from 0 to 2^64 - 1")
    return np.array([seed, offset], np.uint64).astype("<u8").view("<i4")


def dropout_forward(
    handle: Handle, probability: float, alpha: float, x: Tensor, state: Tensor, beta: float, y: Tensor
) -> None:
    """y = x / (1 - probability), or 0 with that probability; y may be x.

    Which elements are dropped depends on `state` (int32 [4], see `dropout_state`) and on their place in row-major order alone: not
    on layout, dtype or device.

    Source: J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11 (Philox4x32-10).
    """
    arguments = (x.descriptor, state.descriptor, y.descriptor, number(probability, "probability"))
    handle.execute(DropoutProblem, arguments, alpha, (x, state), beta, (y,))


def dropout_backward(
    handle: Handle, probability: float, alpha: float, dy: Tensor, state: Tensor, beta: float, dx: Tensor
) -> None:
    """dx = dy / (1 - probability), or 0 where the forward operation with the same state dropped x; dx may be dy."""
    dropout_forward(handle, probability, alpha, dy, state, beta, dx)
