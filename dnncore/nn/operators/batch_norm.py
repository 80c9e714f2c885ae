"""Batch normalisation: with statistics that are given, with those of the batch, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from dnncore import ops
from dnncore.descriptors import BatchNormMode
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.operator import BackwardStep, Operator, Spec
from dnncore.nn.operators.convolution import as_channels
from dnncore.nn.operators.gradients import ChannelSum, blend_with
from dnncore.nn.operators.pointwise import Binary, Scale
from dnncore.nn.operators.structure import Ones, Zeros
from dnncore.tensor import Tensor

__all__ = ["BatchNorm", "BatchNormBackward", "BatchNormTraining"]

_HALF = 0.5
"""A batch's weight in the operation where the count decides: doubling what comes out is exact."""


_Operand = TypeVar("_Operand")


def _operands(inputs: Sequence[_Operand | None]) -> tuple[_Operand | None, ...]:
    """All six, of which the last, the count, may be left out."""
    return (*inputs, None)[:6]


@dataclass(frozen=True)
class _BatchNorm(Operator):
    """What a normalisation is told.

    Beside its statistics it may have a count [1], which only matters while a net is trained: of how many batches they are the mean.
    A batch has the weight 1 / count then, once it is counted itself, so that the first batches are not drowned by what the
    statistics began with.

    Args:
        epsilon: Added to the variance.
        momentum: Weight of a batch in the running statistics, while a net is trained; where there is a count, the part of it that
            is forgotten before a batch is counted: 0 makes the statistics plain means.
    """

    input_names: ClassVar[tuple[str, ...]] = ("x", "scale", "bias", "mean", "variance", "count")
    optional: ClassVar[int] = 1

    epsilon: float = 1e-5
    momentum: float = 0.1

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        x, *parameters, count = _operands(inputs)
        assert x is not None
        for name, spec in zip(self.input_names[1:], parameters, strict=False):
            if len(x.shape) < 2 or spec is None or spec.shape != x.shape[1:2]:
                raise BadParamError(f"{name} {spec} must have one element for each channel of x {x}")
        if count is not None and count.shape != (1,):
            raise BadParamError(f"count {count} must have one element")
        return (x,)


@dataclass(frozen=True)
class BatchNorm(_BatchNorm):
    """scale (x - mean) / sqrt(variance + epsilon) + bias for each channel, with statistics [C] that are given."""

    kind: ClassVar[str] = "batch_norm"
    in_place: ClassVar[frozenset[int]] = frozenset({0})

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        x, *parameters = inputs[:5]
        scale, bias, mean, variance = (as_channels(parameter, x.ndim) for parameter in parameters)
        ops.batch_norm_inference(
            handle, BatchNormMode.SPATIAL, 1.0, x, 0.0, outputs[0], scale, bias, mean, variance, self.epsilon
        )

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        """The statistics are given, so that this is linear in x: dx is dy normalised likewise, without mean and bias.

        Statistics that the net computes itself, as in files for training, have gradients too.
        """
        x, scale, bias, mean, variance = step.inputs[:5]
        zeros = step.add(Zeros(), bias)
        dx = dscale = dbias = dmean = dvariance = None
        if step.wants(0) or step.wants(3):
            own = step.add(self, step.dy, scale, zeros, zeros, variance)
            dx = step.plus(own) if step.wants(0) else None
            dmean = step.plus(step.add(Scale(-1.0), step.add(ChannelSum(), own)), 3) if step.wants(3) else None
        if step.wants(1):
            normalized = step.add(self, x, step.add(Ones(), scale), zeros, mean, variance)
            dscale = step.add(ChannelSum(), step.add(Binary("mul"), step.dy, normalized), step.partial(1))
        if step.wants(2):
            dbias = step.add(ChannelSum(), step.dy, step.partial(2))
        if step.wants(4):  # -1/2 of the sum of dy scale (x - mean), over (variance + epsilon)^3/2
            centered = step.add(self, x, scale, zeros, mean, variance)
            total = step.add(ChannelSum(), step.add(Binary("mul"), step.dy, centered))
            widened = step.add(Binary("add", 1.0, self.epsilon), variance, step.add(Ones(), variance))
            dvariance = step.plus(step.add(Binary("div", -0.5), total, widened), 4)
        return (dx, dscale, dbias, dmean, dvariance)


