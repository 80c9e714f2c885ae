"""Blocks of layers become one node where nobody else reads what lies between, and the net computes what it did."""

from __future__ import annotations

import numpy as np
import pytest

from dnncore import DType, Handle
from dnncore.nn import Graph, NetBuilder
from dnncore.nn.graph import BATCH
from dnncore.nn.graph_json import from_document, to_document
from dnncore.nn.zoo import ZOO
from tests.nn.passed import kinds, outputs, with_and_without


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=str)
def test_mobilenet_has_seventeen_blocks_and_computes_what_it_did(dtype: DType) -> None:
    fused, apart = with_and_without("fuse_inverted_residuals", ZOO["mobilenet_v2"](10, (3, 32, 32)), dtype)
    assert kinds(fused).count("inverted_residual") == 17
    assert (
        kinds(apart).count("fused_convolution")
        - kinds(fused).count("fused_convolution")
        + (kinds(apart).count("convolution") - kinds(fused).count("convolution"))
        == 3 * 16 + 2
    )
    assert from_document(to_document(fused.graph)) == fused.graph
    images = np.random.default_rng(1).standard_normal((2, 3, 32, 32)).astype(np.float32)
    with Handle("cpu") as handle:
        found, expected = (outputs(handle, model, images) for model in (fused, apart))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["googlenet", "resnet18", "vgg16"])
def test_nets_without_blocks_stay_as_they_are(name: str) -> None:
    fused, apart = with_and_without("fuse_inverted_residuals", ZOO[name](10, (3, 32, 32)))
    assert fused.graph == apart.graph


def test_a_net_in_float32_stays_as_it_is() -> None:
    fused, apart = with_and_without("fuse_inverted_residuals", ZOO["mobilenet_v2"](10, (3, 32, 32)), DType.FLOAT32)
    assert fused.graph == apart.graph


def block(*, tapped: str | None = None, residual: str | None = None, last: bool = False, stride: int = 1) -> Graph:
    """One block, 8 channels spread to 16; `tapped` is read by somebody else too, `residual` added at its end."""
    net = NetBuilder("net")
    values = {"x": net.convolution("first", net.input("data", (BATCH, 8, 6, 5)), 8, 1)}
    values["spread"] = net.activation("a", net.convolution("expand", values["x"], 16, 1), "clipped_relu", 6.0)
    filtered = net.convolution("depthwise", values["spread"], 16, 3, stride=stride, padding=1, groups=16)
    values["filtered"] = net.activation("b", filtered, "clipped_relu", 6.0)
    y = net.convolution("project", values["filtered"], 8, 1)
    if residual is not None:
        y = net.plus("sum", values[residual], y)
    if last:
        y = net.activation("c", y, "relu")
    if tapped is not None:
        y = net.plus("tap", y, net.convolution("other", values[tapped], 8, 1))
    return net.build(y)


@pytest.mark.parametrize(
    ("graph", "operators"),
    [
        (block(), ["stride=1"]),
        (block(residual="x"), ["residual"]),
        (block(stride=2), ["stride=2"]),
        (block(tapped="filtered"), []),
        (block(last=True), []),
    ],
    ids=["block", "residual", "halved", "tapped", "activated"],
)
def test_a_block_is_taken_where_nobody_else_reads_what_lies_between(graph: Graph, operators: list[str]) -> None:
    fused, _ = with_and_without("fuse_inverted_residuals", graph)
    found = [node.operator for node in fused.graph.nodes if node.operator.kind == "inverted_residual"]
    assert len(found) == len(operators)
    for operator in found:
        settings = {f"stride={operator.attributes['stride']}"}
        settings |= {"residual"} if operator.attributes["residual"] else set()
        assert settings.issuperset(operators)


def test_an_expansion_that_is_read_elsewhere_stays_and_the_rest_is_a_block() -> None:
    fused, _ = with_and_without("fuse_inverted_residuals", block(tapped="spread"))
    (node,) = [node for node in fused.graph.nodes if node.operator.kind == "inverted_residual"]
    assert node.inputs[3] is None
