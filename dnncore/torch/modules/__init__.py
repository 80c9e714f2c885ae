"""PyTorch's modules with our forward; parameters, buffers, settings and state_dict are theirs, so that one becomes ours in place.

They are made and saved as PyTorch's: `dnncore.torch.modules.Conv2d(3, 8, 3)`, `pickle.dumps(net)`. Each class says in `why_not`
which settings it does not compute: its constructor raises BadParamError for them, and `convert` leaves such modules as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from dnncore.descriptors import (
    ActivationDescriptor,
    ActivationMode,
    ConvolutionDescriptor,
    CrossEntropyDescriptor,
    LRNDescriptor,
    LRNMode,
    PoolingDescriptor,
    PoolingMode,
)
from dnncore.errors import BadParamError
from dnncore.torch.functions import batch_norm, convolution, elementwise, linear, normalization, pooling, softmax
from dnncore.torch.functions.formats import statistics_dtype

__all__ = ["MODULES"]


def _each(value: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    return (value,) * ndim if isinstance(value, int) else tuple(value)


class _Layer:
    """Mixed into a class of PyTorch's."""

    @staticmethod
    def why_not(module: Any) -> str | None:  # noqa: ARG004 (for those that override it)
        """The setting of one of PyTorch's modules that this class does not compute, or None."""
        return None


