"""What several gradients share: sums over what was broadcast, and adding to what is there already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.errors import BadParamError
from dnncore.formats import with_leading
from dnncore.handle import Handle
from dnncore.nn.operator import Operator, Spec
from dnncore.tensor import Tensor

__all__ = ["ChannelSum", "SumTo", "blend_with"]


def blend_with(handle: Handle, partial: Sequence[Tensor | None], output: Tensor) -> float:
    """Put what is known of a gradient where the rest will be added; returns the beta that adds it.

    Args:
        handle: Where.
        partial: The optional operand: nothing, None, or a tensor, which may lie where the output does.
        output: What the operation is going to write.
    """
    for known in partial:
        if known is None:
            return 0.0
        if known.pointer != output.pointer or known.descriptor != output.descriptor:
            ops.transform(handle, 1.0, known, 0.0, output)
        return 1.0
    return 0.0


@dataclass(frozen=True)
class ChannelSum(Operator):
    """The sum of x [N, C, ...] over everything but C -> [C]: a bias's gradient; plus what is there already."""

    kind: ClassVar[str] = "channel_sum"
    input_names: ClassVar[tuple[str, ...]] = ("x", "partial")
    optional: ClassVar[int] = 1
    in_place: ClassVar[frozenset[int]] = frozenset({1})

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (inputs[0].with_shape(inputs[0].shape[1]),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        x, sums = inputs[0], outputs[0]
        beta = blend_with(handle, inputs[1:], sums)
        ops.sum_to(handle, 1.0, x, beta, sums.reshape(1, x.shape[1], *(1,) * (x.ndim - 2)))


@dataclass(frozen=True)
class SumTo(Operator):
    """The sum of x over dimensions that were broadcast, which is the adjoint of that; plus what is there already.

    Args:
        axes: Dimensions of x that are left with extent 1.
        dropped: How many dimensions of x, counted from the first, are summed and left out.
    """

    kind: ClassVar[str] = "sum_to"
    input_names: ClassVar[tuple[str, ...]] = ("x", "partial")
    optional: ClassVar[int] = 1
    in_place: ClassVar[frozenset[int]] = frozenset({1})

    axes: tuple[int, ...] = ()
    dropped: int = 0

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        x = inputs[0]
        if self.dropped > len(x.shape) or any(not self.dropped <= axis < len(x.shape) for axis in self.axes):
            raise BadParamError(f"{x} has no dimensions {list(self.axes)} behind the first {self.dropped}")
        shape = (1 if axis in self.axes else extent for axis, extent in enumerate(x.shape))
        return (x.with_shape(*tuple(shape)[self.dropped :]),)

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        x, y = inputs[0], outputs[0]
        beta = blend_with(handle, inputs[1:], y)
        ops.sum_to(handle, 1.0, x, beta, y.view(with_leading(y.descriptor, x.ndim)))
