"""Nets that rank their classes on the device."""

from __future__ import annotations

import numpy as np
import pytest

from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn import BATCH, Executor, NetBuilder, Parameters
from dnncore.nn.model import Model
from dnncore.nn.passes import CHOICES, for_inference, rank_classes


def classifier(tail: str = "fully connected") -> Model:
    """Global pooling, a layer of 7 classes, softmax: as a fully connected layer, or as a convolution of one place."""
    builder = NetBuilder("net")
    x = builder.global_pooling("pool", builder.convolution("conv", builder.input("data", (BATCH, 3, 6, 8)), 5, 3))
    x = builder.inner_product("fc", x, 7) if tail == "fully connected" else builder.convolution("fc", x, 7, 1)
    graph = builder.build(builder.softmax("probabilities", x))
    return Model(graph, graph.initialize(3))


@pytest.mark.parametrize("tail", ["fully connected", "convolution"])
@pytest.mark.parametrize("precision", [DType.FLOAT32, DType.FLOAT16], ids=str)
@pytest.mark.parametrize(("count", "slice_images"), [(3, None), (99, 2)])
def test_the_most_probable_classes_come_from_the_device(
    handle: Handle, tail: str, precision: DType, count: int, slice_images: int | None
) -> None:
    model = rank_classes(for_inference(classifier(tail), precision), count)
    name, *ranked = model.graph.outputs
    assert ranked == [f"{name}.values", f"{name}.classes"]
    images = np.random.default_rng(0).standard_normal((4, 3, 6, 8)).astype(np.float32)
    images[1] = 0  # the biases alone, which are all 0: seven times the same
    with (
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        Executor(model.graph, handle, parameters, 4, slice_images=slice_images) as executor,
    ):
        found = executor.run({"data": images}, ranked)
        assert list(found) == ranked
        values, classes = (found[one].copy() for one in ranked)
        scores = executor.run({"data": images})[name].reshape(4, 7)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    assert expected[1].tolist() == [0, 1, 2, 3, 4, 5, 6][:count]
    assert np.array_equal(classes, expected)
    assert np.array_equal(values, np.take_along_axis(scores, expected, 1))


def test_a_net_that_is_run_ranks_where_that_is_asked_for_and_not_left_out() -> None:
    model = classifier()
    assert for_inference(model, ranked=3).graph == rank_classes(for_inference(model), 3).graph
    assert for_inference(model, without=["rank_classes"], ranked=3).graph == for_inference(model).graph
    assert "rank_classes" in CHOICES


def test_what_has_no_classes_cannot_be_ranked() -> None:
    builder = NetBuilder("net")
    graph = builder.build(builder.convolution("conv", builder.input("data", (BATCH, 3, 6, 8)), 5, 3))
    model = Model(graph, graph.initialize(3))
    with pytest.raises(BadParamError, match="to rank 5 of its classes, one number for each is needed"):
        rank_classes(model, 5)
    with pytest.raises(BadParamError, match="to rank 0 of its classes"):
        rank_classes(classifier(), 0)
