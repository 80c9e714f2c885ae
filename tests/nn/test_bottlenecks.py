"""Bottlenecks become one node where nobody else reads what lies between them, and the net computes what it did."""

from __future__ import annotations

import numpy as np
import pytest

from dnncore import DType, Handle
from dnncore.nn import Graph, NetBuilder
from dnncore.nn.graph import BATCH
from dnncore.nn.graph_json import from_document, to_document
from dnncore.nn.passes import REGISTRY
from dnncore.nn.zoo import ZOO
from tests.nn.passed import kinds, outputs, with_and_without


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=str)
def test_resnet50_has_three_blocks_and_computes_what_it_did(dtype: DType) -> None:
    fused, apart = with_and_without("fuse_bottlenecks", ZOO["resnet50"](10, (3, 32, 32)), dtype)
    assert kinds(fused).count("bottleneck") == 3
    assert len(apart.graph.nodes) - len(fused.graph.nodes) == 3 + 2 * 2
    assert from_document(to_document(fused.graph)) == fused.graph
    images = np.random.default_rng(1).standard_normal((2, 3, 32, 32)).astype(np.float32)
    with Handle("cpu") as handle:
        found, expected = (outputs(handle, model, images) for model in (fused, apart))
    relative = REGISTRY["fuse_bottlenecks"].tolerance.relative(apart.graph, fused.graph)
    assert np.abs(found - expected).max() <= relative * np.abs(expected).max()


@pytest.mark.parametrize("name", ["googlenet", "mobilenet_v2", "resnet18", "vgg16"])
def test_nets_without_blocks_stay_as_they_are(name: str) -> None:
    fused, apart = with_and_without("fuse_bottlenecks", ZOO[name](10, (3, 32, 32)))
    assert fused.graph == apart.graph


def test_a_net_in_float32_stays_as_it_is() -> None:
    fused, apart = with_and_without("fuse_bottlenecks", ZOO["resnet50"](10, (3, 32, 32)), DType.FLOAT32)
    assert fused.graph == apart.graph


def block(
    *,
    channels: int = 256,
    inner: int = 64,
    added: str | None = None,
    tapped: str | None = None,
    stride: int = 1,
    follows: str = "relu",
    first: bool = False,
) -> Graph:
    """One block: `added` is x, another value, or a shortcut, made `first` or last; `tapped` is read elsewhere, too."""
    net = NetBuilder("net")
    values = {"x": net.convolution("first", net.input("data", (BATCH, 8, 6, 5)), channels, 1)}
    if added == "other":
        values["other"] = net.convolution("elsewhere", values["x"], 256, 3, padding=1, stride=stride)
    if added == "shortcut" and first:
        values["shortcut"] = net.convolution("shortcut", values["x"], 256, 1, stride=stride)
    values["reduced"] = net.activation("a", net.convolution("reduce", values["x"], inner, 1), "relu")
    filtered = net.convolution("middle", values["reduced"], inner, 3, stride=stride, padding=1)
    values["filtered"] = net.activation("b", filtered, "relu")
    y = values["restored"] = net.convolution("restore", values["filtered"], 256, 1)
    if added == "shortcut" and not first:
        values["shortcut"] = net.convolution("shortcut", values["x"], 256, 1, stride=stride)
    if added is not None:
        y = net.plus("sum", y, values[added])
    y = net.activation("c", y, follows)
    if tapped is not None:
        y = net.plus("tap", y, net.convolution("tapping", values[tapped], 256, 1))
    return net.build(y)


def found(graph: Graph) -> list[tuple[str, ...]]:
    """What the blocks add, and how many inputs they have."""
    fused, _ = with_and_without("fuse_bottlenecks", graph)
    nodes = [node for node in fused.graph.nodes if node.operator.kind == "bottleneck"]
    return [
        tuple(
            name
            for name, there in (
                ("x", node.operator.attributes["residual"]),
                ("shortcut", (*node.inputs, *[None] * 10)[7] is not None),
                ("z", (*node.inputs, *[None] * 10)[9] is not None),
            )
            if there
        )
        for node in nodes
    ]


@pytest.mark.parametrize(
    ("graph", "added"),
    [
        (block(), [()]),
        (block(added="x"), [("x",)]),
        (block(added="other"), [("z",)]),
        (block(channels=64, added="shortcut"), [("shortcut",)]),
        (block(channels=64, added="shortcut", first=True), [("shortcut",)]),
        (block(channels=128, added="shortcut", first=True), [("z",)]),
        (block(channels=128, added="shortcut"), []),
        (block(inner=32), []),
        (block(stride=2), []),
        (block(follows="sigmoid"), []),
        (block(tapped="reduced"), []),
        (block(tapped="filtered"), []),
        (block(channels=64, added="shortcut", tapped="restored"), []),
        (block(channels=64, added="shortcut", tapped="shortcut", first=True), [("z",)]),
    ],
    ids=[
        *(
            "nothing",
            "x",
            "other",
            "shortcut",
            "shortcut-first",
            "wide-shortcut-first",
            "wide-shortcut",
            "few-channels",
        ),
        *("halved", "another-activation", "tapped-reduced", "tapped-filtered", "tapped-restored", "tapped-shortcut"),
    ],
)
def test_a_block_is_taken_where_nobody_else_reads_what_lies_between(graph: Graph, added: list[tuple[str, ...]]) -> None:
    assert found(graph) == added
