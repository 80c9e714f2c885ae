"""What `torch.autocast` makes of an input, as the first of several layers that are one operation: no call of PyTorch's for it."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.descriptors import TensorDescriptor
from dnncore.formats import like
from dnncore.problems import AddProblem
from dnncore.torch.functions.link import DY, Settings
from dnncore.torch.operation import Operation

__all__ = ["CAST_LINK"]


class _CastLink:
    """`x.to(dtype)`: settings are this and the dtype. Immutable."""

    def forward(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> Operation:  # noqa: ARG002
        """x -> y."""
        (x,) = given
        y = like(x).with_dtype(settings[1])
        return Operation.of(AddProblem(x, y), (0, 1), y)

    def reads(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> tuple[int, ...]:  # noqa: ARG002
        """Dy."""
        return (DY,)

    def backward(
        self,
        settings: Settings,  # noqa: ARG002 (the dtype is that of dy)
        given: Sequence[TensorDescriptor],
        read: Sequence[TensorDescriptor],
        wanted: Sequence[bool],  # noqa: ARG002 (there is one)
    ) -> tuple[Operation, tuple[int, ...]]:
        """That of x, in its dtype."""
        (x,), (dy,) = given, read
        dx = like(dy).with_dtype(x.dtype)
        return Operation.of(AddProblem(dy, dx), (0, 1), dx), (0,)


CAST_LINK = _CastLink()
