from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dnncore import Handle
from dnncore.descriptors import Layout
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.figures import H200
from dnncore.nn import BATCH, Executor, Graph, NetBuilder, Parameters
from dnncore.nn.estimate import estimate
from dnncore.nn.model import Model
from dnncore.nn.operators import Binary, Cast, Reshape, Zeros
from dnncore.nn.passes import (
    PASSES,
    channels_last,
    drop_identities,
    drop_unused,
    fold_batch_norms,
    for_inference,
    fuse_convolutions,
    fuse_inner_products,
    in_precision,
    merge_siblings,
)
from dnncore.nn.zoo import googlenet
from dnncore.testing import tolerance
from tests.nn.nets import TWINS, residual, siblings, weightless

GRAPHS = [*(twin.graph for twin in TWINS), residual(), siblings()]


def _model(graph: Graph) -> Model:
    rng = np.random.default_rng(5)
    weights = {
        name: (np.abs(array) if name.endswith("variance") else array) + rng.uniform(0.01, 0.2, array.shape).astype("f4")
        for name, array in graph.initialize(5).items()
    }
    return Model(graph, weights)


def _run(handle: Handle, model: Model) -> dict[str, np.ndarray]:
    rng, graph = np.random.default_rng(6), model.graph
    feeds = {value.name: rng.standard_normal(value.spec(3).shape).astype(np.float32) for value in graph.inputs}
    with (
        Parameters.upload(handle, graph, model.weights) as parameters,
        Executor(graph, handle, parameters, 3) as executor,
    ):
        return {name: array.copy() for name, array in executor.run(feeds).items()}


def _kinds(model: Model) -> list[str]:
    return [node.operator.kind for node in model.graph.nodes]


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("pass_", [*PASSES.values(), channels_last, for_inference])
def test_a_pass_changes_nothing_but_the_last_bits(
    handle: Handle, graph: Graph, pass_: Callable[[Model], Model]
) -> None:
    model = _model(graph)
    passed = pass_(model)
    assert (passed.graph.inputs, passed.graph.outputs) == (graph.inputs, graph.outputs)
    assert passed.weights.keys() == passed.graph.constant.keys()
    expected = _run(handle, model)
    for name, found in _run(handle, passed).items():
        allowed = len(graph.nodes) * tolerance(DType.FLOAT32, 400) * np.abs(expected[name]).max()
        assert np.abs(found - expected[name]).max() <= allowed, name


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_in_16_bits_results_are_near(handle: Handle, graph: Graph, dtype: DType) -> None:
    model = _model(graph)
    expected = _run(handle, model)
    epsilon = {DType.FLOAT16: 2**-11, DType.BFLOAT16: 2**-8}[dtype]
    for name, found in _run(handle, for_inference(model, dtype)).items():
        assert found.dtype == np.float32
        assert np.abs(found - expected[name]).max() <= 4 * len(graph.nodes) * epsilon * np.abs(expected[name]).max()


def test_a_residual_block_is_three_convolutions() -> None:
    model = for_inference(_model(residual()))
    assert _kinds(model) == [*["fused_convolution"] * 3, "global_pooling", "flatten", "fused_inner_product", "softmax"]
    stem, a, b = model.graph.nodes[:3]
    assert [node.operator.attributes["activation"] for node in (stem, a, b)] == ["relu"] * 3
    assert (stem.outputs, b.inputs[3], b.outputs) == (("stem.relu",), "stem.relu", ("join.relu",))
    assert not any(name.endswith(("variance", "scale")) for name in model.weights)


def test_of_two_convolutions_that_are_added_the_later_takes_the_other() -> None:
    net = NetBuilder("both")
    x = net.input("x", (BATCH, 3, 4, 4))
    short, long = net.convolution("short", x, 4, 1), net.convolution("long", x, 4, 3, padding=1)
    model = fuse_convolutions(_model(net.build(net.relu("relu", net.plus("sum", long, short)))))
    assert _kinds(model) == ["convolution", "fused_convolution"]
    assert model.graph.nodes[1].name == "long"
    assert model.graph.nodes[1].inputs[3] == "short"


