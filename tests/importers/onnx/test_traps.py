"""Where versions of an operator, exporters or forms of a file differ: each agrees with onnxruntime, on every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper

from dnncore import Handle
from dnncore.errors import ModelImportError
from dnncore.importers.onnx import import_onnx
from dnncore.importers.onnx.importing import import_nodes
from dnncore.importers.onnx.limits import Budget, Limits
from dnncore.importers.onnx.reading import Opened
from dnncore.importers.onnx.tensors import DTYPES, TensorReader
from dnncore.importers.onnx.values import Known
from dnncore.nn.graph import BATCH
from dnncore.nn.operators import BatchNormTraining
from dnncore.nn.training import in_training
from tests.importers.onnx.nets import close, model_of, onnxruntime_run, run
from tests.importers.onnx.traps import TRAPS, Trap

node = helper.make_node
Draw = Callable[..., np.ndarray]


@pytest.fixture
def draw() -> Draw:
    """draw(*shape): arrays that do not depend on which tests were run before."""
    rng = np.random.default_rng(5)
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)


def _i(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name.replace(" ", "-"))
def test_it_means_what_it_meant_in_its_opset(handle: Handle, trap: Trap) -> None:
    proto = model_of(trap.nodes, {"x": trap.shape}, trap.constants, opset=trap.opset)
    model = import_onnx(proto)
    for batch in (1, 4):
        shape = [batch if extent == BATCH else int(extent) for extent in trap.shape]
        x = np.random.default_rng(batch).standard_normal(shape).astype(np.float32)
        close(run(handle, model, {"x": x}, batch), onnxruntime_run(proto, {"x": x}), 1e-5)


def test_initialisers_that_are_inputs_too_are_constants(draw: Draw) -> None:
    proto = model_of([node("Add", ["x", "b"], ["y"])], {"x": ("N", 3), "b": (3,)}, {"b": draw(3)}, opset=9)
    proto.ir_version = 3
    assert [one.name for one in import_onnx(proto).graph.inputs] == ["x"]


def test_broadcasting_before_opset_7_begins_where_an_attribute_says(handle: Handle, draw: Draw) -> None:
    b = draw(3)
    proto = model_of([node("Mul", ["x", "b"], ["y"], broadcast=1, axis=1)], {"x": ("N", 3, 2)}, {"b": b}, opset=6)
    x = draw(2, 3, 2)
    close(run(handle, import_onnx(proto), {"x": x}, 2), {"y": x * b[:, None]}, 1e-6)


def test_whole_numbers_to_powers_lose_their_fractions_only(handle: Handle) -> None:
    proto = model_of([node("Pow", ["i", "p"], ["y"])], {"i": ("N", 4), "p": ("N", 4)})
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT32
    feeds = {"i": np.array([[3, 10, 2, -7]], np.int32), "p": np.array([[6, 0.5, -1, 3]], np.float32)}
    found = run(handle, import_onnx(proto), feeds, 1)["y"]
    assert found.dtype == np.int32
    assert found.tolist() == [[729, 3, 0, -343]]


@pytest.mark.parametrize("to", [TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.BOOL])
def test_a_cast_cuts_off_what_does_not_fit(handle: Handle, to: int, draw: Draw) -> None:
    """Fractions, and of whole numbers upper bits; through float32 again, since onnxruntime's outputs here are of that."""

    def cast(*names: str, through: int) -> Sequence[NodeProto]:
        x, whole, narrow, y = names
        return (
            node("Cast", [x], [whole], to=through),
            node("Cast", [whole], [narrow], to=to),
            node("Cast", [narrow], [y], to=TensorProto.FLOAT),
        )

    nodes = [
        node("Mul", ["x", "hundreds"], ["many"]),
        *cast("many", "m", "low", "lower", through=TensorProto.INT32),
        node("Abs", ["x"], ["small"]),
        *cast("small", "s", "cut", "whole", through=TensorProto.FLOAT),
        *cast("x", "f", "eight", "signed", through=TensorProto.INT8),
        node("Sum", ["lower", "whole", "signed"], ["y"]),
    ]
    proto = model_of(nodes, {"x": ("N", 24)}, {"hundreds": np.array(300, np.float32)})
    x = 2 * draw(2, 24)
    close(run(handle, import_onnx(proto), {"x": x}, 2), onnxruntime_run(proto, {"x": x}), 0)


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin"])
def test_the_extrema_of_what_is_true_or_false(handle: Handle, kind: str) -> None:
    """Of all combinations of three."""
    nodes = [node("Greater", ["x", "zero"], ["b"]), node(kind, ["b", "a"], ["m"]), node("Not", ["m"], ["y"])]
    proto = model_of(nodes, {"x": ("N", 3, 2)}, {"zero": np.zeros((), np.float32), "a": _i(1)}, opset=20)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    signs = 2 * (np.arange(8).reshape(4, 1, 2) >> np.arange(3).reshape(1, 3, 1) & 1) - 1
    x = signs.astype(np.float32)
    expected = onnxruntime_run(proto, {"x": x})["y"]
    assert 0 < expected.sum() < expected.size
    assert np.array_equal(run(handle, import_onnx(proto), {"x": x}, 4)["y"], expected)


