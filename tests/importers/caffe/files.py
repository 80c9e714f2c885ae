"""Caffe's files made in tests, and what OpenCV and we make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cv2
import numpy as np

from dnncore import Handle
from dnncore.importers.caffe.dnncore_caffe_pb2 import BlobProto, NetParameter, V0LayerParameter, V1LayerParameter
from dnncore.importers.caffe.importer import translate
from dnncore.importers.caffe.net_state import NetState
from dnncore.nn import Executor, Parameters
from dnncore.nn.model import Model

Blobs = Mapping[str, Sequence[np.ndarray]]


def data(*shape: int, name: str = "data") -> str:
    """An input in the terms of prototxt."""
    dims = " ".join(f"dim: {extent}" for extent in shape)
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {dims} }} }} }}\n'


def layer(kind: str, name: str, bottoms: str, settings: str = "", *, tops: str | None = None) -> str:
    """A layer in the terms of prototxt; bottoms and tops are divided by blanks."""
    links = " ".join(
        [f'bottom: "{blob}"' for blob in bottoms.split()] + [f'top: "{blob}"' for blob in (tops or name).split()]
    )
    return f'layer {{ name: "{name}" type: "{kind}" {links} {settings} }}\n'


def blob(array: np.ndarray, how: str = "shape") -> BlobProto:
    """A blob of any time or fork: "shape", "legacy" (right-aligned), "double", or "raw16" and "raw32", NVIDIA's."""
    if how == "legacy":
        extents = dict(zip(("width", "height", "channels", "num"), (*reversed(array.shape), 1, 1, 1, 1), strict=False))
        return BlobProto(data=array.ravel(), **extents)
    message = BlobProto()
    message.shape.dim.extend(array.shape)
    if how == "double":
        message.double_data.extend(array.ravel())
    elif how.startswith("raw"):
        message.raw_data_type = BlobProto.FLOAT16 if how == "raw16" else BlobProto.FLOAT
        message.raw_data = array.astype("<f2" if how == "raw16" else "<f4").tobytes()
    else:
        message.data.extend(array.ravel())
    return message


def caffemodel(blobs: Blobs, how: str = "shape", generation: int = 2) -> bytes:
    """A weights file."""
    net = NetParameter()
    for name, arrays in blobs.items():
        messages = [blob(array, how) for array in arrays]
        if generation == 2:
            net.layer.add(name=name, type="", blobs=messages)
        elif generation == 1:
            net.layers.add(name=name, type=V1LayerParameter.NONE, blobs=messages)
        else:
            net.layers.add(layer=V0LayerParameter(name=name, blobs=messages))
    return net.SerializeToString()


def random_blobs(prototxt: str, seed: int = 0) -> dict[str, list[np.ndarray]]:
    """What a weights file might hold for a net: values neither grow nor vanish; the sums of normalisations are of 4 images."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[np.ndarray]] = {}
    for name, stored in translate(prototxt.encode(), NetState(), {}).stored.items():
        arrays = []
        for place, shape in enumerate(stored.shapes):
            if place == 0 and len(shape) > 1:
                arrays.append(rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:])))
            else:
                arrays.append(rng.uniform(0.5, 1.5, shape) if place == 0 else rng.uniform(-0.1, 0.3, shape))
        if len(arrays) in (3, 5):
            arrays[0], arrays[1] = rng.uniform(-1, 1, arrays[0].shape), rng.uniform(2, 6, arrays[1].shape)
            arrays[2] = np.array([4])
        found[name] = [array.astype(np.float32) for array in arrays]
    return found


def run(model: Model, *inputs: np.ndarray, handle: Handle | None = None) -> dict[str, np.ndarray]:
    """The outputs on the CPU, or where a handle is."""
    feeds = {value.name: array for value, array in zip(model.graph.inputs, inputs, strict=True)}
    used = Handle("cpu") if handle is None else handle
    try:
        with (
            Parameters.upload(used, model.graph, model.weights) as parameters,
            Executor(model.graph, used, parameters, len(inputs[0])) as executor,
        ):
            return {name: array.copy() for name, array in executor.run(feeds).items()}
    finally:
        if handle is None:
            used.close()


def opencv(prototxt: str, weights: bytes, *inputs: np.ndarray) -> np.ndarray:
    """What OpenCV's reader of Caffe's files makes of a net: its last output."""
    texts = (np.frombuffer(text, np.uint8) for text in (prototxt.encode(), weights))
    net = cv2.dnn.readNetFromCaffe(*texts)
    names = ["data", "data2"] if len(inputs) == 2 else [""]
    for name, array in zip(names, inputs, strict=True):
        net.setInput(array, name)
    found: np.ndarray = net.forward()
    return found


def assert_close(found: np.ndarray, expected: np.ndarray, digits: float = 1e-5) -> None:
    """Equal, but for rounding relative to the largest element."""
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= digits * max(np.abs(expected).max(), 1e-30)
