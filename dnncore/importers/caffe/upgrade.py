"""The three generations of Caffe's nets as one: what is of the first (V0) or second (V1) becomes what is of the third.

V0  layers { layer { name: "conv1" type: "conv" num_output: 96 } bottom: ... }     all settings in one message
V1  layers { name: "conv1" type: CONVOLUTION convolution_param { num_output: 96 } bottom: ... }
V2  layer { name: "conv1" type: "Convolution" convolution_param { num_output: 96 } bottom: ... }
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dnncore.importers.caffe.dnncore_caffe_pb2 import (
    BlobProto,
    LayerParameter,
    NetParameter,
    PoolingParameter,
    V0LayerParameter,
    V1LayerParameter,
)

__all__ = ["stored_blobs", "upgraded_layers"]

_BY_V1_TYPE = {
    "NONE": "",
    "ABSVAL": "AbsVal",
    "ACCURACY": "Accuracy",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "CONCAT": "Concat",
    "CONTRASTIVE_LOSS": "ContrastiveLoss",
    "CONVOLUTION": "Convolution",
    "DATA": "Data",
    "DECONVOLUTION": "Deconvolution",
    "DROPOUT": "Dropout",
    "DUMMY_DATA": "DummyData",
    "ELTWISE": "Eltwise",
    "EUCLIDEAN_LOSS": "EuclideanLoss",
    "EXP": "Exp",
    "FLATTEN": "Flatten",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "HINGE_LOSS": "HingeLoss",
    "IM2COL": "Im2col",
    "IMAGE_DATA": "ImageData",
    "INFOGAIN_LOSS": "InfogainLoss",
    "INNER_PRODUCT": "InnerProduct",
    "LRN": "LRN",
    "MEMORY_DATA": "MemoryData",
    "MULTINOMIAL_LOGISTIC_LOSS": "MultinomialLogisticLoss",
    "MVN": "MVN",
    "POOLING": "Pooling",
    "POWER": "Power",
    "RELU": "ReLU",
    "SIGMOID": "Sigmoid",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss",
    "SILENCE": "Silence",
    "SLICE": "Slice",
    "SOFTMAX": "Softmax",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "SPLIT": "Split",
    "TANH": "TanH",
    "THRESHOLD": "Threshold",
    "WINDOW_DATA": "WindowData",
}

_BY_V0_TYPE = {
    "accuracy": "Accuracy",
    "bnll": "BNLL",
    "concat": "Concat",
    "conv": "Convolution",
    "data": "Data",
    "dropout": "Dropout",
    "euclidean_loss": "EuclideanLoss",
    "flatten": "Flatten",
    "hdf5_data": "HDF5Data",
    "hdf5_output": "HDF5Output",
    "im2col": "Im2col",
    "images": "ImageData",
    "infogain_loss": "InfogainLoss",
    "innerproduct": "InnerProduct",
    "lrn": "LRN",
    "multinomial_logistic_loss": "MultinomialLogisticLoss",
    "pool": "Pooling",
    "relu": "ReLU",
    "sigmoid": "Sigmoid",
    "softmax": "Softmax",
    "softmax_loss": "SoftmaxWithLoss",
    "split": "Split",
    "tanh": "TanH",
    "window_data": "WindowData",
}

_PARAM = {
    "Convolution": "convolution_param",
    "Concat": "concat_param",
    "Data": "data_param",
    "Dropout": "dropout_param",
    "HDF5Data": "hdf5_data_param",
    "HDF5Output": "hdf5_output_param",
    "ImageData": "image_data_param",
    "InfogainLoss": "infogain_loss_param",
    "InnerProduct": "inner_product_param",
    "LRN": "lrn_param",
    "Pooling": "pooling_param",
    "WindowData": "window_data_param",
}
"""The message of V1 and V2 that settings of V0 move to, by type."""

_RENAMED = {
    "biasterm": "bias_term",
    "batchsize": "batch_size",
    "shuffle_images": "shuffle",
    **{f"det_{name}": name for name in ("fg_threshold", "bg_threshold", "fg_fraction", "context_pad", "crop_mode")},
}
_TRANSFORMS = {"scale": "scale", "meanfile": "mean_file", "cropsize": "crop_size", "mirror": "mirror"}
_REPEATED = frozenset({"pad", "kernel_size", "stride"})
_DATA = {"Data": "data_param", "ImageData": "image_data_param", "WindowData": "window_data_param"}
_PADDING = "padding"
"""The type of V0's layers that only pad, for the convolution or pooling behind them."""