def test_a_batch_normalised_by_its_own_statistics_goes_into_the_running_ones(handle: Handle, draw: Draw) -> None:
    """Against PyTorch, whose momentum is the share of the new, and whose running variance is that of a sample."""
    names = ("scale", "bias", "mean", "variance")
    constants = {name: np.abs(draw(3)) + 0.5 for name in names}
    made = node("BatchNormalization", ["x", *names], ["y", "m", "v"], training_mode=1, momentum=0.75)
    proto = model_of([made], {"x": ("N", 3, 2, 5)}, constants, outputs=("y", "m", "v"))
    x = draw(4, 3, 2, 5)
    scale, bias, mean, variance = (torch.tensor(constants[name]) for name in names)
    old = variance.clone()
    y = torch.nn.functional.batch_norm(torch.tensor(x), mean, variance, scale, bias, training=True, momentum=0.25)
    sample = x.size // 3
    variance = (variance - 0.75 * old) * (sample - 1) / sample + 0.75 * old
    expected = {"y": y.numpy(), "m": mean.numpy(), "v": variance.numpy()}
    close(run(handle, import_onnx(proto), {"x": x}, 4), expected, 1e-5)


def test_statistics_of_a_net_that_is_trained_keep_as_much_as_the_file_says(draw: Draw) -> None:
    """In ONNX momentum is what is kept, 0.9 where nothing is said; that of an operator is what is taken."""
    constants = {name: np.abs(draw(3)) + 0.5 for name in ("scale", "bias", "mean", "variance")}
    cases: tuple[tuple[dict[str, Any], float], ...] = (({}, 0.1), ({"momentum": 0.99}, 0.01))
    for said, taken in cases:
        made = node("BatchNormalization", ["x", *constants], ["y"], **said)
        (found,) = in_training(import_onnx(model_of([made], {"x": ("N", 3, 2)}, constants)).graph).nodes
        assert found.operator == BatchNormTraining(1e-5, taken)


@pytest.mark.parametrize(
    ("spatial", "settings"),
    [
        ((5, 7), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "storage_order": 1}),
        ((6, 4), {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1], "ceil_mode": 1}),
        ((9,), {"kernel_shape": [3], "strides": [2]}),
        ((3, 4, 5), {"kernel_shape": [2, 2, 2]}),
    ],
    ids=["columns", "rows", "1d", "3d"],
)
def test_maxima_are_named_by_their_places_in_all_of_the_tensor(
    handle: Handle, spatial: tuple[int, ...], settings: dict[str, Any]
) -> None:
    """Of as many images as there are. Equal ones are drawn, of which the first counts."""
    made = node("MaxPool", ["x"], ["y", "places"], **settings)
    for channels, batch in ((1, 1), (2, 1), (3, 5)):
        proto = model_of([made], {"x": ("N", channels, *spatial)}, {}, outputs=("y", "places"), opset=12)
        proto.graph.output[1].type.tensor_type.elem_type = TensorProto.INT64
        x = np.random.default_rng(0).integers(0, 9, (batch, channels, *spatial)).astype(np.float32)
        found, expected = run(handle, import_onnx(proto), {"x": x}, batch), onnxruntime_run(proto, {"x": x})
        np.testing.assert_array_equal(found["y"], expected["y"])
        np.testing.assert_array_equal(found["places"], expected["places"])


def test_places_that_an_int32_does_not_have_are_refused() -> None:
    made = node("MaxPool", ["x"], ["y", "places"], kernel_shape=[2, 2])
    with pytest.raises(ModelImportError, match="planes of 1073741824 places: an int32 can name 0 to 2147483648"):
        import_onnx(model_of([made], {"x": ("N", 1, 1 << 15, 1 << 15)}, {}, outputs=("y", "places")))


