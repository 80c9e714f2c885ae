"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dnncore.descriptors import PoolingDescriptor, PoolingMode
from dnncore.torch.functions import pooling
from dnncore.torch.modules.layer import Layer, Link, Linked, ours, remembered

__all__ = ["MODULES"]


def _each(value: Any, ndim: int) -> tuple[Any, ...]:
    """A setting of each dimension, from one for all or a sequence of them."""
    return tuple(value) if isinstance(value, Sequence) else (value,) * ndim


@remembered
def _descriptor(
    mode: PoolingMode,
    spatial_ndim: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    ceil_mode: bool,
) -> PoolingDescriptor:
    return PoolingDescriptor.make(
        mode, kernel_size, spatial_ndim=spatial_ndim, padding=padding, stride=stride, ceil_mode=ceil_mode
    )


class _Pooling(Layer):
    """What the modules share: a batch dimension for inputs without one."""

    _ndim: ClassVar[int]

    def compute(self: Any, x: Tensor) -> Tensor:
        if x.dim() == self._ndim + 1:
            pooled: Tensor = self._pooled(x.unsqueeze(0)).squeeze(0)
            return pooled
        result: Tensor = self._pooled(x)
        return result


class _MaxPooling(_Pooling, Linked):
    @staticmethod
    def why_not(module: Any) -> str | None:
        if module.return_indices:
            return "return_indices"
        return None if set(_each(module.dilation, 1)) == {1} else f"dilation {module.dilation}"

    def _pooled(self: Any, x: Tensor) -> Tensor:
        return pooling.max_pool(x, self._settings())

    def link(self: Any, relu: bool, dtype: torch.dtype) -> Link | None:  # noqa: ARG002 (of any)
        """As `compute`; a ReLU it does not take."""
        return None if relu else ((pooling.MAXIMUM_LINK, self._settings()), (), (), None)

    def _settings(self: Any) -> PoolingDescriptor:
        return _descriptor(PoolingMode.MAX, self._ndim, self.kernel_size, self.stride, self.padding, self.ceil_mode)


class _AveragePooling(_Pooling, Linked):
    keeps_images = False

    @staticmethod
    def why_not(module: Any) -> str | None:
        divisor = getattr(module, "divisor_override", None)
        return None if divisor is None else f"divisor_override {divisor}"

    def _pooled(self: Any, x: Tensor) -> Tensor:
        return pooling.avg_pool(x, self._settings())

    def link(self: Any, relu: bool, dtype: torch.dtype) -> Link | None:  # noqa: ARG002 (of any)
        """As `compute`; a ReLU it does not take."""
        return None if relu else ((pooling.AVERAGE_LINK, self._settings()), (), (), None)

    def _settings(self: Any) -> PoolingDescriptor:
        mode = PoolingMode.AVERAGE_INCLUDE_PADDING if self.count_include_pad else PoolingMode.AVERAGE_EXCLUDE_PADDING
        settings = (self.kernel_size, self.stride, self.padding, self.ceil_mode)
        return _descriptor(mode, self._ndim, *settings)


class _AdaptiveAveragePooling(_Pooling, Linked):
    keeps_images = False

    @staticmethod
    def why_not(module: Any) -> str | None:
        return f"output_size {module.output_size}" if 0 in _each(module.output_size, 1) else None

    def _pooled(self: Any, x: Tensor) -> Tensor:
        return pooling.adaptive_avg_pool(x, _each(self.output_size, self._ndim))

    def link(self: Any, relu: bool, dtype: torch.dtype) -> Link | None:  # noqa: ARG002 (of any)
        """As `compute`; a ReLU it does not take."""
        return None if relu else ((pooling.ADAPTIVE_LINK, _each(self.output_size, self._ndim)), (), (), None)


class _AdaptiveMaxPooling(_Pooling):
    @staticmethod
    def why_not(module: Any) -> str | None:
        return "return_indices" if module.return_indices else _AdaptiveAveragePooling.why_not(module)

    def _pooled(self: Any, x: Tensor) -> Tensor:
        return pooling.adaptive_max_pool(x, _each(self.output_size, self._ndim))


_BEHAVIOURS: dict[type[nn.Module], tuple[type[Layer], int]] = {
    nn.MaxPool1d: (_MaxPooling, 1),
    nn.MaxPool2d: (_MaxPooling, 2),
    nn.MaxPool3d: (_MaxPooling, 3),
    nn.AvgPool1d: (_AveragePooling, 1),
    nn.AvgPool2d: (_AveragePooling, 2),
    nn.AvgPool3d: (_AveragePooling, 3),
    nn.AdaptiveAvgPool1d: (_AdaptiveAveragePooling, 1),
    nn.AdaptiveAvgPool2d: (_AdaptiveAveragePooling, 2),
    nn.AdaptiveAvgPool3d: (_AdaptiveAveragePooling, 3),
    nn.AdaptiveMaxPool1d: (_AdaptiveMaxPooling, 1),
    nn.AdaptiveMaxPool2d: (_AdaptiveMaxPooling, 2),
    nn.AdaptiveMaxPool3d: (_AdaptiveMaxPooling, 3),
}


def _linked(behaviour: type[Layer], ndim: int) -> dict[str, int]:
    return {"linked_ndim": ndim + 2} if issubclass(behaviour, Linked) else {}


MODULES = {
    theirs: ours(theirs, behaviour, _ndim=ndim, **_linked(behaviour, ndim))
    for theirs, (behaviour, ndim) in _BEHAVIOURS.items()
}