class _Convolution(_Layer):
    """Mixed into nn.Conv1d, 2d and 3d."""

    @staticmethod
    def why_not(module: Any) -> str | None:
        if module.padding_mode != "zeros":
            return f"padding_mode {module.padding_mode}"
        return None

    def forward(self: Any, x: Tensor) -> Tensor:
        ndim = len(self.kernel_size)
        total = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        if self.padding == "same":
            padding = [(extent // 2, extent - extent // 2) for extent in total]
        else:
            padding = [(p, p) for p in ((0,) * ndim if self.padding == "valid" else self.padding)]
        conv = ConvolutionDescriptor.make(
            ndim, padding=padding, stride=self.stride, dilation=self.dilation, groups=self.groups
        )
        if x.dim() == ndim + 1:
            return convolution.convolution(x.unsqueeze(0), self.weight, self.bias, conv).squeeze(0)
        return convolution.convolution(x, self.weight, self.bias, conv)


class _Pooling(_Layer):
    """What the pooling modules share: a batch dimension for inputs without one."""

    _ndim: ClassVar[int]

    def forward(self: Any, x: Tensor) -> Tensor:
        if x.dim() == self._ndim + 1:
            pooled: Tensor = self._pooled(x.unsqueeze(0)).squeeze(0)
            return pooled
        result: Tensor = self._pooled(x)
        return result


class _MaxPooling(_Pooling):
    @staticmethod
    def why_not(module: Any) -> str | None:
        if module.return_indices:
            return "return_indices"
        dilation = module.dilation
        return (
            None
            if set(_each(dilation, 1) if isinstance(dilation, int) else dilation) == {1}
            else f"dilation {dilation}"
        )

    def _pooled(self: Any, x: Tensor) -> Tensor:
        descriptor = PoolingDescriptor.make(
            PoolingMode.MAX,
            self.kernel_size,
            spatial_ndim=self._ndim,
            padding=self.padding,
            stride=self.stride,
            ceil_mode=self.ceil_mode,
        )
        return pooling.max_pool(x, descriptor)


class _AveragePooling(_Pooling):
    @staticmethod
    def why_not(module: Any) -> str | None:
        divisor = getattr(module, "divisor_override", None)
        return None if divisor is None else f"divisor_override {divisor}"

    def _pooled(self: Any, x: Tensor) -> Tensor:
        mode = PoolingMode.AVERAGE_INCLUDE_PADDING if self.count_include_pad else PoolingMode.AVERAGE_EXCLUDE_PADDING
        descriptor = PoolingDescriptor.make(
            mode,
            self.kernel_size,
            spatial_ndim=self._ndim,
            padding=self.padding,
            stride=self.stride,
            ceil_mode=self.ceil_mode,
        )
        return pooling.avg_pool(x, descriptor)


class _GlobalAveragePooling(_Pooling):
    """Adaptive pooling to one place, which is one window over everything."""

    @staticmethod
    def why_not(module: Any) -> str | None:
        size = module.output_size
        return None if set(_each(size, 1) if isinstance(size, int) else size) == {1} else f"output_size {size}"

    def _pooled(self: Any, x: Tensor) -> Tensor:
        descriptor = PoolingDescriptor.make(PoolingMode.AVERAGE_INCLUDE_PADDING, x.shape[2:], spatial_ndim=self._ndim)
        return pooling.avg_pool(x, descriptor)


class _Activation(_Layer):
    """An activation without, or with one, coefficient."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return elementwise.activation(x, self._activation())


def _activation_of(mode: ActivationMode, coefficient: str | None = None) -> type:
    def descriptor(self: Any) -> ActivationDescriptor:
        return ActivationDescriptor(mode, 0.0 if coefficient is None else float(getattr(self, coefficient)))

    return type(mode.value, (_Activation,), {"_activation": descriptor})


class _Relu6(_Activation):
    def _activation(self) -> ActivationDescriptor:
        return ActivationDescriptor(ActivationMode.CLIPPED_RELU, 6.0)


class _LeakyRelu(_activation_of(ActivationMode.LEAKY_RELU, "negative_slope")):  # type: ignore[misc]
    @staticmethod
    def why_not(module: Any) -> str | None:
        return None if module.negative_slope >= 0 else f"negative_slope {module.negative_slope}"


class _Elu(_activation_of(ActivationMode.ELU, "alpha")):  # type: ignore[misc]
    @staticmethod
    def why_not(module: Any) -> str | None:
        return None if module.alpha >= 0 else f"alpha {module.alpha}"


class _Gelu(_Activation):
    def _activation(self: Any) -> ActivationDescriptor:
        mode = ActivationMode.GELU_TANH if self.approximate == "tanh" else ActivationMode.GELU
        return ActivationDescriptor(mode)


class _Softmax(_Layer):
    @staticmethod
    def why_not(module: Any) -> str | None:
        return "dim is not given" if module.dim is None else None

    def forward(self: Any, x: Tensor) -> Tensor:
        return softmax.softmax(x, self.dim)


class _LogSoftmax(_Softmax):
    def forward(self: Any, x: Tensor) -> Tensor:
        return softmax.log_softmax(x, self.dim)


class _Linear(_Layer):
    def forward(self: Any, x: Tensor) -> Tensor:
        return linear.linear(x, self.weight, self.bias)


class _BatchNorm(_Layer):
    @staticmethod
    def why_not(module: Any) -> str | None:
        return "momentum None, a cumulative average" if module.momentum is None else None

    def forward(self: Any, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
        return batch_norm.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum,
            self.eps,
        )


class _LayerNorm(_Layer):
    def forward(self: Any, x: Tensor) -> Tensor:
        return normalization.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class _GroupNorm(_Layer):
    def forward(self: Any, x: Tensor) -> Tensor:
        return normalization.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class _LocalResponseNorm(_Layer):
    @staticmethod
    def why_not(module: Any) -> str | None:
        if module.size % 2 == 0:
            return f"an even size, {module.size}, whose window is PyTorch's own"
        return None if module.k >= 1e-5 and module.beta >= 0.01 else f"k {module.k} or beta {module.beta} is too small"

    def forward(self: Any, x: Tensor) -> Tensor:
        lrn = LRNDescriptor(LRNMode.ACROSS_CHANNELS, self.size, self.alpha, self.beta, self.k)
        return normalization.local_response_norm(x, lrn)


class _Dropout(_Layer):
    def forward(self: Any, x: Tensor) -> Tensor:
        return elementwise.dropout(x, self.p, self.training)


class _CrossEntropyLoss(_Layer):
    @staticmethod
    def why_not(module: Any) -> str | None:
        return None if module.weight is None else "class weights"

    def forward(self: Any, x: Tensor, target: Tensor) -> Tensor:
        soft = target.is_floating_point()
        settings = CrossEntropyDescriptor(self.label_smoothing, None if soft else self.ignore_index)
        loss = softmax.cross_entropy(x, target, settings)
        if self.reduction == "none":
            return loss
        if self.reduction == "sum":
            return loss.sum()
        total = loss.sum(dtype=statistics_dtype(loss))  # of many rows it can be beyond float16
        if soft:
            return (total / loss.numel()).to(loss.dtype)
        counted = (target != self.ignore_index).sum()
        # As PyTorch's: without a label that counts the loss is not a number, but its gradient is 0.
        return (total / counted.clamp(min=1)).masked_fill(counted == 0, torch.nan).to(loss.dtype)


_SIMPLE: dict[type[nn.Module], type] = {
    nn.ReLU: _activation_of(ActivationMode.RELU),
    nn.ReLU6: _Relu6,
    nn.LeakyReLU: _LeakyRelu,
    nn.Sigmoid: _activation_of(ActivationMode.SIGMOID),
    nn.Tanh: _activation_of(ActivationMode.TANH),
    nn.ELU: _Elu,
    nn.SiLU: _activation_of(ActivationMode.SILU),
    nn.GELU: _Gelu,
    nn.Hardsigmoid: _activation_of(ActivationMode.HARD_SIGMOID),
    nn.Hardswish: _activation_of(ActivationMode.HARD_SWISH),
    nn.Softmax: _Softmax,
    nn.LogSoftmax: _LogSoftmax,
    nn.Linear: _Linear,
    nn.BatchNorm1d: _BatchNorm,
    nn.BatchNorm2d: _BatchNorm,
    nn.BatchNorm3d: _BatchNorm,
    nn.LayerNorm: _LayerNorm,
    nn.GroupNorm: _GroupNorm,
    nn.LocalResponseNorm: _LocalResponseNorm,
    nn.Dropout: _Dropout,
    nn.CrossEntropyLoss: _CrossEntropyLoss,
    nn.Conv1d: _Convolution,
    nn.Conv2d: _Convolution,
    nn.Conv3d: _Convolution,
}
_POOLING: dict[type[nn.Module], tuple[type, int]] = {
    nn.MaxPool1d: (_MaxPooling, 1),
    nn.MaxPool2d: (_MaxPooling, 2),
    nn.MaxPool3d: (_MaxPooling, 3),
    nn.AvgPool1d: (_AveragePooling, 1),
    nn.AvgPool2d: (_AveragePooling, 2),
    nn.AvgPool3d: (_AveragePooling, 3),
    nn.AdaptiveAvgPool1d: (_GlobalAveragePooling, 1),
    nn.AdaptiveAvgPool2d: (_GlobalAveragePooling, 2),
    nn.AdaptiveAvgPool3d: (_GlobalAveragePooling, 3),
}


def _ours(theirs: type[nn.Module], behaviour: type, **attributes: object) -> type[nn.Module]:
    @wraps(theirs.__init__)
    def guarded(self: Any, *args: Any, **settings: Any) -> None:
        theirs.__init__(self, *args, **settings)
        reason = self.why_not(self)
        if reason is not None:
            raise BadParamError(f"{__name__}.{theirs.__name__} does not compute this: {reason}")

    attributes |= {
        "__module__": __name__,
        "__doc__": f"torch.nn.{theirs.__name__} on dnncore's kernels.",
        "__init__": guarded,
    }
    return type(theirs.__name__, (behaviour, theirs), attributes)


MODULES: dict[type[nn.Module], Any] = {
    **{theirs: _ours(theirs, behaviour) for theirs, behaviour in _SIMPLE.items()},
    **{theirs: _ours(theirs, behaviour, _ndim=ndim) for theirs, (behaviour, ndim) in _POOLING.items()},
}
"""Our class for each of PyTorch's; each is a subclass of it."""

# Under their names here, where users and pickle look for them.
globals().update({ours.__name__: ours for ours in MODULES.values()})
__all__ += [ours.__name__ for ours in MODULES.values()]

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