@pytest.mark.parametrize("largest", [0, 1])
def test_the_largest_of_whole_numbers_that_are_constant(largest: int) -> None:
    x = np.random.default_rng(1).integers(-4, 4, (3, 9, 2))
    nodes = [node("TopK", ["x", "k"], ["values", "places"], axis=1, largest=largest), node("Add", ["i", "i"], ["y"])]
    proto = model_of(nodes, {"i": ("N", 1)}, {"x": x, "k": _i(5)}, outputs=("values", "places", "y"), opset=24)
    for output in proto.graph.output[:2]:
        output.type.tensor_type.elem_type = TensorProto.INT64
    found = import_nodes(Opened(proto, "case", None), {}, {}, Limits()).outputs
    expected = onnxruntime_run(proto, {"i": np.zeros((1, 1), np.float32)})
    for name in ("values", "places"):
        known = found[name]
        assert isinstance(known, Known)
        np.testing.assert_array_equal(known.fixed, expected[name])


def test_several_inputs_and_outputs_some_of_which_are_others_or_constant(handle: Handle, draw: Draw) -> None:
    nodes = [
        node("Add", ["a", "b"], ["sum"]),
        node("Relu", ["sum"], ["r"]),
        node("Identity", ["r"], ["same"]),
        node("Identity", ["c"], ["fixed"]),
    ]
    proto = model_of(nodes, {"a": ("N", 3), "b": ("N", 3)}, {"c": draw(2)}, outputs=("sum", "same", "r", "fixed"))
    feeds = {"a": draw(2, 3), "b": draw(2, 3)}
    model = import_onnx(proto)
    assert model.graph.outputs == ("sum", "same", "r", "fixed")
    close(run(handle, model, feeds, 2), onnxruntime_run(proto, feeds), 1e-6)


def test_elements_in_every_field_of_the_format(handle: Handle, draw: Draw) -> None:
    array = draw(4)
    listed = helper.make_tensor("listed", TensorProto.FLOAT, (4,), array.tolist())
    half = helper.make_tensor("half", TensorProto.FLOAT16, (4,), array.astype(np.float16).tolist())
    raw = numpy_helper.from_array(array, "raw")
    nodes = [
        node("Cast", ["half"], ["wide"], to=TensorProto.FLOAT),
        node("Add", ["x", "listed"], ["p"]),
        node("Mul", ["p", "raw"], ["q"]),
        node("Sub", ["q", "wide"], ["y"]),
    ]
    proto = model_of(nodes, {"x": ("N", 4)})
    proto.graph.initializer.extend([listed, half, raw])
    x = draw(2, 4)
    close(run(handle, import_onnx(proto), {"x": x}, 2), onnxruntime_run(proto, {"x": x}), 1e-6)


_OF_A_BYTE = [kind for kind, dtype in DTYPES.items() if dtype.itemsize == 1 and dtype.kind not in "iub"]


@pytest.mark.parametrize("kind", _OF_A_BYTE, ids=TensorProto.DataType.Name)
def test_elements_of_a_byte_or_less_are_read(kind: int) -> None:
    """Raw and listed, where several share a byte and the last byte is not full."""
    bits = np.arange(251, dtype=np.uint8)
    array = (
        bits.view(DTYPES[kind])
        if "FLOAT8" in TensorProto.DataType.Name(kind)
        else (bits % 4 - 2.0).astype(DTYPES[kind])
    )
    raw = numpy_helper.from_array(array, "raw")
    listed = TensorProto(data_type=kind, dims=array.shape, int32_data=raw.raw_data)
    read = TensorReader(Budget("tests", 1 << 20), None).read
    for tensor in (raw, listed):
        found = read(tensor)
        assert found.dtype == array.dtype
        assert np.array_equal(found.astype(np.float32), array.astype(np.float32), equal_nan=True)


def test_functions_of_the_model_are_written_out(handle: Handle, draw: Draw) -> None:
    inner = helper.make_function(
        "own", "Scaled", ["v"], ["w"], [node("Elu", ["v"], ["e"]), node("Mul", ["e", "e"], ["w"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    leaky = node("LeakyRelu", ["v"], ["l"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=1)
    outer = helper.make_function(
        "own", "Twice", ["v"], ["w"], [node("Scaled", ["v"], ["s"], domain="own"), leaky, node("Add", ["s", "l"], ["w"])],
        [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)], ["slope"],
    )  # fmt: skip
    nodes = [
        node("Twice", ["x"], ["t"], domain="own", slope=0.25),
        node("Twice", ["t"], ["y"], domain="own", slope=0.5),
    ]
    proto = model_of(nodes, {"x": ("N", 4)}, functions=[inner, outer])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    x = draw(2, 4)
    close(run(handle, import_onnx(proto), {"x": x}, 2), onnxruntime_run(proto, {"x": x}), 1e-5)
