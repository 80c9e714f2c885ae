"""Batch, layer, group, instance, RMS and local response normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.values import Computed, Imported
from dnncore.nn.graph import Role
from dnncore.nn.operators import BatchNorm, Binary, GroupNorm, LayerNorm, LocalResponseNorm, Reduce, RMSNorm, Unary

__all__ = ["RULES"]


def _batch_norm(call: Call) -> Sequence[Imported]:
    attributes = call.attributes
    momentum, epsilon = attributes.real("momentum", 0.9), attributes.real("epsilon", 1e-5)
    attributes.integer("is_test", 0)  # before opset 7; a net that is imported is not trained, whatever it says
    if attributes.integer("training_mode", 0):
        return _batch_norm_of_batch(call, momentum, epsilon)
    if not attributes.integer("spatial", 1):
        raise NotSupportedError("spatial 0, statistics for each place, is not supported")
    call.only_first_output("giving statistics")
    x, scale, bias = call.tensor(0), call.tensor(1, Role.TRAINABLE), call.tensor(2, Role.TRAINABLE)
    mean, variance = call.tensor(3, Role.BUFFER), call.tensor(4, Role.BUFFER)
    return (call.emit(BatchNorm(epsilon, _weight_of_a_batch(momentum)), x, scale, bias, mean, variance),)


def _weight_of_a_batch(momentum: float) -> float:
    """What is not kept of the running statistics; to seven digits, which is what a float32 near 1 has."""
    return round(1 - momentum, 7)


def _batch_norm_of_batch(call: Call, momentum: float, epsilon: float) -> Sequence[Imported]:
    """With mean and variance of the batch, and the running ones, of which `momentum` is kept.

    The variance is that of what is there, without the correction for a sample that PyTorch's running one has.
    """
    x, *parameters = (call.tensor(index) for index in range(5))
    scale, bias, *running = parameters
    over = tuple(axis for axis in range(x.ndim) if axis != 1)
    mean = call.emit(Reduce("avg", over, keep=False), x)
    apart = (x.extent(1), *(1,) * (x.ndim - 2))
    centered = call.emit(Binary("sub"), x, call.reshape(mean, apart, apart))
    variance = call.emit(Reduce("avg", over, keep=False), call.emit(Unary("square"), centered))
    y = call.emit(BatchNorm(epsilon), x, scale, bias, mean, variance)
    blended = Binary("add", momentum, 1 - momentum)
    return (y, *(call.emit(blended, old, new) for old, new in zip(running, (mean, variance), strict=True)))


def _lrn(call: Call) -> Sequence[Imported]:
    real = call.attributes.real
    size = call.attributes.integer("size", 0)
    operator = LocalResponseNorm(size, real("alpha", 1e-4), real("beta", 0.75), real("bias", 1.0))
    return (call.emit(operator, call.tensor(0)),)


def _stash_type(call: Call) -> None:
    """In which type statistics are computed: float32, as ours are."""
    if call.attributes.integer("stash_type", 1) != 1:
        raise NotSupportedError("a stash_type that is not float32 is not supported")


def _parameter(call: Call, index: int, x: Computed, axis: int) -> Computed | None:
    """A scale or bias in the shape of the dimensions that are normalised over."""
    if not call.has(index):
        return None
    found = call.tensor(index, Role.TRAINABLE)
    wanted = x.few.shape[axis:]
    if found.few.shape != wanted and found.few.size == 1 and all(extent == 1 for extent in wanted):
        return call.reshape(found, wanted, wanted)
    if found.few.shape != wanted:
        raise NotSupportedError(f"a scale or bias {found} that is broadcast to {list(wanted)} is not supported")
    return found


def _layer_norm(call: Call) -> Sequence[Imported]:
    _stash_type(call)
    x = call.tensor(0)
    axis = call.axis(call.attributes.integer("axis", -1), x.ndim)
    epsilon = call.attributes.real("epsilon", 1e-5)
    if axis == 0:  # a dimension in front, which is not normalised over
        few, many = ((1, *shape) for shape in x.shapes)
        inner = call.reshape(x, few, many)
        results = call.emit_all(LayerNorm(1, epsilon), inner, *(_parameter(call, index, inner, 1) for index in (1, 2)))
        return tuple(call.reshape(one, one.few.shape[1:], one.many.shape[1:]) for one in results)
    return call.emit_all(LayerNorm(axis, epsilon), x, *(_parameter(call, index, x, axis) for index in (1, 2)))


def _rms_norm(call: Call) -> Sequence[Imported]:
    _stash_type(call)
    x = call.tensor(0)
    axis = call.axis(call.attributes.integer("axis", -1), x.ndim)
    epsilon = call.attributes.real("epsilon", 1e-5)
    if axis == 0:
        few, many = ((1, *shape) for shape in x.shapes)
        inner = call.reshape(x, few, many)
        return (call.reshape_like(call.emit(RMSNorm(1, epsilon), inner, _parameter(call, 1, inner, 1)), x),)
    return (call.emit(RMSNorm(axis, epsilon), x, _parameter(call, 1, x, axis)),)


def _instance_norm(call: Call) -> Sequence[Imported]:
    x, scale, bias = call.tensor(0), call.tensor(1, Role.TRAINABLE), call.tensor(2, Role.TRAINABLE)
    return (call.emit(GroupNorm(x.extent(1), call.attributes.real("epsilon", 1e-5)), x, scale, bias),)


def _group_norm(call: Call) -> Sequence[Imported]:
    """Scale and bias are those of channels since opset 21, and were those of groups before."""
    _stash_type(call)
    x, groups = call.tensor(0), call.attributes.integer("num_groups", 0)
    operator = GroupNorm(groups, call.attributes.real("epsilon", 1e-5))
    scale, bias = call.tensor(1, Role.TRAINABLE), call.tensor(2, Role.TRAINABLE)
    if call.version >= 21:
        return (call.emit(operator, x, scale, bias),)
    if groups < 1 or x.extent(1) % groups:
        raise BadParamError(f"the channels of {x} cannot be cut into {groups} groups")
    few, many = ((shape[0], groups, shape[1] // groups, *shape[2:]) for shape in x.shapes)
    y = call.reshape(call.emit(operator, x), few, many)
    for name, parameter in (("mul", scale), ("add", bias)):
        by_group = (groups, *(1,) * (x.ndim - 1))
        y = call.emit(Binary(name), y, call.reshape(parameter, by_group, by_group))
    return (call.reshape_like(y, x),)


RULES: Mapping[str, Rule] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
}
