from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnncore import Handle, Tensor
from dnncore.dtypes import DType
from dnncore.nn import BATCH, Executor, Graph, Model, NetBuilder, Node, Parameters, Value
from dnncore.nn.operators import Activation, Concat, Reshape, Slice, Split, Transpose
from dnncore.nn.passes import channels_last, in_precision
from dnncore.nn.placement import place
from dnncore.nn.training import for_training
from dnncore.nn.zoo import lenet
from tests.nn.nets import TWINS


def test_what_is_done_in_place_and_what_is_only_looked_at_take_no_memory() -> None:
    placement = place(lenet(), 4)
    places = placement.places
    assert places["relu1"].storage == "conv1"
    assert places["ip1.flatten"].storage == "pool2"
    assert placement.idle == {"ip1.flatten"}
    # The input stays; conv1 and pool1 are there at the same time; everything later, the logits too, lies where conv1 was.
    sizes = {name: 4 * 4 * n for name, n in (("data", 64), ("conv1", 1024), ("pool1", 256))}
    assert placement.nbytes == sum(sizes.values())


def test_a_value_that_is_read_again_is_not_overwritten() -> None:
    training = for_training(lenet())
    places = place(training.graph, 2).places
    assert places["relu1"].storage == "conv1"  # its slope follows from the result
    assert places["pool1"].storage not in (places["relu1"].storage, places["conv2"].storage)


def test_parts_are_written_where_the_whole_is() -> None:
    places = place(TWINS[2].graph, 3).places
    whole, image = places["whole"].descriptor, 8 * 8 * 4
    for name, channel in (("inner", 0), ("pool", 8), ("relu1", 16), ("relu2", 4)):
        assert places[name].storage == "whole"
        assert places[name].offset_bytes == channel * image
        assert places[name].descriptor.strides == whole.strides


@pytest.mark.parametrize(
    ("channels", "pitch"),
    [
        pytest.param((40, 176), 256, id="to whole lines"),
        pytest.param((64, 192), 256, id="they are"),
        pytest.param((8, 64), 72, id="but not by more than a quarter"),
    ],
)
def test_pixels_of_what_is_put_together_begin_where_lines_of_the_cache_do(
    channels: tuple[int, int], pitch: int
) -> None:
    net = NetBuilder("wide")
    x = net.input("x", (BATCH, 8, 5, 3))
    parts = [net.convolution(f"part{n}", x, n, 1) for n in channels]
    graph = net.build(net.add("relu", Activation("relu"), net.add("whole", Concat(1), *parts)))
    model = channels_last(in_precision(Model(graph, graph.initialize(0)), DType.FLOAT16))
    whole = place(model.graph, 2).places["whole"]
    assert whole.descriptor.strides == (15 * pitch, 1, 3 * pitch, pitch)


def test_single_pixels_are_put_together_without_gaps() -> None:
    net = NetBuilder("rows")
    x = net.input("x", (BATCH, 8, 1, 1))
    parts = [net.convolution(f"part{n}", x, n, 1) for n in (40, 176)]
    graph = net.build(net.add("flat", Reshape((0, -1)), net.add("whole", Concat(1), *parts)))
    model = channels_last(in_precision(Model(graph, graph.initialize(0)), DType.FLOAT16))
    assert place(model.graph, 2).places["whole"].descriptor.is_row_major


def test_results_are_handed_out_in_row_major_order() -> None:
    net = NetBuilder("pieces")
    x = net.input("x", (BATCH, 6, 2, 2))
    graph = net.build(net.add("piece", Slice(1, 2, 4), x), net.add("turned", Transpose((0, 2, 3, 1)), x))
    assert all(place(graph, 3).places[name].descriptor.is_row_major for name in graph.outputs)


