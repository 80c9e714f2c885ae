"""The losses of a net as heads: which values are logits, and how much each counts."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.importers.caffe.dnncore_caffe_pb2 import LayerParameter, LossParameter
from dnncore.importers.caffe.layers import SINKS
from dnncore.importers.caffe.net import Net, decimal
from dnncore.nn.heads import Head

__all__ = ["heads_of"]

_NOT_LOSSES = frozenset({"Accuracy", "HDF5Output", "Silence"})


def heads_of(net: Net) -> tuple[tuple[Head, ...], list[str]]:
    """The heads of a net, that with the largest weight first, of equals the last; and what is wrong with the losses.

    A loss without weight, as one that is only shown, is no head.
    """
    weights: dict[str, float] = {}
    problems = [
        f"layer {layer.name!r} ({layer.type}): propagate_down: false: gradients go through every layer"
        for layer in net.layers
        if False in _of_gradients(layer)
    ]
    problems += [
        f"layer {layer.name!r} ({layer.type}): loss_weight: no loss that nets are trained with"
        for layer in net.layers
        if layer.type not in SINKS and any(layer.loss_weight)
    ]
    labels: set[str] = set()
    for layer, logits in net.losses:
        weight = decimal(layer.loss_weight[0]) if layer.loss_weight else 1.0
        if layer.type in _NOT_LOSSES or weight == 0:
            continue
        if found := _problem(net, layer):
            problems.append(f"layer {layer.name!r} ({layer.type}): {found}")
            continue
        labels.add(layer.bottom[1])
        weights[logits] = weights.pop(logits, 0.0) + weight
    if len(labels) > 1:
        problems.append(
            f"the losses read several labels, {', '.join(map(repr, sorted(labels)))}; nets are trained with one"
        )
    heads = sorted(
        (Head(logits, weight) for logits, weight in reversed(weights.items())), key=lambda head: -head.weight
    )
    return tuple(heads), problems


def _of_gradients(layer: LayerParameter) -> Sequence[bool]:
    """The entries of propagate_down that decide something: of a loss that of the logits, as labels have no gradients."""
    if layer.type in _NOT_LOSSES:
        return ()
    return layer.propagate_down[:1] if layer.type in SINKS else layer.propagate_down


def _problem(net: Net, layer: LayerParameter) -> str | None:
    param = layer.loss_param
    if layer.type != "SoftmaxWithLoss":
        return "no loss that nets are trained with; SoftmaxWithLoss is one, and loss_weight: 0 leaves this one out"
    if len(layer.bottom) != 2 or layer.bottom[1] not in {value.name for value in net.inputs}:
        return "must read logits, and labels that a data layer gives"
    if param.HasField("ignore_label"):
        return f"ignore_label {param.ignore_label}: every image has a loss"
    if param.normalization == LossParameter.NONE:
        return "normalization: NONE: losses are averaged over the batch"
    if layer.softmax_param.axis != 1:
        return f"softmax along axis {layer.softmax_param.axis}; classes lie along axis 1"
    if decimal(layer.loss_weight[0] if layer.loss_weight else 1.0) < 0:
        return f"loss_weight {layer.loss_weight[0]} is less than 0"
    return None
