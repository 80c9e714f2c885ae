"""From Caffe's files to a graph with weights: read, upgrade, choose the layers of a phase, add them one by one, fill them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dnncore.errors import BadParamError, ModelImportError, NotSupportedError
from dnncore.importers.caffe.dnncore_caffe_pb2 import LayerParameter, NetParameter
from dnncore.importers.caffe.layers import LAYERS, SINKS
from dnncore.importers.caffe.losses import heads_of
from dnncore.importers.caffe.net import Net, Site, Stored, UnknownInputError
from dnncore.importers.caffe.net_state import NetState
from dnncore.importers.caffe.reading import Source, name_of, read_text
from dnncore.importers.caffe.upgrade import upgraded_layers
from dnncore.importers.caffe.weights import read_weights
from dnncore.nn.graph import Constant, Graph, Node, Role
from dnncore.nn.heads import Head, outputs_of, with_flat_outputs
from dnncore.nn.model import Model
from dnncore.nn.operators import BatchNorm, Binary
from dnncore.nn.trainable import Multipliers, Trainable

__all__ = ["Translated", "import_caffe", "import_trainable", "translate"]

_MAX_PARAMETERS = 1 << 28
"""1 GiB of them; VGG-19 has 0.14 G."""


def import_caffe(
    prototxt: Source,
    caffemodel: Source | None = None,
    *,
    phase: str = "test",
    level: int = 0,
    stages: Collection[str] = (),
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    allow_missing: bool = False,
    seed: int = 0,
) -> Model:
    """Import a net of Caffe, of any generation of its format.

    Layers that read data become inputs of the graph; losses and accuracies are left out, and what they would have read is what the
    graph gives. Nothing else than the two files is opened.

    Args:
        prototxt: Path of the net's definition, or its text as bytes.
        caffemodel: Path of its weights, or the file's bytes; None for those that its fillers make.
        phase: "test" or "train": whose layers.
        level: For the rules `include` and `exclude`.
        stages: Likewise.
        input_shapes: Extents without the batch, by the names of blobs, for inputs of which the file does not say them, or others.
        allow_missing: Whether layers without weights in the file may keep what their fillers make.
        seed: For fillers.

    Returns:
        Inputs and outputs have the names of blobs; nodes and constants those of layers ("conv1", "conv1.weight").

    Raises:
        ModelImportError: a file is malformed, or has what cannot be imported; the message lists all layers of which that is so.
        BadParamError: the phase is neither.
    """
    found = translate(prototxt, NetState(phase, level, frozenset(stages)), input_shapes or {})
    constants = found.graph.constant
    weights: dict[str, np.ndarray] = {}
    if caffemodel is not None:
        weights = read_weights(caffemodel, found.stored, constants, allow_missing=allow_missing)
    generator = np.random.default_rng(seed)
    fresh = {name: one.initial.fill(generator, one.shape) for name, one in constants.items() if name not in weights}
    return Model(found.graph, weights | fresh)


def import_trainable(
    prototxt: Source,
    caffemodel: Source | None = None,
    *,
    level: int = 0,
    stages: Collection[str] = (),
    image_shape: Sequence[int] | None = None,
    allow_missing: bool = False,
) -> tuple[Trainable, dict[str, np.ndarray]]:
    """Import a classifier to train it: its layers in phase "train", with lr_mult and decay_mult of their parameters.

    Each loss is a head, with its loss_weight: all of Caffe's but InfogainLoss. Of those of classes the one with the largest, of
    equals the last, is what the net is for. A file without losses has its output as the only head.

    Args:
        prototxt, caffemodel, level, stages, allow_missing: As of `import_caffe`.
        image_shape: [C, H, W] of images whose extents the file does not say, because a database holds them.

    Returns:
        The net, and the weights that the file holds; those that are not among them begin as their fillers say.

    Raises:
        ModelImportError: as `import_caffe`; or the net has losses that are not trained with; the message lists them all.
    """
    found = translate(prototxt, NetState("train", level, frozenset(stages)), {}, image_shape, for_losses=True)
    try:
        graph = with_flat_outputs(found.graph, {head.logits for head in found.heads if head.loss.of_classes})
        names = dict(zip(found.graph.outputs, graph.outputs, strict=True))
        heads = tuple(head.renamed(names) for head in found.heads)
        kept = {name: one for name, one in found.multipliers.items() if name in graph.constant}
        net = Trainable(graph, heads, kept) if heads else Trainable.of(graph, 0, kept)
    except BadParamError as error:
        raise ModelImportError(name_of(prototxt), [str(error)]) from error
    if caffemodel is None:
        return net, {}
    constants = net.graph.constant
    return net, read_weights(caffemodel, found.stored, constants, allow_missing=allow_missing)


class Translated(NamedTuple):
    """A net without weights. Immutable.

    Args:
        graph: The net.
        stored: What a weights file has to hold for it, by the names of layers.
        heads: What it is trained with, the main one first; none where the file has no losses.
        multipliers: Of constants, by their names.
    """

    graph: Graph
    stored: dict[str, Stored]
    heads: tuple[Head, ...]
    multipliers: dict[str, Multipliers]


def translate(
    prototxt: Source,
    state: NetState,
    input_shapes: Mapping[str, Sequence[int]],
    image_shape: Sequence[int] | None = None,
    *,
    for_losses: bool = False,
) -> Translated:
    """The structure of a net, as `import_caffe` says, or, for its losses, as `import_trainable` does.

    Raises:
        ModelImportError: the file is malformed, or has what cannot be imported; the message lists all layers of which that is so.
    """
    what = name_of(prototxt)
    definition = _read(prototxt)
    layers, problems = upgraded_layers(definition)
    problems += NetState.contradictions(layers)
    own = definition.state
    state = replace(state, level=state.level or own.level, stages=state.stages | frozenset(own.stage))
    layers = state.kept(layers)
    net = Net(layers, state.phase, input_shapes, image_shape)
    problems += [problem for layer in layers if (problem := _add(net, layer)) is not None]
    heads: tuple[Head, ...] = ()
    if for_losses:
        heads, wrong = heads_of(net)
        problems += wrong
    if problems:
        raise ModelImportError(what, problems)
    try:
        graph = _with_scales_absorbed(_graph(definition.name or "net", net, layers, outputs_of(heads)))
    except BadParamError as error:
        raise ModelImportError(what, [str(error)]) from error
    if (count := sum(constant.spec.size for constant in graph.constants)) > _MAX_PARAMETERS:
        raise ModelImportError(what, [f"the net has {count} parameters; {_MAX_PARAMETERS} are the most"])
    stored = {}
    for name, one in net.stored.items():
        fills = {constant: fill for constant, fill in one.fills.items() if constant in graph.constant}
        if fills or not one.fills:
            stored[name] = replace(one, fills=fills)
    return Translated(graph, stored, heads, net.multipliers)


def _read(prototxt: Source) -> NetParameter:
    try:
        return read_text(prototxt, NetParameter)
    except ModelImportError as error:
        unknown = _unknown_types(prototxt)
        if not unknown:
            raise
        raise ModelImportError(name_of(prototxt), [*error.problems, *unknown]) from error


def _unknown_types(prototxt: Source) -> list[str]:
    """The layers that could not be imported, of a file with fields that are unknown too."""
    try:
        layers, _ = upgraded_layers(read_text(prototxt, NetParameter, lenient=True))
    except ModelImportError:
        return []
    return [_unknown(layer) for layer in layers if layer.type not in LAYERS and layer.type not in SINKS]


def _unknown(layer: LayerParameter) -> str:
    return f"layer {layer.name!r} is of type {layer.type!r}, which cannot be imported"


def _add(net: Net, layer: LayerParameter) -> str | None:
    """Translate a layer; returns what is wrong with it."""
    if layer.type in SINKS:
        if layer.bottom and net.is_known(layer.bottom[0]):
            net.losses.append((layer, net.value_of(layer.bottom[0])))
        return None
    if layer.type not in LAYERS:
        net.lose(layer)
        return _unknown(layer)
    try:
        site = Site(net, layer)
        LAYERS[layer.type](site)
        site.close()
    except UnknownInputError:
        net.lose(layer)
    except (BadParamError, NotSupportedError, OverflowError) as error:
        net.lose(layer)
        return f"layer {layer.name!r} ({layer.type}): {error}"
    return None


def _graph(name: str, net: Net, layers: Sequence[LayerParameter], of_heads: Sequence[str]) -> Graph:
    """What is needed of the net for its heads, or, where it has none, for the blobs that no layer reads."""
    outputs = tuple(of_heads) or _unread(net, layers)
    needed = set(outputs)
    kept: list[Node] = []
    for node in reversed(net.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.reads)
            kept.append(node)
    inputs = tuple(value for value in net.inputs if value.name in needed)
    constants = tuple(constant for constant in net.constants.values() if constant.name in needed)
    return Graph(name, inputs, outputs, tuple(reversed(kept)), constants)


def _unread(net: Net, layers: Sequence[LayerParameter]) -> tuple[str, ...]:
    """The values of the blobs that no layer reads.

    Raises:
        BadParamError: there are none.
    """
    read: set[str] = set()
    for layer in layers:
        silent = layer.type in SINKS and layer.type != "Silence"
        read.update(layer.bottom[1:] if silent else layer.bottom)
        read.difference_update(top for top in layer.top if top in layer.bottom)  # a new value, not read yet
    given = {value.name for value in net.inputs}
    tops = dict.fromkeys(top for layer in layers if layer.type not in SINKS for top in layer.top)
    found = [net.value_of(top) for top in tops if top not in read and net.is_known(top)]
    outputs = tuple(value for value in found if value not in given)
    if not outputs:
        raise BadParamError("the net has no layer whose result nobody reads, so that it has no outputs")
    return outputs


def _with_scales_absorbed(graph: Graph) -> Graph:
    """Batch normalisations take scale and bias over from the layer "Scale" behind them, which is how Caffe spells one."""
    constants = graph.constant.copy()
    nodes = {node.name: node for node in graph.nodes}
    for norm in graph.nodes:
        scale, bias = norm.inputs[1:3] if isinstance(norm.operator, BatchNorm) else (None, None)
        if scale is None or bias is None or constants[scale].role is not Role.FIXED:
            continue
        output = norm.outputs[0]
        for operator, place in (("mul", 1), ("add", 2)):
            behind = _applied(graph, output, Binary(operator))
            if behind is None:
                break
            node, constant = behind
            constants[constant] = replace(constants[constant], shape=constants[scale].shape)
            inputs = list(nodes[norm.name].inputs)
            inputs[place] = constant
            output = node.outputs[0]
            nodes[norm.name] = replace(nodes[norm.name], inputs=tuple(inputs), outputs=(output,))
            del nodes[node.name]
    return graph.rewritten(nodes.values(), constants=constants.values())


def _applied(graph: Graph, value: str, operator: Binary) -> tuple[Node, str] | None:
    """The only reader of a value, if it combines it with a constant for each channel that nobody else reads, and that."""
    if value in graph.outputs or len(graph.consumers[value]) != 1:
        return None
    (node,) = graph.consumers[value]
    if node.operator != operator or node.inputs[0] != value:
        return None
    constant: Constant | None = graph.constant.get(node.reads[1])
    shape = graph.values[value].shape
    channels = (*shape[1:2], *(1,) * (len(shape) - 2))
    if constant is None or constant.shape != channels or not graph.is_only_read_by(constant.name, node):
        return None
    return node, constant.name
