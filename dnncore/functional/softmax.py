"""Softmax and its logarithm."""

from __future__ import annotations

from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode, TensorDescriptor
from dnncore.formats import like, with_leading
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.functional.shapes import axis
from dnncore.problems import SoftmaxForwardProblem
from dnncore.tensor import Tensor

__all__ = ["log_softmax", "softmax"]


@remembered
def _softmax(algorithm: SoftmaxAlgorithm, dim: int, x: TensorDescriptor) -> Operation:
    y = like(x)
    draft = Draft(1, y)
    chosen = axis(dim, x.ndim)
    seen = [_along_channels(tensor, chosen) for tensor in (x, y)]
    draft.step(SoftmaxForwardProblem(seen[0], seen[1], algorithm, SoftmaxMode.CHANNEL), 0, *draft.results)
    return draft.operation()


def _along_channels(x: TensorDescriptor, axis: int) -> TensorDescriptor:
    """The same memory with a dimension as C of [N, C, *spatial]."""
    if x.ndim == 1:
        return with_leading(x, 2)
    order = list(range(x.ndim))
    order[1], order[axis] = order[axis], order[1]
    return x.transposed(*order)


def softmax(input: Operand, dim: int) -> Tensor:
    """exp(x) over its sum along a dimension, computed so that it does not overflow."""
    return compute(_softmax, (SoftmaxAlgorithm.ACCURATE, dim), input)[0]


def log_softmax(input: Operand, dim: int) -> Tensor:
    """The logarithm of softmax along a dimension."""
    return compute(_softmax, (SoftmaxAlgorithm.LOG, dim), input)[0]
