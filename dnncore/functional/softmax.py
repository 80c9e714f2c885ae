"""Softmax and its logarithm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.formats import like, with_leading
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.functional.shapes import axis
from dnncore.problems import SoftmaxForwardProblem
from dnncore.tensor import Tensor

__all__ = ["log_softmax", "softmax"]


@remembered
def _softmax(algorithm: SoftmaxAlgorithm, dim: int, dtype: DType | None, given: TensorDescriptor) -> Operation:
    chosen = axis(dim, given.ndim)
    x = with_leading(given, 1)
    y = like(x if dtype is None else replace(x, dtype=dtype))
    draft = Draft(1, y if given.ndim else replace(given, dtype=y.dtype))
    place, x = draft.in_dtype(0, x, y.dtype)
    seen = [_along_channels(tensor, chosen) for tensor in (x, y)]
    draft.step(SoftmaxForwardProblem(seen[0], seen[1], algorithm, SoftmaxMode.CHANNEL), place, *draft.results)
    return draft.operation()


def _along_channels(x: TensorDescriptor, axis: int) -> TensorDescriptor:
    """The same memory with a dimension as C of [N, C, *spatial]."""
    if x.ndim == 1:
        return with_leading(x, 2)
    order = list(range(x.ndim))
    order[1], order[axis] = order[axis], order[1]
    return x.transposed(*order)


def _along(input: Operand, algorithm: SoftmaxAlgorithm, dim: int, dtype: DType | str | np.dtype | None) -> Tensor:
    return compute(_softmax, (algorithm, dim, None if dtype is None else DType.of(dtype)), input)[0]


def softmax(input: Operand, dim: int, *, dtype: DType | str | np.dtype | None = None) -> Tensor:
    """exp(x) over its sum along a dimension, computed so that it does not overflow.

    Args:
        input: Any shape.
        dim: The dimension, which is not guessed: None is refused.
        dtype: What the input is first converted to, a DType, its name or NumPy's type; None for the input's own.
    """
    return _along(input, SoftmaxAlgorithm.ACCURATE, dim, dtype)


def log_softmax(input: Operand, dim: int, *, dtype: DType | str | np.dtype | None = None) -> Tensor:
    """The logarithm of softmax along a dimension; otherwise as `softmax`."""
    return _along(input, SoftmaxAlgorithm.LOG, dim, dtype)
