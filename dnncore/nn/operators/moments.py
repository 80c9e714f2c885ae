"""Normalisations by statistics of each image: layer, RMS, group and instance normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import Operator, Spec
from dnncore.nn.operators.convolution import as_channels
from dnncore.tensor import Tensor

__all__ = ["GroupNorm", "LayerNorm", "RMSNorm"]


@dataclass(frozen=True)
class _OverLast(Operator):
    """A normalisation over the last dimensions.

    Args:
        axis: The first of them.
        epsilon: Added to the variance.
    """

    axis: int = 1
    epsilon: float = 1e-5

    def _saved(self, x: Spec, *parameters: Spec | None) -> Spec:
        """Of a statistic."""
        if not 0 < self.axis < len(x.shape):
            raise BadParamError(f"{x} has no dimension {self.axis} behind the first")
        for name, spec in zip(self.input_names[1:], parameters, strict=False):
            if spec is not None and spec.shape != x.shape[self.axis :]:
                raise BadParamError(f"{name} {spec} must have the shape {list(x.shape[self.axis :])}")
        return Spec(x.dtype.compute, (*x.shape[: self.axis], *(1,) * (len(x.shape) - self.axis)))

    def _parameter(self, tensor: Tensor | None, x: Tensor) -> Tensor | None:
        """As an operand of an operation, with leading extents of 1."""
        if tensor is None:
            return None
        return tensor.view(TensorDescriptor.packed((*(1,) * self.axis, *x.shape[self.axis :]), tensor.dtype))


@dataclass(frozen=True)
class LayerNorm(_OverLast):
    """scale (x - mean) / sqrt(variance + epsilon) + bias over the last dimensions; also mean and 1 / sqrt(variance + epsilon)."""

    kind: ClassVar[str] = "layer_norm"
    input_names: ClassVar[tuple[str, ...]] = ("x", "scale", "bias")
    optional: ClassVar[int] = 2

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, *parameters = inputs
        assert x is not None
        saved = self._saved(x, *parameters)
        return (x, saved, saved)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, scale, bias = (*inputs, None, None)[:3]
        y, mean, inv_std = outputs
        assert x is not None
        factors = self._parameter(scale, x), self._parameter(bias, x)
        ops.layer_norm_forward(handle, self.axis, 1.0, x, 0.0, y, *factors, mean, inv_std, epsilon=self.epsilon)


@dataclass(frozen=True)
class RMSNorm(_OverLast):
    """scale x / sqrt(mean of x^2 + epsilon) over the last dimensions; also 1 / sqrt(mean of x^2 + epsilon)."""

    kind: ClassVar[str] = "rms_norm"
    input_names: ClassVar[tuple[str, ...]] = ("x", "scale")
    optional: ClassVar[int] = 1

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, *parameters = inputs
        assert x is not None
        return (x, self._saved(x, *parameters))

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, scale = (*inputs, None)[:2]
        y, inv_std = outputs
        assert x is not None
        factor = self._parameter(scale, x)
        ops.rms_norm_forward(handle, self.axis, 1.0, x, 0.0, y, factor, inv_std, epsilon=self.epsilon)


@dataclass(frozen=True)
class GroupNorm(Operator):
    """scale (x - mean) / sqrt(variance + epsilon) + bias over the channels of a group and all places; also mean and 1 / sqrt.

    Args:
        groups: G; as many as there are channels make it instance normalisation.
        epsilon: Added to the variance.
    """

    kind: ClassVar[str] = "group_norm"
    input_names: ClassVar[tuple[str, ...]] = ("x", "scale", "bias")
    optional: ClassVar[int] = 2

    groups: int = 1
    epsilon: float = 1e-5

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, *parameters = inputs
        assert x is not None
        if len(x.shape) < 2 or self.groups < 1 or x.shape[1] % self.groups:
            raise BadParamError(f"the channels of {x} cannot be cut into {self.groups} groups")
        for name, spec in zip(self.input_names[1:], parameters, strict=False):
            if spec is not None and spec.shape != x.shape[1:2]:
                raise BadParamError(f"{name} {spec} must have one element for each channel of x {x}")
        saved = Spec(x.dtype.compute, (x.shape[0], self.groups, *(1,) * (len(x.shape) - 2)))
        return (x, saved, saved)

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, *parameters = (*inputs, None, None)[:3]
        y, mean, inv_std = outputs
        assert x is not None
        scale, bias = (None if one is None else as_channels(one, x.ndim) for one in parameters)
        ops.group_norm_forward(handle, self.groups, 1.0, x, 0.0, y, scale, bias, mean, inv_std, epsilon=self.epsilon)
