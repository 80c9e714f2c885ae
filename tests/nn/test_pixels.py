"""Nets that read pixels of 8 bits."""

from __future__ import annotations

import numpy as np
import pytest

from dnncore import Handle
from dnncore.descriptors import Layout
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn import BATCH, Executor, Graph, NetBuilder, Parameters
from dnncore.nn.graph import Value
from dnncore.nn.graph_json import from_document, to_document
from dnncore.nn.model import Model
from dnncore.nn.operators import ImageNormalization
from dnncore.nn.passes import for_inference, from_pixels, in_precision
from dnncore.preprocessing import Divide, Normalization, Scale, SubtractMean, SubtractMeanImage

TORCHVISION = Normalization(
    "rgb", (Divide((255.0,)), SubtractMean((0.485, 0.456, 0.406)), Divide((0.229, 0.224, 0.225)))
)
MEAN_IMAGE = Normalization(
    "bgr", (SubtractMeanImage.of(np.random.default_rng(0).random((3, 6, 8)) * 255), Scale((1 / 256,)))
)
PIXELS = np.random.default_rng(1).integers(0, 256, (2, 6, 8, 3), np.uint8)


def net() -> Model:
    builder = NetBuilder("net")
    x = builder.input("data", (BATCH, 3, 6, 8))
    x = builder.relu("relu", builder.convolution("conv", x, 5, 3, padding=1))
    graph = builder.build(builder.inner_product("logits", builder.global_pooling("pool", x), 4))
    return Model(graph, graph.initialize(3))


def logits(handle: Handle, model: Model, images: np.ndarray) -> np.ndarray:
    with (
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        Executor(model.graph, handle, parameters, len(images)) as executor,
    ):
        return executor.run({"data": images})["logits"].copy()


def kinds(model: Model) -> list[str]:
    return [node.operator.kind for node in model.graph.nodes]


@pytest.mark.parametrize("normalization", [TORCHVISION, MEAN_IMAGE], ids=["torchvision", "mean image"])
@pytest.mark.parametrize("precision", [DType.FLOAT32, DType.FLOAT16], ids=str)
def test_a_net_computes_the_same_bits_from_pixels(
    handle: Handle, normalization: Normalization, precision: DType
) -> None:
    model = for_inference(net(), precision)
    from_bytes = from_pixels(model, normalization)
    assert from_bytes.graph.inputs == (Value("data", DType.UINT8, (BATCH, 6, 8, 3)),)
    assert kinds(from_bytes)[0] == "image_normalization"
    expected = logits(handle, model, normalization.apply(PIXELS))
    assert np.array_equal(logits(handle, from_bytes, PIXELS), expected)


def test_the_normalisation_takes_the_place_of_a_cast_and_its_layout() -> None:
    model = for_inference(net(), DType.FLOAT16)
    assert kinds(model).count("cast") == 2
    from_bytes = from_pixels(model, TORCHVISION)
    assert kinds(from_bytes).count("cast") == 1
    head = from_bytes.graph.nodes[0]
    assert head.operator == ImageNormalization(dtype="float16")
    assert from_bytes.graph.layouts[head.outputs[0]] is Layout.NHWC
    assert from_bytes.graph.constant["data.table"].dtype is DType.FLOAT32


def test_a_net_that_reads_pixels_can_be_narrowed_too() -> None:
    with Handle("cpu") as handle:
        expected = logits(handle, from_pixels(in_precision(net(), DType.FLOAT16), TORCHVISION), PIXELS)
        narrowed = in_precision(from_pixels(net(), TORCHVISION), DType.FLOAT16)
        assert np.array_equal(logits(handle, narrowed, PIXELS), expected)


def test_it_is_written_to_files_and_read() -> None:
    graph = from_pixels(net(), MEAN_IMAGE).graph
    assert from_document(to_document(graph)) == graph


@pytest.mark.parametrize(
    ("model", "normalization", "message"),
    [
        (net(), Normalization("gray", ()), r"float32\[N, 1, H, W\] is needed"),
        (from_pixels(net(), TORCHVISION), TORCHVISION, "reads data: uint8"),
        (net(), Normalization("rgb", (SubtractMeanImage.of(np.zeros((3, 5, 8))),)), r"needs a mean float32\[3, 6, 8\]"),
    ],
    ids=["channels", "twice", "mean image"],
)
def test_other_inputs_are_refused(model: Model, normalization: Normalization, message: str) -> None:
    with pytest.raises(BadParamError, match=message):
        from_pixels(model, normalization)


def test_an_input_that_is_handed_out_is_refused() -> None:
    model = net()
    graph: Graph = model.graph.rewritten(model.graph.nodes, outputs=("logits", "data"))
    with pytest.raises(BadParamError, match="hands its input 'data' out"):
        from_pixels(Model(graph, model.weights), TORCHVISION)
