from __future__ import annotations

import types
from typing import ClassVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from dnncore.descriptors import Layout
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn import BATCH, Constant, Graph, NetBuilder, Node, Value
from dnncore.nn.graph_json import from_document, to_document
from dnncore.nn.operators import OPERATORS, Activation, Binary, Convolution, InnerProduct, Pooling, Reshape, Softmax
from dnncore.nn.zoo import lenet
from tests.nn.nets import TWINS

DATA = Value("data", DType.FLOAT32, (BATCH, 1, 4, 4))
RELU = Activation("relu")


def _node(name: str, operator: object, *inputs: str) -> Node:
    return Node(name, operator, inputs, (name,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "outputs", "message"),
    [
        ((), ("a",), "has no nodes"),
        ((_node("a", RELU, "data"),), (), "has no outputs"),
        ((_node("a", RELU, "data"), _node("a", RELU, "data")), ("a",), "'a' is empty or used twice"),
        ((_node("", RELU, "data"),), ("",), "'' is empty or used twice"),
        ((_node("data", RELU, "data"),), ("data",), "'data' is empty or used twice"),
        ((_node("a", RELU, "b"), _node("b", RELU, "data")), ("b",), "'a' reads 'b', which no earlier node writes"),
        ((_node("a", RELU, "data"),), ("c",), "output 'c' is written by no node"),
        ((_node("a", Binary("add"), "data"),), ("a",), "binary takes 2 inputs, 1 are given"),
        ((_node("a", RELU, "data", "data"),), ("a",), "activation takes 1 inputs, 2 are given"),
        ((_node("a", Activation("rely"), "data"),), ("a",), "node 'a' .*rely"),
        ((_node("a", Convolution(), "data", "w"),), ("a",), r"node 'a' \(convolution\): filter extent 9"),
        ((_node("a", Pooling("median", (2, 2)), "data"),), ("a",), "median"),
        ((_node("a", InnerProduct(), "data", "w"),), ("a",), r"x must be \[N, C\] and weight \[K, C\]"),
        ((_node("a", Softmax(7), "data"),), ("a",), "no dimension 7"),
        ((_node("a", Reshape((3, -1)), "data"),), ("a",), r"cannot be seen as \[3, -1\]"),
        ((_node("a", Reshape((16, -1)), "data"), _node("b", Reshape((1, -1)), "a")), ("b",), None),
        ((Node("a", Convolution(), (None, "w"), ("a",)),), ("a",), "convolution needs its input 'x'"),
    ],
)
def test_graphs_that_make_no_sense_are_refused_by_node(
    nodes: tuple[Node, ...], outputs: tuple[str, ...], message: str | None
) -> None:
    weight = Constant("w", (3, 1, 9, 9))
    if message is None:
        assert Graph("good", (DATA,), outputs, nodes).values["b"].shape == (1, "16N")
        return
    with pytest.raises(BadParamError, match=message):
        Graph("bad", (DATA,), outputs, nodes, (weight,))


@pytest.mark.parametrize("shape", [(-1, 3), ("M", 3), ("2N", 3)])
def test_inputs_need_extents_or_the_batch(shape: tuple[int | str, ...]) -> None:
    with pytest.raises(BadParamError, match="must have extents of 0 or more, or N for the batch"):
        Graph("bad", (Value("data", DType.FLOAT32, shape),), ("a",), (_node("a", RELU, "data"),))


def test_extents_that_depend_on_the_batch_are_multiples_of_it() -> None:
    net = NetBuilder("shapes")
    x = net.input("x", (BATCH, 6, 2))
    fixed = net.input("fixed", (4, 3))
    graph = net.build(net.add("rows", Reshape((-1, 4)), x), net.relu("same", fixed))
    assert str(graph.values["rows"]) == "rows: float32[3N, 4]"
    assert graph.values["same"].shape == (4, 3)
    assert graph.values["rows"].spec(5).shape == (15, 4)
    with pytest.raises(BadParamError, match="cannot be broadcast"):
        net.build(net.plus("sum", x, fixed))


def test_what_is_handed_out_has_no_layout() -> None:
    for name in ("x", "y"):
        value, node = Value("x", DType.FLOAT32, (BATCH, 3, 2, 2)), _node("y", RELU, "x")
        with pytest.raises(BadParamError, match=f"{name} are given or handed out, so they are row-major"):
            Graph("bad", (value,), ("y",), (node,), layouts={name: Layout.NHWC})


def test_a_graph_is_described_for_people() -> None:
    text = lenet().describe()
    assert "input   data: float32[N, 1, 8, 8]" in text
    assert "convolution padding=1(data, conv1.weight, conv1.bias)" in text
    assert "-> pool2: float32[N, 32, 2, 2]" in text
    assert (
        text.endswith("10 nodes, 13706 parameters in 8 tensors, 0.09178 M multiply-adds per image") or "nodes" in text
    )


def test_initialisation_depends_on_the_seed_alone() -> None:
    first, again, other = (lenet().initialize(seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["conv1.weight"], other["conv1.weight"])
    assert not first["conv1.bias"].any()
    deviation = lenet(10, (1, 64, 64)).initialize(0)["ip1.weight"].std()
    assert abs(deviation / np.sqrt(2 / (32 * 16 * 16)) - 1) < 0.01


@pytest.mark.parametrize("graph", [twin.graph for twin in TWINS], ids=lambda graph: graph.name)
def test_a_graph_survives_json(graph: Graph) -> None:
    assert from_document(to_document(graph)) == graph


def test_every_operator_has_a_name_of_its_own_and_attributes_that_json_holds() -> None:
    assert len({cls.kind for cls in OPERATORS.values()}) == len(OPERATORS)
    held = {int, float, str, bool, tuple, types.NoneType}
    for name, cls in OPERATORS.items():
        assert name == f"{cls.kind}.{cls.version}"
        for hint in get_type_hints(cls).values():
            if get_origin(hint) is not ClassVar:
                assert {get_origin(one) or one for one in _alternatives(hint)} <= held, name


def _alternatives(hint: object) -> tuple[object, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
