"""Pooling, with the places of the maxima kept and looked for again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.measurement import LARGE, SMALL, Measurement, Sized
from dnncore import DType, TensorDescriptor
from dnncore.descriptors import Layout, PoolingDescriptor, PoolingMode
from dnncore.problems import PoolingBackwardIndicesProblem, PoolingBackwardProblem, PoolingForwardProblem

__all__ = ["poolings"]

_WINDOWS = (
    (PoolingMode.MAX, 3, 2, 1),
    (PoolingMode.MAX, 2, 2, 0),
    (PoolingMode.AVERAGE_INCLUDE_PADDING, 2, 2, 0),
    (PoolingMode.AVERAGE_INCLUDE_PADDING, 3, 2, 1),
)


class _TorchPooling:
    """PyTorch's functions for one kind of pooling."""

    def __init__(self, mode: PoolingMode, window: int, stride: int, padding: int) -> None:
        self._is_max = mode is PoolingMode.MAX
        self._geometry = [window] * 2, [stride] * 2, [padding] * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        functions = torch.nn.functional
        result: torch.Tensor = (functions.max_pool2d if self._is_max else functions.avg_pool2d)(x, *self._geometry)
        return result

    def forward_with_places(self, x: torch.Tensor) -> Any:
        return torch.ops.aten.max_pool2d_with_indices(x, *self._geometry)

    def kept(self, arguments: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Where ours looks for the maxima again, theirs keeps their places."""
        return (self.forward_with_places(arguments[2])[1],) if self._is_max else ()

    def backward(self, _y: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, *places: torch.Tensor) -> Any:
        if not self._is_max:
            return torch.ops.aten.avg_pool2d_backward(dy, x, *self._geometry, False, True, None)
        return torch.ops.aten.max_pool2d_with_indices_backward(dy, x, *self._geometry, [1, 1], False, *places)

    def write_result(self, inputs: Sequence[torch.Tensor]) -> None:
        """y is what the forward pass makes of x."""
        inputs[0].copy_(self.forward(inputs[2]))


class _KeptPlaces:
    """The gradient from kept places, of a random x."""

    def __init__(self, theirs: _TorchPooling, x: TensorDescriptor) -> None:
        self._theirs, self._x = theirs, x

    def prepare(self, inputs: Sequence[torch.Tensor]) -> None:
        (x,) = self._unread(inputs)
        inputs[1].copy_(self._theirs.forward_with_places(x.normal_())[1])

    def kept(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (*self._unread(inputs), inputs[1].long())

    def backward(self, dy: torch.Tensor, _indices: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> Any:
        return self._theirs.backward(dy, dy, x, places)

    def _unread(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor]:
        dy = inputs[0]
        return (torch.empty_strided(self._x.shape, self._x.strides, dtype=dy.dtype, device=dy.device),)


def _with_places(
    name: str, x: TensorDescriptor, y: TensorDescriptor, pooling: PoolingDescriptor, theirs: _TorchPooling
) -> Iterator[Measurement]:
    places = TensorDescriptor(DType.INT32, y.shape, y.strides)
    forward = PoolingForwardProblem(x, y, pooling, places)
    yield Measurement(f"pooling-forward-indices {name}", forward, (x, y, places), theirs.forward_with_places)
    kept = _KeptPlaces(theirs, x)
    backward = PoolingBackwardIndicesProblem(y, places, x, pooling)
    yield Measurement(
        f"pooling-backward-indices {name}",
        *(backward, (y, places, x), kept.backward),
        prepare=kept.prepare,
        kept=kept.kept,
    )


def poolings(dtype: DType, sized: Sized) -> Iterator[Measurement]:
    """Every window, in both layouts, large and small."""
    for whole in (LARGE, SMALL):
        shape = sized(whole)
        for layout in (Layout.NCHW, Layout.NHWC):
            for mode, window, stride, padding in _WINDOWS:
                pooling = PoolingDescriptor.make(mode, window, stride=stride, padding=padding)
                x = TensorDescriptor.packed(shape, dtype, layout)
                y = TensorDescriptor.packed(pooling.output_shape(shape), dtype, layout)
                name = f"{mode.value.split('_')[0]}-{window}x{window}-stride-{stride} {layout.value} {whole[2]}"
                geometry = mode, window, stride, padding
                theirs = _TorchPooling(*geometry)
                forward, backward = PoolingForwardProblem(x, y, pooling), PoolingBackwardProblem(y, y, x, x, pooling)
                is_max = mode is PoolingMode.MAX
                needed = (x, y, x) if is_max else (y, x)  # backward; y itself is not
                yield Measurement(f"pooling-forward {name}", forward, (x, y), theirs.forward)
                yield Measurement(
                    f"pooling-backward {name}",
                    *(backward, needed, theirs.backward),
                    prepare=theirs.write_result,
                    kept=theirs.kept,
                )
                if is_max:
                    yield from _with_places(name, x, y, pooling, _TorchPooling(*geometry))
