"""Activations and dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dnncore.descriptors import ActivationDescriptor, ActivationMode
from dnncore.torch.functions import elementwise
from dnncore.torch.modules.layer import ANY_NDIM, DRAWN, Layer, Link, Linked, ours, remembered

__all__ = ["MODULES"]

_descriptor = remembered(ActivationDescriptor)


class _Computed(Linked):
    """One that our kernels compute; in place only where a module has that setting and no gradient is wanted."""

    linked_ndim = ANY_NDIM
    inplace = False  # of those that have no such setting
    descriptor: ClassVar[Callable[[Any], ActivationDescriptor]]
    """descriptor(module): what it computes now."""

    def compute(self: Any, x: Tensor) -> Tensor:
        return elementwise.activation(x, self.descriptor(), self.inplace)

    def link(self: Any, relu: bool, dtype: torch.dtype) -> Link | None:  # noqa: ARG002 (of any)
        """As `compute`; a ReLU it does not take."""
        return None if relu else ((elementwise.ACTIVATION_LINK, self.descriptor()), (), (), None)


class _Activation(_Computed):
    """One that its class says."""

    _activation: ActivationDescriptor

    def descriptor(self) -> ActivationDescriptor:
        """Its class's."""
        return self._activation


class _Relu(Layer):
    """PyTorch's kernel, which is as fast as any, at the end of the shortest way to it."""

    kernel_is_ours = False

    def compute(self: Any, x: Tensor) -> Tensor:
        return x.relu_() if self.inplace else x.relu()


class _LeakyRelu(_Computed):
    @staticmethod
    def why_not(module: Any) -> str | None:
        return None if module.negative_slope >= 0 else f"negative_slope {module.negative_slope}"

    def descriptor(self: Any) -> ActivationDescriptor:
        return _descriptor(ActivationMode.LEAKY_RELU, self.negative_slope)


class _Elu(_Computed):
    @staticmethod
    def why_not(module: Any) -> str | None:
        return None if module.alpha >= 0 else f"alpha {module.alpha}"

    def descriptor(self: Any) -> ActivationDescriptor:
        return _descriptor(ActivationMode.ELU, self.alpha)


class _Gelu(_Computed):
    def descriptor(self: Any) -> ActivationDescriptor:
        mode = ActivationMode.GELU_TANH if self.approximate == "tanh" else ActivationMode.GELU
        return _descriptor(mode, 0.0)


class _Dropout(Linked):
    linked_ndim = ANY_NDIM

    def compute(self: Any, x: Tensor) -> Tensor:
        return elementwise.dropout(x, self.p, self.training)

    def link(self: Any, relu: bool, dtype: torch.dtype) -> Link | None:  # noqa: ARG002 (of any)
        """As `compute` in training; a ReLU it does not take."""
        return None if relu or not self.training else ((elementwise.DROPOUT_LINK, self.p), (), (DRAWN,), None)


_PLAIN: dict[type[nn.Module], ActivationDescriptor] = {
    nn.ReLU6: ActivationDescriptor(ActivationMode.CLIPPED_RELU, 6.0),
    nn.Sigmoid: ActivationDescriptor(ActivationMode.SIGMOID),
    nn.Tanh: ActivationDescriptor(ActivationMode.TANH),
    nn.SiLU: ActivationDescriptor(ActivationMode.SILU),
    nn.Hardsigmoid: ActivationDescriptor(ActivationMode.HARD_SIGMOID),
    nn.Hardswish: ActivationDescriptor(ActivationMode.HARD_SWISH),
}
_BEHAVIOURS: dict[type[nn.Module], type[Layer]] = {
    nn.ReLU: _Relu,
    nn.LeakyReLU: _LeakyRelu,
    nn.ELU: _Elu,
    nn.GELU: _Gelu,
    nn.Dropout: _Dropout,
}
MODULES = {
    **{theirs: ours(theirs, _Activation, _activation=descriptor) for theirs, descriptor in _PLAIN.items()},
    **{theirs: ours(theirs, behaviour) for theirs, behaviour in _BEHAVIOURS.items()},
}
