"""Normalisations by statistics of each image, and their gradients: layer, RMS, group and instance normalisation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dnncore import ops
from dnncore.errors import BadParamError
from dnncore.formats import with_leading
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.convolution import as_channels
from dnncore.nn.operators.gradients import blend_with
from dnncore.tensor import Tensor

__all__ = ["GroupNorm", "GroupNormBackward", "LayerNorm", "LayerNormBackward", "RMSNorm", "RMSNormBackward"]


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
        factors = _over_last(scale, x), _over_last(bias, x)
        ops.layer_norm_forward(handle, self.axis, 1.0, x, 0.0, y, *factors, mean, inv_std, epsilon=self.epsilon)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        return _gradients(step, LayerNormBackward(step.wants(1), step.wants(2), self.axis))


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
        factor = _over_last(scale, x)
        ops.rms_norm_forward(handle, self.axis, 1.0, x, 0.0, y, factor, inv_std, epsilon=self.epsilon)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        return _gradients(step, RMSNormBackward(step.wants(1), axis=self.axis))


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
        scale, bias = (_by_channel(one, x) for one in parameters)
        ops.group_norm_forward(handle, self.groups, 1.0, x, 0.0, y, scale, bias, mean, inv_std, epsilon=self.epsilon)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        return _gradients(step, GroupNormBackward(step.wants(1), step.wants(2), self.groups))


@dataclass(frozen=True)
class _Backward(Operator):
    """dx of a normalisation, plus what is there already, and the gradients of its parameters that are wanted.

    Args:
        dscale: Whether that of the scale is given.
        dbias: Whether that of the bias is.
    """

    input_names: ClassVar[tuple[str, ...]] = ("x", "dy", "saved_mean", "saved_inv_std", "scale", "partial")
    optional: ClassVar[int] = 2
    in_place: ClassVar[frozenset[int]] = frozenset({1, 5})

    dscale: bool = False
    dbias: bool = False

    @abstractmethod
    def _parameter(self, x: Spec) -> tuple[int, ...]:
        """The shape of scale and bias."""

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x = inputs[0]
        assert x is not None
        parameter = x.with_shape(*self._parameter(x))
        return (x, *[parameter] * (self.dscale + self.dbias))

    def _parameters(self, outputs: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
        """Where dscale and dbias go; None for one that is not wanted."""
        found = iter(outputs[1:])
        return next(found) if self.dscale else None, next(found) if self.dbias else None


@dataclass(frozen=True)
class LayerNormBackward(_Backward):
    """dx, plus what is there already, and what is wanted of dscale and dbias, of a layer normalisation.

    Args:
        axis: The first of the dimensions that were normalised over.
    """

    kind: ClassVar[str] = "layer_norm_backward"

    axis: int = 1

    def _parameter(self, x: Spec) -> tuple[int, ...]:
        return x.shape[self.axis :]

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, dy, mean, inv_std, scale = (*inputs, None)[:5]
        assert x is not None
        assert dy is not None
        assert mean is not None
        assert inv_std is not None
        beta = blend_with(handle, inputs[5:], outputs[0])
        factor, dscale, dbias = (_over_last(one, x) for one in (scale, *self._parameters(outputs)))
        ops.layer_norm_backward(
            handle, self.axis, 1.0, beta, 1.0, 0.0, x, dy, outputs[0], factor, dscale, dbias, mean, inv_std
        )


@dataclass(frozen=True)
class RMSNormBackward(_Backward):
    """dx, plus what is there already, and dscale where it is wanted, of an RMS normalisation.

    Args:
        axis: The first of the dimensions that were normalised over.
    """

    kind: ClassVar[str] = "rms_norm_backward"
    input_names: ClassVar[tuple[str, ...]] = ("x", "dy", "saved_inv_std", "scale", "partial")
    in_place: ClassVar[frozenset[int]] = frozenset({1, 4})

    axis: int = 1

    def _parameter(self, x: Spec) -> tuple[int, ...]:
        return x.shape[self.axis :]

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, dy, inv_std, scale = (*inputs, None)[:4]
        assert x is not None
        assert dy is not None
        assert inv_std is not None
        factors = (1.0, blend_with(handle, inputs[4:], outputs[0]), 1.0, 0.0)
        factor, dscale = (_over_last(one, x) for one in (scale, self._parameters(outputs)[0]))
        ops.rms_norm_backward(handle, self.axis, *factors, x, dy, outputs[0], factor, dscale, inv_std)


@dataclass(frozen=True)
class GroupNormBackward(_Backward):
    """dx, plus what is there already, and what is wanted of dscale and dbias, of a group normalisation.

    Args:
        groups: G.
    """

    kind: ClassVar[str] = "group_norm_backward"

    groups: int = 1

    def _parameter(self, x: Spec) -> tuple[int, ...]:
        return x.shape[1:2]

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, dy, mean, inv_std, scale = (*inputs, None)[:5]
        assert x is not None
        assert dy is not None
        assert mean is not None
        assert inv_std is not None
        beta = blend_with(handle, inputs[5:], outputs[0])
        factor, dscale, dbias = (_by_channel(one, x) for one in (scale, *self._parameters(outputs)))
        ops.group_norm_backward(
            handle, self.groups, 1.0, beta, 1.0, 0.0, x, dy, outputs[0], factor, dscale, dbias, mean, inv_std
        )


def _gradients(step: BackwardStep, backward: _Backward) -> Sequence[str | None]:
    """dx, dscale and dbias of a normalisation.

    Raises:
        BadParamError: its statistics are read too, of which no gradient flows back.
    """
    statistics = step.outputs[1:]
    if any(step.gradients[1:]):
        raise BadParamError(f"there is no gradient of the statistics {', '.join(map(repr, statistics))}")
    scale = (*step.inputs, None)[1]
    dx, *parameters = step.add_several(backward, step.x, step.dy, *statistics, scale, step.partial())
    found = iter(parameters)
    dscale = step.plus(next(found), 1) if backward.dscale else None
    dbias = step.plus(next(found), 2) if backward.dbias else None
    return (dx if step.wants(0) else None, dscale, dbias)


def _over_last(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    """A parameter of the last dimensions as an operand of an operation, with leading extents of 1."""
    return None if parameter is None else parameter.view(with_leading(parameter.descriptor, x.ndim))


def _by_channel(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    """A parameter of the channels, likewise."""
    return None if parameter is None else as_channels(parameter, x.ndim)