class _Interpreter:
    """The same graph, one operation after another, every value in memory of its own."""

    def __init__(self, handle: Handle, graph: Graph, weights: dict[str, np.ndarray], batch: int) -> None:
        self.handle, self.graph, self.weights, self.specs = handle, graph, weights, graph.specs(batch)

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        made: list[Tensor] = []

        def upload(array: np.ndarray) -> Tensor:
            made.append(self.handle.upload(array))
            return made[-1]

        tensors = {name: upload(array) for name, array in (self.weights | feeds).items()}
        for node in self.graph.nodes:
            for name in node.outputs:
                tensors[name] = upload(np.full(self.specs[name].shape, np.nan, np.float32))
            inputs = [None if name is None else tensors[name] for name in node.inputs]
            node.operator.lower(self.handle, inputs, [tensors[name] for name in node.outputs])
        found = {name: tensors[name].numpy() for name in self.graph.outputs}
        for tensor in made:
            tensor.close()
        return found


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Values of 4 channels, put together, cut, seen in other shapes and done in place, in any order."""
    net = NetBuilder("random")
    values = [net.input("x", (BATCH, 4, 3, 2)), net.input("y", (BATCH, 4, 3, 2))]
    for number in range(draw(st.integers(1, 12))):
        name = f"v{number}"
        one, other = (draw(st.sampled_from(values)) for _ in range(2))
        kind = draw(st.sampled_from(["relu", "tanh", "plus", "concat", "reshape", "conv", "turn", "softmax", "drop"]))
        if kind in ("relu", "tanh"):
            values.append(net.activation(name, one, kind))
        elif kind == "plus":
            values.append(net.plus(name, one, other))
        elif kind == "concat":
            whole = net.concat(f"{name}.whole", one, other, draw(st.sampled_from(values)))
            begin = draw(st.integers(0, 8))
            values.append(net.add(name, Slice(1, begin, begin + 4), net.relu(f"{name}.relu", whole)))
        elif kind == "reshape":
            flat = net.add(f"{name}.flat", Reshape((0, -1)), one)
            values.append(net.add(name, Reshape((0, 4, 3, 2)), net.relu(f"{name}.relu", flat)))
        elif kind == "conv":
            values.append(net.convolution(name, one, 4, 1))
        elif kind == "turn":
            values.append(net.add(name, Transpose((0, 2, 1, 3)), net.add(f"{name}.t", Transpose((0, 2, 1, 3)), one)))
        elif kind == "softmax":
            values.append(net.softmax(name, one))
        else:
            values.append(net.dropout(name, one))
    outputs = draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3, unique=True))
    return net.build(*outputs)


@settings(max_examples=60)
@given(graph=graphs())
def test_sharing_memory_changes_no_bit(handles: dict[str, Handle], graph: Graph) -> None:
    rng, handle = np.random.default_rng(0), handles["cpu"]
    weights = {name: rng.uniform(-1, 1, array.shape).astype("f4") for name, array in graph.initialize(0).items()}
    feeds = {name: rng.uniform(-1, 1, (2, 4, 3, 2)).astype(np.float32) for name in ("x", "y")}
    with Parameters.upload(handle, graph, weights) as parameters, Executor(graph, handle, parameters, 2) as executor:
        found = executor.run(feeds)
        expected = _Interpreter(handle, graph, weights, 2).run(feeds)
        for name in graph.outputs:
            assert np.array_equal(found[name], expected[name]), graph.describe()


@pytest.mark.parametrize("graph", [for_training(lenet()).graph, *(twin.graph for twin in TWINS)])
def test_the_nets_of_the_tests_share_memory_without_harm(handle: Handle, graph: Graph) -> None:
    rng = np.random.default_rng(0)
    weights = {name: array + np.float32(0.01) for name, array in graph.initialize(0).items()}
    feeds = {
        value.name: rng.standard_normal(value.spec(3).shape).astype(np.float32)
        if value.dtype.is_floating
        else rng.integers(0, 10, 3).astype(np.int32)
        for value in graph.inputs
    }
    with Parameters.upload(handle, graph, weights) as parameters, Executor(graph, handle, parameters, 3) as executor:
        found = executor.run(feeds)
        expected = _Interpreter(handle, graph, weights, 3).run(feeds)
        for name in graph.outputs:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_split_is_a_view_of_each_piece(handle: Handle) -> None:
    pieces = Node("split", Split((2, 3)), ("x",), ("left", "right"))
    relu = Node("out", Activation("relu"), ("right",), ("out",))
    graph = Graph("split", (Value("x", DType.FLOAT32, (BATCH, 5)),), ("left", "out"), (pieces, relu))
    array = np.arange(-5, 5, dtype=np.float32).reshape(2, 5)
    with Parameters.upload(handle, graph, {}) as parameters, Executor(graph, handle, parameters, 2) as executor:
        found = executor.run({"x": array})
        assert np.array_equal(found["left"], array[:, :2])
        assert np.array_equal(found["out"], np.maximum(array[:, 2:], 0))