@dataclass(frozen=True)
class BatchNormTraining(_BatchNorm):
    """The same with mean and variance of the batch, and the running statistics with these in them.

    Its outputs: y, the batch's mean and inverse standard deviation [C] for the gradient, the new running mean and variance [C], and
    the new count [1] where there is one.
    """

    kind: ClassVar[str] = "batch_norm_training"

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        (x,) = super().infer(inputs)
        saved = Spec(x.dtype.compute, x.shape[1:2])
        return (x, saved, saved, *(spec for spec in inputs[3:] if spec is not None))

    def lower(self, handle: Handle, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        x, scale, bias, *before, count = _operands(inputs)
        assert x is not None
        assert scale is not None
        assert bias is not None
        for old, new in zip((*before, count), outputs[3:], strict=False):
            if old is not None and old.pointer != new.pointer:
                ops.transform(handle, 1.0, old, 0.0, new)
        momentum = self.momentum
        if count is not None:
            self._to_sums(handle, outputs)
            momentum = _HALF
        scale, bias, *others = (as_channels(one, x.ndim) for one in (scale, bias, *outputs[1:5]))
        saved_mean, saved_inv_std, mean, variance = others
        ops.batch_norm_forward(
            handle,
            BatchNormMode.SPATIAL,
            *(1.0, x, 0.0, outputs[0], scale, bias, saved_mean, saved_inv_std),
            running_mean=mean,
            running_variance=variance,
            momentum=momentum,
            epsilon=self.epsilon,
        )
        if count is not None:
            for mean_of_batches in outputs[3:5]:
                ops.binary(handle, "div", 1 / _HALF, mean_of_batches, 1.0, outputs[5], 0.0, mean_of_batches)

    def _to_sums(self, handle: Handle, outputs: Sequence[Tensor]) -> None:
        """Make sums over batches of the statistics, with what is forgotten taken off, and count the batch that comes.

        The operation halves the sum of such a sum and the batch's own statistics, exactly; what is left is to divide by the count.
        """
        _, ones, _, *statistics, count = outputs
        left = 1 - self.momentum
        for mean in statistics:
            ops.binary(handle, "mul", left, mean, 1.0, count, 0.0, mean)
        one = ones.view(count.descriptor)  # where the batch's mean is going to be
        ops.set_tensor(handle, 1.0, one)
        ops.add(handle, 1.0, one, left, count)

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:
        x, scale = step.inputs[:2]
        operands = (x, step.dy, scale, *step.outputs[1:3], step.partial(0))
        dx, dscale, dbias = step.add_several(BatchNormBackward(), *operands)
        return (
            dx if step.wants(0) else None,
            step.plus(dscale, 1) if step.wants(1) else None,
            step.plus(dbias, 2) if step.wants(2) else None,
        )


@dataclass(frozen=True)
class BatchNormBackward(Operator):
    """dx, plus what is there already, dscale [C] and dbias [C] of a normalisation with the statistics of the batch."""

    kind: ClassVar[str] = "batch_norm_backward"
    input_names: ClassVar[tuple[str, ...]] = ("x", "dy", "scale", "saved_mean", "saved_inv_std", "partial")
    optional: ClassVar[int] = 1
    in_place: ClassVar[frozenset[int]] = frozenset({1, 5})

    def infer(self, inputs: Sequence[Spec]) -> Sequence[Spec]:
        return (inputs[0], inputs[2], inputs[2])

    def lower(self, handle: Handle, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        x, dy = inputs[:2]
        beta = blend_with(handle, inputs[5:], outputs[0])
        scale, mean, inv_std, dscale, dbias = (as_channels(one, x.ndim) for one in (*inputs[2:5], *outputs[1:]))
        factors = (1.0, beta, 1.0, 0.0)
        ops.batch_norm_backward(
            handle, BatchNormMode.SPATIAL, *factors, x, dy, outputs[0], scale, dscale, dbias, mean, inv_std
        )
