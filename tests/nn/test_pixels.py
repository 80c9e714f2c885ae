"""Nets that read pixels of 8 bits."""

from __future__ import annotations

import numpy as np
import pytest

from dnncore import Handle
from dnncore.descriptors import Layout
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.figures import H200
from dnncore.nn import BATCH, Graph, NetBuilder
from dnncore.nn.estimate import estimate
from dnncore.nn.graph import Value
from dnncore.nn.graph_json import from_document, to_document
from dnncore.nn.model import Model
from dnncore.nn.operators import ImageNormalization
from dnncore.nn.passes import for_inference, from_pixels, fuse_pixels, in_precision
from dnncore.nn.zoo import ZOO
from dnncore.preprocessing import Divide, Normalization, Scale, SubtractMean, SubtractMeanImage
from tests.nn.passed import kinds, outputs

TORCHVISION = Normalization(
    "rgb", (Divide((255.0,)), SubtractMean((0.485, 0.456, 0.406)), Divide((0.229, 0.224, 0.225)))
)
MEAN_IMAGE = Normalization(
    "bgr", (SubtractMeanImage.of(np.random.default_rng(0).random((3, 6, 8)) * 255), Scale((1 / 256,)))
)
CASTS_APART = ("fuse_cast",)
"""So that there is a cast whose place a normalisation takes."""

PIXELS = np.random.default_rng(1).integers(0, 256, (2, 6, 8, 3), np.uint8)


def net() -> Model:
    builder = NetBuilder("net")
    x = builder.input("data", (BATCH, 3, 6, 8))
    x = builder.relu("relu", builder.convolution("conv", x, 5, 3, padding=1))
    graph = builder.build(builder.inner_product("logits", builder.global_pooling("pool", x), 4))
    return Model(graph, graph.initialize(3))


@pytest.mark.parametrize("normalization", [TORCHVISION, MEAN_IMAGE], ids=["torchvision", "mean image"])
@pytest.mark.parametrize("precision", [DType.FLOAT32, DType.FLOAT16], ids=str)
def test_a_net_computes_the_same_bits_from_pixels(
    handle: Handle, normalization: Normalization, precision: DType
) -> None:
    model = for_inference(net(), precision, CASTS_APART)
    from_bytes = from_pixels(model, normalization)
    assert from_bytes.graph.inputs == (Value("data", DType.UINT8, (BATCH, 6, 8, 3)),)
    assert kinds(from_bytes)[0] == "image_normalization"
    expected = outputs(handle, model, normalization.apply(PIXELS))
    assert np.array_equal(outputs(handle, from_bytes, PIXELS), expected)


def test_the_normalisation_takes_the_place_of_a_cast_and_its_layout() -> None:
    model = for_inference(net(), DType.FLOAT16, CASTS_APART)
    assert kinds(model).count("cast") == 2
    from_bytes = from_pixels(model, TORCHVISION)
    assert kinds(from_bytes).count("cast") == 1
    head = from_bytes.graph.nodes[0]
    assert head.operator == ImageNormalization(dtype="float16")
    assert from_bytes.graph.layouts[head.outputs[0]] is Layout.NHWC
    assert from_bytes.graph.constant["data.table"].dtype is DType.FLOAT32


def test_a_net_that_reads_pixels_can_be_narrowed_too() -> None:
    with Handle("cpu") as handle:
        expected = outputs(handle, from_pixels(in_precision(net(), DType.FLOAT16), TORCHVISION), PIXELS)
        narrowed = in_precision(from_pixels(net(), TORCHVISION), DType.FLOAT16)
        assert np.array_equal(outputs(handle, narrowed, PIXELS), expected)


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


@pytest.mark.parametrize("precision", [DType.FLOAT16, DType.BFLOAT16], ids=str)
def test_the_first_convolution_looks_pixels_up_and_the_bits_stay(handle: Handle, precision: DType) -> None:
    apart = from_pixels(for_inference(net(), precision, CASTS_APART), TORCHVISION)
    fused = fuse_pixels(apart)
    assert kinds(apart)[:2] == ["image_normalization", "fused_convolution"]
    assert kinds(fused) == ["image_convolution", *kinds(apart)[2:]]
    assert np.array_equal(outputs(handle, fused, PIXELS), outputs(handle, apart, PIXELS))
    assert from_document(to_document(fused.graph)) == fused.graph


@pytest.mark.parametrize("precision", [DType.FLOAT16, DType.BFLOAT16], ids=str)
def test_a_first_convolution_that_rounds_looks_pixels_up_as_well(handle: Handle, precision: DType) -> None:
    rounding = for_inference(net(), precision)
    apart = from_pixels(rounding, TORCHVISION)
    fused = fuse_pixels(apart)
    assert kinds(apart) == ["image_normalization", *kinds(rounding)]
    assert kinds(fused) == kinds(rounding)
    expected = outputs(handle, rounding, TORCHVISION.apply(PIXELS))
    for one in (apart, fused):
        assert np.array_equal(outputs(handle, one, PIXELS), expected)


@pytest.mark.parametrize("name", ["googlenet", "mobilenet_v2", "resnet18"])
def test_on_the_zoo_it_changes_no_bit_and_leaves_float32_alone(name: str) -> None:
    graph = ZOO[name](10, (3, 32, 32))
    model, pixels = (
        Model(graph, graph.initialize(0)),
        np.random.default_rng(2).integers(0, 256, (2, 32, 32, 3), np.uint8),
    )
    fused, apart = (
        for_inference(model, DType.FLOAT16, without, normalization=TORCHVISION) for without in ((), ("fuse_pixels",))
    )
    assert (kinds(fused)[0], kinds(apart)[0]) == ("image_convolution", "image_normalization")
    with Handle("cpu") as handle:
        assert np.array_equal(outputs(handle, fused, pixels), outputs(handle, apart, pixels))
    assert kinds(for_inference(model, normalization=TORCHVISION))[0] == "image_normalization"


def test_a_convolution_that_looks_up_is_computed_at_once_and_takes_little_beside() -> None:
    """It is no cast, to be made part by part before who reads it; and where nothing is unaligned, nothing is normalised."""
    graph = ZOO["mobilenet_v2"](10, (3, 224, 224))
    fused = for_inference(Model(graph, graph.initialize(0)), DType.FLOAT16, normalization=TORCHVISION)
    first = estimate(fused.graph, H200, batch=256).computations[0]
    assert (first.algorithms, first.parts) == ("implicit_gemm_wgmma_rows", 1)
    assert first.scratch_bytes < 3e6


def test_what_the_lookups_cannot_say_stays_apart() -> None:
    def head(normalization: Normalization = TORCHVISION, residual: bool = False, groups: int = 1) -> str:
        builder = NetBuilder("net")
        x = builder.input("data", (BATCH, 3, 6, 8))
        y = builder.convolution("conv", x, 3, 3, padding=1, groups=groups)
        graph = builder.build(builder.plus("sum", y, x) if residual else y)
        return kinds(for_inference(Model(graph, graph.initialize(3)), DType.FLOAT16, normalization=normalization))[0]

    assert head() == "image_convolution"
    assert head(MEAN_IMAGE) == head(residual=True) == head(groups=3) == "image_normalization"
