"""The losses of a net as heads: which values they are of, what is minimised, and how much each counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dnncore.errors import BadParamError
from dnncore.importers.caffe.dnncore_caffe_pb2 import HingeLossParameter, LayerParameter, LossParameter
from dnncore.importers.caffe.layers import SINKS
from dnncore.importers.caffe.net import Net, UnknownInputError, decimal
from dnncore.nn.heads import Head
from dnncore.nn.losses import ContrastiveLoss, EuclideanLoss, HingeLoss, LogLoss, Loss, Over, SigmoidLoss, SoftmaxLoss
from dnncore.nn.operators import Concat, Reshape, Softmax, Zeros

__all__ = ["heads_of"]

_NOT_LOSSES = frozenset({"Accuracy", "HDF5Output", "Silence"})


def heads_of(net: Net) -> tuple[tuple[Head, ...], list[str]]:
    """The heads of a net, that of classes with the largest weight first, of equals the last; and what is wrong with the losses.

    A loss without weight, as one that is only shown, is no head. Nodes are added to the net where logits need some.
    """
    weights: dict[tuple[str, Loss], float] = {}
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
    for layer, value in net.losses:
        weight = decimal(layer.loss_weight[0]) if layer.loss_weight else 1.0
        if layer.type in _NOT_LOSSES or weight == 0:
            continue
        try:
            found = _head(net, layer, value, weight)
        except (BadParamError, UnknownInputError) as error:
            problems.append(f"layer {layer.name!r} ({layer.type}): {error}")
            continue
        labels.update(blob for blob in layer.bottom if _is_labels(net, blob))
        weights[found] = weights.pop(found, 0.0) + weight
    if len(labels) > 1:
        problems.append(
            f"the losses read several labels, {', '.join(map(repr, sorted(labels)))}; nets are trained with one"
        )
    heads = sorted(
        (Head(value, weight, loss) for (value, loss), weight in reversed(weights.items())),
        key=lambda head: (not head.loss.of_classes, -head.weight),
    )
    if heads and not heads[0].loss.of_classes:
        problems.append("no loss is of classes: SoftmaxWithLoss, HingeLoss or, of one logit, SigmoidCrossEntropyLoss")
    return tuple(heads), problems


def _of_gradients(layer: LayerParameter) -> Sequence[bool]:
    """The entries of propagate_down that decide something: of a loss that of the logits, as labels have no gradients."""
    if layer.type in _NOT_LOSSES:
        return ()
    return layer.propagate_down[:1] if layer.type in SINKS else layer.propagate_down


def _head(net: Net, layer: LayerParameter, value: str, weight: float) -> tuple[str, Loss]:
    """What a loss is of, and the loss.

    Raises:
        BadParamError: nets are not trained with it.
    """
    if layer.type not in _LOSSES:
        names = f"{', '.join(sorted(_LOSSES))} are some"
        raise BadParamError(f"no loss that nets are trained with; {names}, and loss_weight: 0 leaves this one out")
    if len(layer.bottom) != (wanted := 3 if layer.type == "ContrastiveLoss" else 2):
        raise BadParamError(f"has {len(layer.bottom)} bottoms; it takes {wanted}")
    if weight < 0:
        raise BadParamError(f"loss_weight {weight} is less than 0")
    return _LOSSES[layer.type](net, layer, value)


def _is_labels(net: Net, blob: str) -> bool:
    """Whether a blob is what a data layer says of each image: one number."""
    return blob in {value.name for value in net.inputs} and math.prod(net.shape(blob)[1:]) == 1


def _needs_labels(net: Net, layer: LayerParameter) -> None:
    if not _is_labels(net, layer.bottom[-1]):
        raise BadParamError("must read logits, and labels that a data layer gives")


def _softmax(net: Net, layer: LayerParameter, value: str) -> tuple[str, Loss]:
    _needs_labels(net, layer)
    if layer.softmax_param.axis != 1:
        raise BadParamError(f"softmax along axis {layer.softmax_param.axis}; classes lie along axis 1")
    return value, _of_classes(layer.loss_param, LossParameter.VALID)


def _of_classes(param: LossParameter, default: int) -> SoftmaxLoss:
    """A cross-entropy with each image's class: every image has one, so that all, those that count and the batch may be the same."""
    ignored = param.ignore_label if param.HasField("ignore_label") else None
    over = _over(param, default)
    return SoftmaxLoss(ignored, "images" if over == "counted" and ignored is None else over)


