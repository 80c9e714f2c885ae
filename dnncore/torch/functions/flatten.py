"""Rows of images, as one of several layers that are one operation; anywhere else PyTorch's own does it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dnncore.descriptors import TensorDescriptor
from dnncore.formats import new
from dnncore.problems import AddProblem
from dnncore.torch.functions.link import DY, NotLinkedError, Settings, View
from dnncore.torch.operation import Operation

__all__ = ["FLATTEN_LINK"]


class _FlattenLink(View):
    """`torch.flatten(x, 1)`: settings are this alone. Immutable.

    What does not lie as [N, C, ...] in memory is copied there, as PyTorch does it.
    """

    def view(self, settings: Settings, x: TensorDescriptor) -> TensorDescriptor | None:  # noqa: ARG002
        """[N, C ...] of packed [N, C, ...]."""
        return _rows(x) if x.ndim > 1 and x.is_row_major and x.is_packed else None

    def gradient(self, settings: Settings, x: TensorDescriptor, dy: TensorDescriptor) -> TensorDescriptor:  # noqa: ARG002
        """dy as x is seen, whatever its strides are."""
        row, column = dy.strides
        inner = TensorDescriptor.packed(x.shape[1:], x.dtype)
        return TensorDescriptor(dy.dtype, x.shape, (row, *(stride * column for stride in inner.strides)))

    def forward(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> Operation:  # noqa: ARG002
        """x -> y, a copy."""
        (x,) = given
        if x.ndim < 2:
            raise NotLinkedError
        return Operation.of(AddProblem(x, TensorDescriptor.packed(x.shape, x.dtype)), (0, 1), _rows(x))

    def reads(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> tuple[int, ...]:  # noqa: ARG002
        """Dy."""
        return (DY,)

    def backward(
        self,
        settings: Settings,
        given: Sequence[TensorDescriptor],
        read: Sequence[TensorDescriptor],
        wanted: Sequence[bool],  # noqa: ARG002 (there is one)
    ) -> tuple[Operation, tuple[int, ...]]:
        """That of x, which lies as x does."""
        (x,), (dy,) = given, read
        dx = new(x.shape, x)
        return Operation.of(AddProblem(self.gradient(settings, x, dy), dx), (0, 1), dx), (0,)


def _rows(x: TensorDescriptor) -> TensorDescriptor:
    return TensorDescriptor.packed((x.shape[0], math.prod(x.shape[1:])), x.dtype)


FLATTEN_LINK = _FlattenLink()
