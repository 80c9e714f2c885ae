"""Matrix products of two values, of which many may be done at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.formats import with_leading
from dnncore.handle import Handle
from dnncore.nn.operator import Operator, Spec
from dnncore.tensor import Tensor

__all__ = ["MatrixProduct"]


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

    def macs(self, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> int:
        return outputs[0].size * inputs[0].shape[-1]


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def _matrix(tensor: Tensor, index: tuple[int, ...]) -> Tensor:
    """One of the matrices of a tensor, which may be broadcast."""
    full = with_leading(tensor.descriptor, len(index) + 2)
    steps = zip(index, full.shape, full.strides, strict=False)
    offset = sum(i * stride for i, extent, stride in steps if extent > 1)
    return tensor.view(TensorDescriptor(full.dtype, full.shape[-2:], full.strides[-2:]), offset)