def test_what_somebody_else_reads_is_left_alone() -> None:
    net = NetBuilder("shared")
    x = net.input("x", (BATCH, 3, 4, 4))
    conv = net.convolution("conv", x, 3, 1)
    norm = net.batch_norm("norm", conv)
    relu = net.relu("relu", net.plus("sum", conv, x))
    drop = net.dropout("drop", relu)
    graph = net.build(norm, drop)
    model = _model(graph)
    for pass_ in (fold_batch_norms, fuse_convolutions, drop_identities):
        assert _kinds(pass_(model)) == _kinds(model)
    doubled = NetBuilder("doubled")
    x = doubled.input("x", (BATCH, 3, 4, 4))
    conv = doubled.convolution("conv", x, 3, 1)
    broadcast = doubled.plus("broadcast", conv, doubled.constant("row", (3, 1, 4)))
    assert "fused_convolution" not in _kinds(fuse_convolutions(_model(doubled.build(broadcast))))
    assert "fused_convolution" not in _kinds(
        fuse_convolutions(_model(doubled.build(doubled.plus("twice", conv, conv))))
    )


def test_precision_leaves_inputs_outputs_and_what_is_added_late_in_float32() -> None:
    model = in_precision(_model(residual()), DType.FLOAT16)
    dtypes = {name: one.dtype for name, one in model.graph.constant.items()}
    assert dtypes["stem.weight"] is dtypes["logits.weight"] is DType.FLOAT16
    assert dtypes["stem.norm.variance"] is dtypes["logits.bias"] is DType.FLOAT32
    values = model.graph.values
    assert values["data"].dtype is values["probabilities"].dtype is DType.FLOAT32
    assert values["join"].dtype is DType.FLOAT16
    assert in_precision(model, DType.FLOAT32) is model


def test_what_is_made_of_bool_is_narrow_too(handle: Handle) -> None:
    net = NetBuilder("masked")
    x = net.relu("relu", net.input("x", (BATCH, 4)))
    positive = net.add("positive", Binary("greater"), x, net.add("zeros", Zeros(), x))
    graph = net.build(net.add("masked", Binary("mul"), x, net.add("mask", Cast("float32"), positive)))
    found = _run(handle, in_precision(Model(graph, {}), DType.FLOAT16))
    assert found.keys() == {"masked"}
    assert found["masked"].dtype == np.float32
    assert np.allclose(found["masked"], _run(handle, Model(graph, {}))["masked"], rtol=1e-3)


def test_channels_last_is_for_what_lies_inside() -> None:
    layouts = channels_last(_model(residual())).graph.layouts
    assert layouts["a"] is layouts["a.weight"] is Layout.NHWC
    assert not {"data", "logits", "logits.weight", "probabilities"} & layouts.keys()


def test_an_unknown_pass_is_refused() -> None:
    with pytest.raises(BadParamError, match="no pass fold_everything; there are drop_unused, drop_identities"):
        for_inference(_model(residual()), without=["fold_everything"])
    assert "batch_norm" in _kinds(for_inference(_model(residual()), without=["fold_batch_norms"]))


def test_what_is_reshaped_stays_row_major_between_what_lies_channels_last(handle: Handle) -> None:
    net = NetBuilder("reshaped")
    conv = net.convolution("conv", net.input("x", (BATCH, 3, 4, 6)), 4, 3, padding=1)
    cut = net.add("cut", Reshape((0, 2, 6, 8)), conv)
    joined = net.concat("joined", cut, net.add("again", Reshape((0, 2, 6, 8)), conv), axis=1)
    model = _model(net.build(net.relu("relu", joined)))
    layouts = channels_last(model).graph.layouts
    assert "conv" in layouts
    assert not {"cut", "again"} & layouts.keys()
    expected = _run(handle, model)["relu"]
    np.testing.assert_allclose(_run(handle, channels_last(model))["relu"], expected, rtol=1e-5, atol=1e-6)