def upgraded_layers(net: NetParameter) -> tuple[list[LayerParameter], list[str]]:
    """The layers of a net in the third generation's terms, with a layer of type "Input" for inputs that are listed by themselves.

    Returns:
        The layers, and what is wrong: lines that name layers.
    """
    if net.layer and net.layers:
        return [], ["the net has both `layer` and `layers`: it mixes generations"]
    layers, problems = list(net.layer), list[str]()
    if net.layers:
        layers, problems = _of_old(net.layers)
    layers = [_with_moved_settings(layer) for layer in layers]
    if net.input:
        layer, problem = _inputs(net)
        layers.insert(0, layer)
        problems += problem
    return layers, problems


def stored_blobs(net: NetParameter) -> Iterator[tuple[str, Iterable[BlobProto]]]:
    """The blobs that a weights file of any generation has, by the names of its layers."""
    for layer in net.layer:
        yield layer.name, layer.blobs
    for old in net.layers:
        if old.HasField("layer"):
            yield old.layer.name, old.layer.blobs
        else:
            yield old.name, old.blobs


def _inputs(net: NetParameter) -> tuple[LayerParameter, list[str]]:
    layer = LayerParameter(name="input", type="Input", top=net.input)
    if net.input_dim and net.input_shape:
        return layer, ["the net has both `input_dim` and `input_shape`"]
    if net.input_dim:
        if len(net.input_dim) != 4 * len(net.input):
            return layer, [
                f"{len(net.input)} inputs need {4 * len(net.input)} `input_dim`, there are {len(net.input_dim)}"
            ]
        for first in range(0, len(net.input_dim), 4):
            layer.input_param.shape.add(dim=net.input_dim[first : first + 4])
    elif net.input_shape:
        if len(net.input_shape) != len(net.input):
            return layer, [f"{len(net.input)} inputs need as many `input_shape`, there are {len(net.input_shape)}"]
        layer.input_param.shape.extend(net.input_shape)
    return layer, []


def _with_moved_settings(layer: LayerParameter) -> LayerParameter:
    """What nets before `transform_param` told their data layers, moved there."""
    param = _DATA.get(layer.type)
    if param is None or not layer.HasField(param):
        return layer
    moved = LayerParameter()
    moved.CopyFrom(layer)
    old = getattr(moved, param)
    for name in _TRANSFORMS.values():
        if old.HasField(name):
            setattr(moved.transform_param, name, getattr(old, name))
            old.ClearField(name)
    return moved


def _of_old(layers: Iterable[V1LayerParameter]) -> tuple[list[LayerParameter], list[str]]:
    found: list[LayerParameter] = []
    problems: list[str] = []
    padding: dict[str, tuple[int, str]] = {}  # what lies before a layer that only pads, by what lies behind it
    for old in layers:
        if not old.HasField("layer"):
            found.append(_of_v1(old))
        elif old.layer.type == _PADDING:
            if len(old.bottom) != 1 or len(old.top) != 1:
                problems.append(f"layer {old.layer.name!r} (padding) must have one bottom and one top")
            else:
                padding[old.top[0]] = (old.layer.pad, old.bottom[0])
        else:
            layer, wrong = _of_v0(old)
            problems += [f"layer {layer.name!r} ({old.layer.type}): {reason}" for reason in wrong]
            problems += _absorb(layer, padding)
            found.append(layer)
    return found, problems


