"""ResNet's block of three convolutions, or four with its shortcut, as one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import ConvolutionDescriptor
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import Operator, Spec
from dnncore.nn.operators.activated import Activated
from dnncore.nn.operators.convolution import as_channels
from dnncore.tensor import Tensor

__all__ = ["Bottleneck"]

_MISSING = (None,) * 6


@dataclass(frozen=True)
class Bottleneck(Activated, Operator):
    """f(conv(f(conv(f(conv(x, reduce)), middle)), restore) [+ s]), each with a bias.

    s is x, or conv(x, shortcut) with a bias, or z. A pass makes it (dnncore/nn/passes/bottlenecks.py).

    Args:
        residual: Whether x is added.
    """

    kind: ClassVar[str] = "bottleneck"
    input_names: ClassVar[tuple[str, ...]] = (
        *("x", "reduce", "middle", "restore", "reduce_bias", "middle_bias", "restore_bias"),
        *("shortcut", "shortcut_bias", "z"),
    )
    optional: ClassVar[int] = 6
    batched: ClassVar[frozenset[int]] = frozenset({0, 9})

    residual: bool = False

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, reduce, middle, restore, *others = (*inputs, *_MISSING)[:10]
        assert x is not None
        assert reduce is not None
        assert middle is not None
        assert restore is not None
        *biases, shortcut, shortcut_bias, z = others
        if any(len(spec.shape) != 4 for spec in (x, reduce, middle, restore)) or middle.shape[2:] != (3, 3):
            raise BadParamError(f"{self.kind} reads [N, C, H, W] and filters [E, E, 3, 3], not {x} and {middle}")
        pointwise = ConvolutionDescriptor.make()
        reduced = pointwise.output_shape(x.shape, reduce.shape)
        filtered = ConvolutionDescriptor.make(padding=1).output_shape(reduced, middle.shape)
        y = Spec(x.dtype, pointwise.output_shape(filtered, restore.shape))
        if self.residual and y != x:
            raise BadParamError(f"x {x} must be as the output, {y}, to be added")
        if z is not None and y != z:
            raise BadParamError(f"z {z} must be as the output, {y}")
        if shortcut is not None:
            found = pointwise.output_shape(x.shape, shortcut.shape)
            if found != y.shape:
                raise BadParamError(f"shortcut {shortcut} makes {found} of x {x}; {y} is needed")
        for bias, filters in zip((*biases, shortcut_bias), (reduce, middle, restore, shortcut), strict=True):
            if bias is not None and (filters is None or bias.shape != filters.shape[:1]):
                raise BadParamError(f"bias {bias} does not suit the filters {filters}")
        if self.residual + (z is not None) + (shortcut is not None) > 1:
            raise BadParamError(f"one of x, z {z} and shortcut {shortcut} can be added, not several")
        _ = self._activation()  # which checks mode and coefficient
        return (y,)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, reduce, middle, restore, *others = (*inputs, *_MISSING)[:10]
        assert x is not None
        assert reduce is not None
        assert middle is not None
        assert restore is not None
        *biases, shortcut, shortcut_bias, z = others
        reduce_bias, middle_bias, restore_bias, shortcut_bias = (
            None if one is None else as_channels(one, 4) for one in (*biases, shortcut_bias)
        )
        ops.bottleneck(
            *(handle, 1.0, x, reduce, middle, restore, 0.0, outputs[0]),
            reduce_bias=reduce_bias,
            middle_bias=middle_bias,
            restore_bias=restore_bias,
            shortcut=shortcut,
            shortcut_bias=shortcut_bias,
            z=z,
            activation=self._activation(),
            residual=self.residual,
        )

    def macs(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> int:
        x, reduce, middle, restore, *others = (*inputs, *_MISSING)[:10]
        assert x is not None
        assert reduce is not None
        assert middle is not None
        assert restore is not None
        shortcut = others[3]
        places = outputs[0].size // restore.shape[0]
        before = x.size // x.shape[1]
        more = 0 if shortcut is None else shortcut.size
        return before * reduce.size + places * (middle.size + restore.size + more)
