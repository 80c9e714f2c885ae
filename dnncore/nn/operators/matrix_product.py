"""Matrix products of two values, of which many may be done at once."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.formats import with_leading
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.gradients import blend_with
from dnncore.tensor import Tensor

__all__ = ["MatrixProduct", "MatrixProductBackwardA", "MatrixProductBackwardB"]


@dataclass(frozen=True)
class MatrixProduct(Operator):
    """alpha a b, of a [..., M, K] and b [..., K, N] -> [..., M, N]; leading dimensions are broadcast as NumPy does.

    Each matrix is an operation of its own; where b is only one and a row-major, all rows of a are one matrix.

    Args:
        alpha: Factor.
    """

    kind: ClassVar[str] = "matrix_product"
    input_names: ClassVar[tuple[str, ...]] = ("a", "b")

    alpha: float = 1.0

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        a, b = inputs
        if min(len(a.shape), len(b.shape)) < 2 or a.shape[-1] != b.shape[-2] or a.dtype is not b.dtype:
            raise BadParamError(f"a {a} and b {b} do not fit: a must be [..., M, K] and b [..., K, N], of one dtype")
        ndim = max(len(a.shape), len(b.shape)) - 2
        leads = [(*(1,) * (ndim + 2 - len(spec.shape)), *spec.shape[:-2]) for spec in inputs]
        if any(x != y and 1 not in (x, y) for x, y in zip(*leads, strict=True)):
            raise BadParamError(f"the leading dimensions of a {a} and b {b} cannot be broadcast to one shape")
        lead = (y if x == 1 else x for x, y in zip(*leads, strict=True))
        return (a.with_shape(*lead, a.shape[-2], b.shape[-1]),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        a, b = inputs
        (c,) = outputs
        if b.ndim == 2 and a.descriptor.is_row_major and c.descriptor.is_row_major:
            ops.matmul(handle, self.alpha, _rows(a), b, 0.0, _rows(c))
            return
        lead = c.shape[:-2]
        for index in product(*map(range, lead)):
            ops.matmul(handle, self.alpha, _matrix(a, index), _matrix(b, index), 0.0, _matrix(c, index))

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        """da = alpha dy b', db = alpha a' dy, summed over the leading dimensions that were broadcast."""
        a, b = step.inputs
        da = db = None
        if step.wants(1):
            back = MatrixProductBackwardB(self.alpha, *_broadcast(step, 1))
            db = step.add(back, a, step.dy, step.partial(1))
        if step.wants(0):
            back_a = MatrixProductBackwardA(self.alpha, *_broadcast(step, 0))
            da = step.add(back_a, b, step.dy, step.partial(0))
        return (da, db)

    def macs(self, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> int:
        return outputs[0].size * inputs[0].shape[-1]


@dataclass(frozen=True)
class _Backward(Operator):
    """The gradient of one factor; plus what is there already.

    Args:
        alpha: Factor.
        axes: Leading dimensions of dy along which the factor was broadcast from extent 1: they are summed over.
        dropped: How many dimensions in front of its own it was broadcast to: they are summed over, and gone.
    """

    optional: ClassVar[int] = 1
    in_place: ClassVar[frozenset[int]] = frozenset({2})

    alpha: float = 1.0
    axes: tuple[int, ...] = ()
    dropped: int = 0

    def _lead(self, dy: Spec) -> tuple[int, ...]:
        """Leading extents of the gradient."""
        ndim = len(dy.shape) - 2
        if self.dropped > ndim or any(not self.dropped <= axis < ndim for axis in self.axes):
            raise BadParamError(f"dy {dy} has no leading dimensions {list(self.axes)} behind the first {self.dropped}")
        return tuple(1 if axis in self.axes else extent for axis, extent in enumerate(dy.shape[:ndim]))[self.dropped :]

    def _sum(self, handle: Handle, inputs: Sequence[Tensor], output: Tensor, factors: _Factors) -> None:
        """Add the product of two matrices to each matrix of the gradient as often as it was broadcast."""
        other, dy = inputs[:2]
        beta, written = blend_with(handle, inputs[2:], output), set()
        for index in product(*map(range, dy.shape[:-2])):
            own = tuple(0 if axis in self.axes else i for axis, i in enumerate(index))[self.dropped :]
            left, right = factors(_matrix(other, index), _matrix(dy, index))
            ops.matmul(handle, self.alpha, left, right, 1.0 if own in written else beta, _matrix(output, own))
            written.add(own)
        if not (written or beta):
            ops.set_tensor(handle, 0.0, output)

    def macs(self, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> int:
        dy = inputs[1]
        return dy.size * self._length(inputs[0])

    @abstractmethod
    def _length(self, other: Spec) -> int:
        """K."""


@dataclass(frozen=True)
class MatrixProductBackwardA(_Backward):
    """da [..., M, K] = alpha dy b' of a matrix product, from b and dy."""

    kind: ClassVar[str] = "matrix_product_backward_a"
    input_names: ClassVar[tuple[str, ...]] = ("b", "dy", "partial")

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        b, dy = inputs[:2]
        return (dy.with_shape(*self._lead(dy), dy.shape[-2], b.shape[-2]),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        b, dy = inputs[:2]
        (da,) = outputs
        if b.ndim == 2 and dy.descriptor.is_row_major and da.descriptor.is_row_major:
            beta = blend_with(handle, inputs[2:], da)
            ops.matmul(handle, self.alpha, _rows(dy), _transposed(b), beta, _rows(da))
        else:
            self._sum(handle, inputs, da, lambda b, dy: (dy, _transposed(b)))

    def _length(self, other: Spec) -> int:
        return other.shape[-2]


@dataclass(frozen=True)
class MatrixProductBackwardB(_Backward):
    """db [..., K, N] = alpha a' dy of a matrix product, from a and dy."""

    kind: ClassVar[str] = "matrix_product_backward_b"
    input_names: ClassVar[tuple[str, ...]] = ("a", "dy", "partial")

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        a, dy = inputs[:2]
        return (dy.with_shape(*self._lead(dy), a.shape[-1], dy.shape[-1]),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        a, dy = inputs[:2]
        (db,) = outputs
        if db.ndim == 2 and a.shape[:-2] == dy.shape[:-2] and a.descriptor.is_row_major and dy.descriptor.is_row_major:
            beta = blend_with(handle, inputs[2:], db)
            ops.matmul(handle, self.alpha, _transposed(_rows(a)), _rows(dy), beta, db)
        else:
            self._sum(handle, inputs, db, lambda a, dy: (_transposed(a), dy))

    def _length(self, other: Spec) -> int:
        return other.shape[-1]


_Factors = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From a matrix of the other factor and one of dy to the two whose product it is."""


def _broadcast(step: BackwardStep, place: int) -> tuple[tuple[int, ...], int]:
    """Along which leading dimensions a factor was broadcast from extent 1, and to how many more."""
    lead, own = step.shape(step.outputs[0])[:-2], step.shape(step.inputs[place])[:-2]
    missing = len(lead) - len(own)
    return tuple(missing + i for i, e in enumerate(own) if e == 1 and lead[missing + i] != 1), missing


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def _transposed(matrix: Tensor) -> Tensor:
    return matrix.view(matrix.descriptor.transposed())


def _matrix(tensor: Tensor, index: tuple[int, ...]) -> Tensor:
    """One of the matrices of a tensor, which may be broadcast."""
    full = with_leading(tensor.descriptor, len(index) + 2)
    steps = zip(index, full.shape, full.strides, strict=False)
    offset = sum(i * stride for i, extent, stride in steps if extent > 1)
    return tensor.view(TensorDescriptor(full.dtype, full.shape[-2:], full.strides[-2:]), offset)
