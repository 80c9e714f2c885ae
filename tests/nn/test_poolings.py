"""Max pooling becomes part of a convolution where nobody else reads what lies between, and the net computes what it did."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dnncore import DType, Handle
from dnncore.errors import BadParamError
from dnncore.figures import A100
from dnncore.nn import Executor, Graph, NetBuilder, Parameters
from dnncore.nn.estimate import estimate
from dnncore.nn.graph import BATCH
from dnncore.nn.graph_json import from_document, to_document
from dnncore.nn.model import Model
from dnncore.nn.operator import Spec
from dnncore.nn.operators import PooledConvolution
from dnncore.nn.passes import for_inference, fuse_pooling
from dnncore.nn.zoo import ZOO
from dnncore.preprocessing import Normalization
from tests.nn.nets import weightless
from tests.nn.passed import kinds, outputs, with_and_without


def stages(*, activation: str | None = "relu", bias: bool = True, places: bool = False) -> Graph:
    """Two stages as VGG has them, of 8 and 16 channels, and a row of numbers, or what was pooled, at the end."""
    net = NetBuilder("stages")
    x = net.input("data", (BATCH, 8, 8, 12))
    for stage, channels in enumerate((8, 16)):
        for number in range(2):
            x = net.convolution(f"conv{stage}.{number}", x, channels, 3, padding=1, bias=bias)
            if activation is not None:
                x = net.activation(f"act{stage}.{number}", x, activation, 0.125 if activation == "leaky_relu" else 0.0)
        x = net.pooling(f"pool{stage}", x, "max", 2)
    return net.build(x if places else net.inner_product("logits", x, 3))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32], ids=str)
@pytest.mark.parametrize(
    "graph",
    [stages(), stages(activation="leaky_relu", places=True), stages(bias=False)],
    ids=["classifier", "leaky", "no-bias"],
)
def test_a_net_with_pooled_convolutions_gives_the_same_bits(handle: Handle, graph: Graph, dtype: DType) -> None:
    fused, apart = with_and_without("fuse_pooling", graph, dtype)
    assert kinds(fused).count("pooled_convolution") == kinds(apart).count("pooling") == 2
    assert kinds(fused).count("pooling") == 0
    images = np.random.default_rng(1).standard_normal((3, 8, 8, 12)).astype(np.float32)
    found, expected = (outputs(handle, model, images) for model in (fused, apart))
    np.testing.assert_array_equal(found, expected)
    assert np.ptp(found) > 0


def test_vgg16_pools_in_its_five_last_convolutions_of_a_stage_and_survives_json() -> None:
    fused, apart = with_and_without("fuse_pooling", ZOO["vgg16"](10, (3, 32, 32)))
    assert Counter(kinds(fused)) == Counter(kinds(apart)) - Counter(pooling=5, fused_convolution=5) + Counter(
        pooled_convolution=5
    )
    assert from_document(to_document(fused.graph)) == fused.graph
    names = {name for node in fused.graph.nodes for name in (*node.reads, *node.outputs)}
    assert set(fused.graph.layouts) <= names
    assert fused.graph.macs() == apart.graph.macs()


def net(
    *,
    kernel: int = 3,
    extents: tuple[int, int] = (6, 8),
    groups: int = 1,
    stride: int = 1,
    dilation: int = 1,
    mode: str = "max",
    window: int = 2,
    step: int = 2,
    padding: int = 0,
    ceil: bool = False,
    residual: bool = False,
    tapped: str | None = None,
) -> Graph:
    """A convolution that is pooled; `tapped` says who else reads its result: "node", or "output" for the outside."""
    builder = NetBuilder("net")
    x = builder.input("data", (BATCH, 8, *extents))
    around = dilation * (kernel - 1) // 2
    y = builder.convolution("conv", x, 8, kernel, stride=stride, padding=around, dilation=dilation, groups=groups)
    if residual:
        y = builder.plus("sum", x, y)
    y = builder.relu("relu", y)
    pooled = builder.pooling("pool", y, mode, window, stride=step, padding=padding, ceil_mode=ceil)
    if tapped == "node":
        pooled = builder.plus("tap", pooled, builder.pooling("other", y, "average_exclude_padding", 2))
    return builder.build(pooled, y) if tapped == "output" else builder.build(pooled)


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({}, 1),
        ({"ceil": True}, 1),
        ({"extents": (7, 8)}, 0),
        ({"extents": (6, 7)}, 0),
        ({"kernel": 5}, 0),
        ({"kernel": 1}, 0),
        ({"groups": 2}, 0),
        ({"stride": 2, "extents": (8, 12)}, 0),
        ({"dilation": 2}, 0),
        ({"mode": "average_exclude_padding"}, 0),
        ({"window": 3}, 0),
        ({"step": 1}, 0),
        ({"padding": 1}, 0),
        ({"residual": True}, 0),
        ({"tapped": "node"}, 0),
        ({"tapped": "output"}, 0),
    ],
    ids=str,
)
def test_what_alone_reads_a_3x3_convolution_is_pooled_with_it(settings: dict[str, object], number: int) -> None:
    fused, apart = with_and_without("fuse_pooling", net(**settings))  # type: ignore[arg-type]
    assert kinds(fused).count("pooled_convolution") == number
    if not number:
        assert fused.graph == apart.graph


def test_a_net_in_float32_stays_as_it_is() -> None:
    graph = net()
    model = for_inference(Model(graph, graph.initialize(0)))
    assert fuse_pooling(model).graph == model.graph


def test_a_first_convolution_looks_pixels_up_rather_than_pool() -> None:
    builder = NetBuilder("net")
    x = builder.input("data", (BATCH, 3, 8, 8))
    for number in range(2):
        x = builder.relu(f"relu{number}", builder.convolution(f"conv{number}", x, 8, 3, padding=1))
        x = builder.pooling(f"pool{number}", x, "max", 2)
    graph = builder.build(x)
    model, pixels = Model(graph, graph.initialize(0)), Normalization("rgb", ())
    reads = Counter(kinds(for_inference(model, DType.FLOAT16, normalization=pixels)))
    assert (reads["image_convolution"], reads["pooled_convolution"], reads["pooling"]) == (1, 1, 1)
    assert kinds(for_inference(model, DType.FLOAT16)).count("pooled_convolution") == 2


def test_an_executor_computes_it_in_parts_where_scratch_memory_is_short() -> None:
    graph = for_inference(weightless(ZOO["vgg16"]()), DType.FLOAT16).graph
    free, tight = (estimate(graph, A100, 256, limit) for limit in (1 << 40, 2_600_000_000))
    parts = {one.node.name: one.parts for one in tight.computations if one.node.operator.kind == "pooled_convolution"}
    assert len(parts) == 5
    assert max(parts.values()) > 1
    assert all(one.parts == 1 for one in free.computations if one.node.operator.kind == "pooled_convolution")
    assert tight.placement.nbytes <= 2_600_000_000 < free.placement.nbytes


def test_where_no_part_keeps_to_a_limit_the_one_is_taken_that_is_nearest() -> None:
    graph = for_inference(weightless(ZOO["vgg16"]()), DType.FLOAT16).graph
    least = estimate(graph, A100, 256, 0)
    pooled = [one for one in least.computations if one.node.operator.kind == "pooled_convolution"]
    assert all(one.parts > 1 and one.scratch_bytes > 0 for one in pooled)
    assert least.placement.nbytes < estimate(graph, A100, 256, 1 << 60).placement.nbytes


@pytest.mark.parametrize("limit", [0, 30_000], ids=["least", "some"])
def test_parts_of_a_batch_give_what_the_batch_gives(handle: Handle, limit: int) -> None:
    fused, _ = with_and_without("fuse_pooling", stages())
    images = np.random.default_rng(2).standard_normal((5, 8, 8, 12)).astype(np.float32)
    expected = outputs(handle, fused, images)
    with (
        Parameters.upload(handle, fused.graph, fused.weights) as parameters,
        Executor(fused.graph, handle, parameters, 5, limit_bytes=limit) as executor,
    ):
        found = executor.run({"data": images})["logits"]
        parts = [one.parts for one in executor.schedule.computations if one.node.operator.kind == "pooled_convolution"]
        assert (max(parts) > 1) == (handle.info.name != "cpu")  # which takes no scratch memory
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-3)


def test_it_infers_half_the_extents_and_counts_the_convolutions_products() -> None:
    operator = PooledConvolution(padding=1, activation="relu")
    x, w, bias = Spec(DType.FLOAT16, (2, 8, 6, 4)), Spec(DType.FLOAT16, (5, 8, 3, 3)), Spec(DType.FLOAT32, (5,))
    (y,) = operator.infer((x, w, bias))
    assert y == Spec(DType.FLOAT16, (2, 5, 3, 2))
    assert operator.macs((x, w, bias), (y,)) == 2 * 5 * 6 * 4 * 8 * 9
    with pytest.raises(BadParamError, match=r"5, 7, 4\] is not pooled"):
        operator.infer((x.with_shape(2, 8, 7, 4), w))
    with pytest.raises(BadParamError, match="bias"):
        operator.infer((x, w, bias.with_shape(4)))
    with pytest.raises(BadParamError, match="no_such"):
        PooledConvolution(padding=1, activation="no_such").infer((x, w))
