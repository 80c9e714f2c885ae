"""Nets in 16 bits whose first convolution rounds the images that it reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.figures import H200
from dnncore.nn import BATCH, NetBuilder
from dnncore.nn.estimate import estimate
from dnncore.nn.graph_json import from_document, to_document
from dnncore.nn.model import Model
from dnncore.nn.passes import for_inference, fuse_cast, in_precision
from dnncore.nn.zoo import ZOO, alexnet, googlenet, mobilenet_v2, resnet50
from tests.nn.nets import weightless
from tests.nn.passed import kinds, outputs

WITHOUT = ("fuse_cast",)
IMAGES = np.random.default_rng(1).standard_normal((2, 3, 6, 8)).astype(np.float32)


def _net(channels: int = 3, bias: bool = True, residual: bool = False, groups: int = 1, again: bool = False) -> Model:
    net = NetBuilder("net")
    x = net.input("data", (BATCH, channels, 6, 8))
    y = net.convolution("conv", x, channels if residual else 6, 3, padding=1, groups=groups, bias=bias)
    y = net.plus("sum", y, x) if residual else net.relu("relu", y)
    if again:
        net.convolution("other", x, 6, 1)
    graph = net.build(net.inner_product("logits", net.global_pooling("pool", y), 4))
    return Model(graph, graph.initialize(3))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("precision", [DType.FLOAT16, DType.BFLOAT16], ids=str)
def test_the_first_convolution_rounds_and_the_bits_stay(handle: Handle, precision: DType, bias: bool) -> None:
    apart = for_inference(_net(bias=bias), precision, WITHOUT)
    fused = fuse_cast(apart)
    assert kinds(apart)[:2] == ["cast", "fused_convolution"]
    assert kinds(fused) == ["image_convolution", *kinds(apart)[2:]]
    assert np.array_equal(outputs(handle, fused, IMAGES), outputs(handle, apart, IMAGES))
    assert from_document(to_document(fused.graph)) == fused.graph
    assert kinds(for_inference(_net(bias=bias), precision)) == kinds(fused)


@pytest.mark.parametrize("name", ["alexnet", "googlenet", "mobilenet_v2", "resnet18"])
def test_on_the_zoo_it_changes_no_bit_and_leaves_float32_alone(name: str) -> None:
    shape = (3, 64, 64) if name == "alexnet" else (3, 32, 32)
    graph = ZOO[name](10, shape)
    model, images = Model(graph, graph.initialize(0)), np.random.default_rng(2).random((2, *shape), np.float32)
    fused, apart = (for_inference(model, DType.FLOAT16, without) for without in ((), WITHOUT))
    assert (kinds(fused)[0], kinds(apart)[0]) == ("image_convolution", "cast")
    with Handle("cpu") as handle:
        assert np.array_equal(outputs(handle, fused, images), outputs(handle, apart, images))
    assert "image_convolution" not in kinds(for_inference(model))


@pytest.mark.parametrize(
    "model",
    [_net(channels=5), _net(residual=True), _net(groups=3), _net(again=True)],
    ids=["five channels", "residual", "groups", "read twice"],
)
def test_what_it_cannot_say_stays_apart(model: Model) -> None:
    if "other" in {node.name for node in model.graph.nodes}:
        graph = model.graph.rewritten(model.graph.nodes, outputs=(*model.graph.outputs, "other"))
        model = Model(graph, model.weights)
    assert kinds(for_inference(model, DType.FLOAT16))[0] == "cast"


def test_a_cast_that_is_handed_out_stays() -> None:
    model = in_precision(_net(), DType.FLOAT16)
    (cast, *_) = model.graph.nodes
    graph = model.graph.rewritten(model.graph.nodes, outputs=(*model.graph.outputs, cast.outputs[0]))
    assert kinds(fuse_cast(Model(graph, model.weights)))[:2] == ["cast", "convolution"]


def test_a_first_convolution_that_pools_reads_what_is_cast() -> None:
    graph = ZOO["lenet"](10, (1, 28, 28))
    assert kinds(for_inference(Model(graph, graph.initialize(0)), DType.FLOAT16))[:2] == ["cast", "pooled_convolution"]


@pytest.mark.parametrize("net", [mobilenet_v2, googlenet, resnet50])
@pytest.mark.parametrize("batch", [1, 256])
def test_one_kernel_rounds_and_convolves_where_that_is_faster(net: object, batch: int) -> None:
    """It takes nothing beside, whole batches at once, and no longer than a cast and a convolution by estimate."""
    assert callable(net)
    model = weightless(net())
    fused, apart = (
        estimate(for_inference(model, DType.FLOAT16, without).graph, H200, batch) for without in ((), WITHOUT)
    )
    first = fused.computations[0]
    assert (first.algorithms, first.parts) == ("implicit_gemm_wgmma_rows", 1)
    assert first.scratch_bytes < 3e6
    assert fused.seconds < apart.seconds
    assert fused.placement.nbytes <= apart.placement.nbytes


def test_images_are_cast_part_by_part_where_no_kernel_rounds_them() -> None:
    """11 rows of a filter by 4 meet more of x than there is memory on chip for."""
    found: Sequence[int] = []
    for without in ((), WITHOUT):
        one = estimate(for_inference(weightless(alexnet()), DType.FLOAT16, without).graph, H200, 256)
        found = [*found, one.placement.nbytes]
        assert one.computations[0].algorithms == ("-" if without else "converted_first")
    assert found[0] <= found[1] * 1.01