def _over(param: LossParameter, default: int) -> Over:
    """What a loss is divided by, of which there is one number for each image."""
    mode = param.normalization if param.HasField("normalization") else default
    if param.HasField("normalize") and not param.HasField("normalization"):
        mode = LossParameter.VALID if param.normalize else LossParameter.BATCH_SIZE
    if mode == LossParameter.NONE:
        return "nothing"
    return "counted" if mode == LossParameter.VALID else "images"


def _hinge(net: Net, layer: LayerParameter, value: str) -> tuple[str, Loss]:
    _needs_labels(net, layer)
    return value, HingeLoss(layer.hinge_loss_param.norm == HingeLossParameter.L2)


def _multinomial(net: Net, layer: LayerParameter, value: str) -> tuple[str, Loss]:
    """Of probabilities that a softmax gives the cross-entropy of its logits, which is the same number without overflow."""
    _needs_labels(net, layer)
    made = next((node for node in net.nodes if value in node.outputs), None)
    if made is not None and made.operator == Softmax():
        return made.reads[0], SoftmaxLoss()
    return value, LogLoss()


def _contrastive(net: Net, layer: LayerParameter, value: str) -> tuple[str, Loss]:
    _needs_labels(net, layer)
    param = layer.contrastive_loss_param
    return value, ContrastiveLoss(_target(net, layer, value), decimal(param.margin), param.legacy_version)


def _sigmoid(net: Net, layer: LayerParameter, value: str) -> tuple[str, Loss]:
    """Of one logit and labels 0 and 1 the cross-entropy of two classes, whose logits are 0 and that one."""
    param, elements = layer.loss_param, math.prod(net.shape(value)[1:])
    if _is_labels(net, layer.bottom[1]):
        if elements != 1:
            raise BadParamError(f"reads {elements} logits an image, and labels, of which there is one")
        return _pair(net, layer, value), _of_classes(param, LossParameter.BATCH_SIZE)
    if param.HasField("ignore_label"):
        raise BadParamError(f"ignore_label {param.ignore_label}: every element of a target that is no class counts")
    mode = _over(param, LossParameter.BATCH_SIZE)
    full = param.HasField("normalization") and param.normalization == LossParameter.FULL
    return value, SigmoidLoss(_target(net, layer, value), "counted" if full else mode)


def _pair(net: Net, layer: LayerParameter, value: str) -> str:
    names = [net.free(f"{layer.name}.{part}") for part in ("logit", "zeros", "logits")]
    for name, operator, inputs in (
        (names[0], Reshape((-1, 1)), (value,)),
        (names[1], Zeros(), (names[0],)),
        (names[2], Concat(1), (names[1], names[0])),
    ):
        net.node(name, operator, inputs, (name,))
    return names[2]


def _euclidean(net: Net, layer: LayerParameter, value: str) -> tuple[str, Loss]:
    if _is_labels(net, layer.bottom[0]):
        value, target = net.value_of(layer.bottom[1]), ""
    else:
        target = _target(net, layer, value)
    return value, EuclideanLoss(target)


def _target(net: Net, layer: LayerParameter, value: str) -> str:
    """The value that another one is compared with; "" for labels.

    Raises:
        BadParamError: they differ in how many elements they have for each image.
    """
    is_labels = _is_labels(net, layer.bottom[1])
    target = net.value_of(layer.bottom[1])
    ours, theirs = (net.shape(one) for one in (value, target))
    if math.prod(ours[1:]) != math.prod(theirs[1:]):
        raise BadParamError(f"compares {list(ours)} with {list(theirs)} for one image; they must have as many elements")
    return "" if is_labels else target


_LOSSES: dict[str, Callable[[Net, LayerParameter, str], tuple[str, Loss]]] = {
    "ContrastiveLoss": _contrastive,
    "EuclideanLoss": _euclidean,
    "HingeLoss": _hinge,
    "MultinomialLogisticLoss": _multinomial,
    "SigmoidCrossEntropyLoss": _sigmoid,
    "SoftmaxWithLoss": _softmax,
}