def _absorb(layer: LayerParameter, padding: dict[str, tuple[int, str]]) -> list[str]:
    """Let a layer pad its input itself, in place of the layer before it."""
    for place, bottom in enumerate(layer.bottom):
        if bottom not in padding:
            continue
        pad, source = padding[bottom]
        if layer.type not in ("Convolution", "Pooling"):
            return [
                f"layer {layer.name!r} ({layer.type}) reads {bottom!r}, whose padding is only for convolution and pooling"
            ]
        layer.bottom[place] = source
        _set(getattr(layer, _PARAM[layer.type]), "pad", pad)
    return []


def _of_v1(old: V1LayerParameter) -> LayerParameter:
    layer = LayerParameter(name=old.name, type=_BY_V1_TYPE[V1LayerParameter.LayerType.Name(old.type)])
    layer.bottom.extend(old.bottom)
    layer.top.extend(old.top)
    layer.include.extend(old.include)
    layer.exclude.extend(old.exclude)
    layer.loss_weight.extend(old.loss_weight)
    layer.blobs.extend(old.blobs)
    for field, value in old.ListFields():
        if field.name.endswith("_param"):
            getattr(layer, field.name).CopyFrom(value)
    _set_specs(layer, old.param, old.blobs_lr, old.weight_decay)
    for spec, mode in zip(layer.param, old.blob_share_mode, strict=False):
        spec.share_mode = mode
    return layer


def _set_specs(layer: LayerParameter, names: Iterable[str], rates: Iterable[float], decays: Iterable[float]) -> None:
    for field, values in (("name", names), ("lr_mult", rates), ("decay_mult", decays)):
        for place, value in enumerate(values):
            while len(layer.param) <= place:
                layer.param.add()
            setattr(layer.param[place], field, value)


def _of_v0(connection: V1LayerParameter) -> tuple[LayerParameter, list[str]]:
    old = connection.layer
    kind = _BY_V0_TYPE.get(old.type, old.type)
    layer = LayerParameter(name=old.name, type=kind)
    layer.bottom.extend(connection.bottom)
    layer.top.extend(connection.top)
    layer.blobs.extend(old.blobs)
    _set_specs(layer, (), old.blobs_lr, old.weight_decay)
    if old.type not in _BY_V0_TYPE:
        return layer, []  # an unknown type, of which the importer will speak
    problems = []
    for field, _ in old.ListFields():
        name = field.name
        if name in ("name", "type", "blobs", "blobs_lr", "weight_decay"):
            continue
        if name == "hdf5_output_param":
            layer.hdf5_output_param.CopyFrom(old.hdf5_output_param)
        elif name in _TRANSFORMS and kind in _DATA:
            setattr(layer.transform_param, _TRANSFORMS[name], getattr(old, name))
        elif not _move(old, name, layer):
            problems.append(f"{name} means nothing to this type")
    return layer, problems


def _move(old: V0LayerParameter, name: str, layer: LayerParameter) -> bool:
    """Put a setting where V1 has it; whether it has a place there."""
    if layer.type not in _PARAM:
        return False
    param = getattr(layer, _PARAM[layer.type])
    target = "kernel_size" if name == "kernelsize" else _RENAMED.get(name, name)
    if target not in param.DESCRIPTOR.fields_by_name:
        return False
    value = getattr(old, name)
    if name in ("weight_filler", "bias_filler"):
        getattr(param, target).CopyFrom(value)
    elif name == "pool":
        param.pool = PoolingParameter.PoolMethod.Value(V0LayerParameter.PoolMethod.Name(value))
    else:
        _set(param, target, value)
    return True


def _set(param: object, name: str, value: object) -> None:
    """Set a field that is repeated in a convolution's settings and single in a pooling's."""
    if name in _REPEATED and not isinstance(getattr(param, name), int):
        del getattr(param, name)[:]
        getattr(param, name).append(value)
    else:
        setattr(param, name, value)