def test_siblings_are_one_convolution_and_nothing_is_copied() -> None:
    model = for_inference(_model(siblings()))
    merged = [node for node in model.graph.nodes if "+" in node.name]
    assert [node.name for node in merged] == [
        f"{part}.two.before+{part}.three.before+{part}.one" for part in ("first", "second")
    ]
    assert [model.weights[str(node.inputs[1])].shape[0] for node in merged] == [9, 9]
    planned = estimate(model.graph, H200, 3)
    moved = {
        one.node.name for one in planned.computations if one.node.operator.kind in ("concat", "slice") and one.plans
    }
    assert moved == set()
    places = planned.placement.places
    whole = places["first.wide"]
    assert places["first"].descriptor.strides == whole.descriptor.strides
    assert places["first"].offset_bytes == 5 * 8 * 8 * 4  # behind the channels that only the branches read


def test_siblings_that_differ_or_are_handed_out_stay_apart() -> None:
    net = NetBuilder("strangers")
    x = net.input("x", (BATCH, 4, 4, 4))
    convs = {
        "plain": net.convolution("plain", x, 2, 1),
        "strided": net.convolution("strided", x, 2, 1, stride=2),
        "unbiased": net.convolution("unbiased", x, 2, 1, bias=False),
        "wide": net.convolution("wide", x, 2, 3, padding=1),
        "other": net.convolution("other", net.relu("relu", x), 2, 1),
        "given": net.convolution("given", x, 2, 1),
    }
    graph = net.build(*(net.activation(f"{name}.tanh", y, "tanh") for name, y in convs.items()), convs["given"])
    assert _kinds(merge_siblings(_model(graph))) == _kinds(_model(graph))


@pytest.mark.parametrize("precision", [DType.FLOAT32, DType.FLOAT16])
def test_by_estimate_merging_and_fusing_pays_on_an_h200(precision: DType) -> None:
    model = weightless(googlenet())
    best, apart, unfused = (
        for_inference(model, precision, without).graph for without in ((), ["merge_siblings"], ["fuse_inner_products"])
    )
    for batch, gain in ((1, 0.15), (32, 0.04), (256, 0.005)):
        seconds = estimate(best, H200, batch).seconds
        assert seconds < estimate(apart, H200, batch).seconds * (1 - gain)
        # What is fused takes one launch or two, whichever is faster: 256 rows of float32 are multiplied by `gemm_3xtf32` alone.
        alone = estimate(unfused, H200, batch).seconds
        assert seconds < alone or (seconds == alone and (precision, batch) == (DType.FLOAT32, 256))


def test_an_inner_product_takes_bias_and_activation_along(handle: Handle) -> None:
    net = NetBuilder("dense")
    hidden = net.relu("relu", net.inner_product("hidden", net.input("x", (BATCH, 300)), 7))
    model = _model(net.build(net.inner_product("logits", hidden, 3, bias=False), hidden))
    assert _kinds(fuse_inner_products(model)) == ["fused_inner_product", "inner_product"]
    expected, found = _run(handle, model), _run(handle, fuse_inner_products(model))
    for name in ("relu", "logits"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5)


def test_what_no_output_depends_on_is_left_out() -> None:
    net = NetBuilder("auxiliary")
    x = net.convolution("conv", net.input("x", (BATCH, 3, 4, 4)), 2, 1)
    net.inner_product("auxiliary", net.relu("side", x), 5)
    model = drop_unused(_model(net.build(net.activation("main", x, "tanh"))))
    assert [node.name for node in model.graph.nodes] == ["conv", "main"]
    assert set(model.weights) == {"conv.weight", "conv.bias"}
