"""Where versions of an operator, exporters or forms of a file differ: each agrees with onnxruntime, on every device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from onnx import NodeProto, TensorProto, helper, numpy_helper

from dnncore import Handle
from dnncore.importers.onnx import import_onnx
from dnncore.importers.onnx.limits import Budget
from dnncore.importers.onnx.tensors import DTYPES, TensorReader
from dnncore.nn.graph import BATCH
from tests.importers.onnx.nets import close, model_of, onnxruntime_run, run

node = helper.make_node
_rng = np.random.default_rng(5)


def _w(*shape: int) -> np.ndarray:
    return _rng.standard_normal(shape).astype(np.float32)


def _i(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def _as_strided() -> list[NodeProto]:
    """x by indices into all images, as PyTorch writes as_strided: the places of one image, and where each begins."""
    return [
        node("Shape", ["x"], ["s"]),
        node("Split", ["s"], ["n", "length"], axis=0),
        node("Squeeze", ["n"], ["images"]),
        node("Range", ["zero", "images", "one"], ["r"]),
        node("Mul", ["r", "length"], ["m"]),
        node("Unsqueeze", ["m", "axes"], ["first"]),
        node("Add", ["first", "places"], ["i"]),
        node("Reshape", ["x", "flat"], ["f"]),
        node("Gather", ["f", "i"], ["y"]),
    ]


_AS_STRIDED = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64), "axes": _i(1, 2, 3), "flat": _i(-1)}


class Trap(NamedTuple):
    """A small net; its input is x."""

    name: str
    nodes: Sequence[NodeProto]
    shape: Sequence[int | str]
    constants: Mapping[str, np.ndarray] = {}
    opset: int = 17


TRAPS = (
    Trap("softmax before opset 13", [node("Softmax", ["x"], ["y"], axis=1)], ("N", 3, 4), opset=11),
    Trap("softmax since opset 13", [node("Softmax", ["x"], ["y"])], ("N", 3, 4), opset=13),
    Trap("log-softmax along the batch", [node("LogSoftmax", ["x"], ["y"], axis=0)], (4, 3), opset=13),
    Trap("axes of a mean as an attribute", [node("ReduceMean", ["x"], ["y"], axes=[1, 3])], ("N", 3, 4, 5), opset=13),
    Trap(
        "axes of a mean as an operand",
        [node("ReduceMean", ["x", "a"], ["y"], keepdims=0)],
        ("N", 3, 4, 5),
        {"a": _i(2, 3)},
        18,
    ),
    Trap(
        "global pooling as a mean",
        [node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=1)],
        ("N", 3, 4, 5),
        opset=13,
    ),
    Trap(
        "squeeze and unsqueeze by attributes",
        [node("Unsqueeze", ["x"], ["u"], axes=[0, 3]), node("Squeeze", ["u"], ["y"], axes=[0])],
        ("N", 3, 4),
        opset=11,
    ),
    Trap(
        "squeeze and unsqueeze by operands",
        [node("Unsqueeze", ["x", "a"], ["u"]), node("Squeeze", ["u"], ["y"])],
        (2, 3, 4),
        {"a": _i(1, -1)},
        13,
    ),
    Trap(
        "sizes of a split as an attribute",
        [node("Split", ["x"], ["a", "b"], axis=1, split=[1, 3]), node("Concat", ["b", "a"], ["y"], axis=1)],
        ("N", 4, 2),
        opset=11,
    ),
    Trap(
        "parts of a split",
        [node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2), node("Concat", ["b", "a"], ["y"], axis=1)],
        ("N", 5, 2),
        opset=18,
    ),
    Trap(
        "slices by attributes",
        [node("Slice", ["x"], ["y"], starts=[1, -2], ends=[3, 100], axes=[1, 2])],
        ("N", 4, 3),
        opset=9,
    ),
    Trap(
        "slices by operands, with steps both ways",
        [node("Slice", ["x", "s", "e", "a", "t"], ["y"])],
        ("N", 6, 7),
        {"s": _i(0, -1), "e": _i(6, -100), "a": _i(1, 2), "t": _i(2, -2)},
    ),
    Trap("clip by attributes", [node("Clip", ["x"], ["y"], min=0.0, max=0.5)], ("N", 9), opset=9),
    Trap("clip by operands", [node("Clip", ["x", "l"], ["y"])], ("N", 9), {"l": np.array(-0.25, np.float32)}, 13),
    Trap("pads by attributes", [node("Pad", ["x"], ["y"], pads=[0, 1, 0, 2], value=2.5)], ("N", 3), opset=9),
    Trap(
        "pads by operands, some cut off",
        [node("Pad", ["x", "p"], ["y"], mode="reflect")],
        ("N", 5),
        {"p": _i(0, -1, 0, 2)},
        13,
    ),
    Trap("sum of three", [node("Sum", ["x", "x", "c"], ["y"])], ("N", 3), {"c": _w(3)}),
    Trap(
        "a matrix product with a column of biases for its rows",
        [node("Gemm", ["x", "b", "c"], ["y"], alpha=0.5, beta=2.0)],
        (4, 3),
        {"b": _w(3, 5), "c": _w(4, 1)},
    ),
    Trap(
        "a fully connected layer",
        [node("Gemm", ["x", "b", "c"], ["y"], transB=1, alpha=0.5, beta=2.0)],
        ("N", 3),
        {"b": _w(5, 3), "c": _w(1, 5)},
    ),
    Trap("a transposed matrix product", [node("Gemm", ["x", "b"], ["y"], transA=1)], (3, 4), {"b": _w(3, 2)}),
    Trap("a product of many matrices with one", [node("MatMul", ["x", "b"], ["y"])], ("N", 2, 3), {"b": _w(3, 5)}),
    Trap(
        "a product of many matrices",
        [node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]), node("MatMul", ["x", "t"], ["y"])],
        ("N", 2, 3, 4),
    ),
    Trap("a constant times many matrices", [node("MatMul", ["b", "x"], ["y"])], ("N", 3, 2), {"b": _w(4, 3)}),
    Trap("flatten as a reshape", [node("Reshape", ["x", "s"], ["y"])], ("N", 3, 4), {"s": _i(0, -1)}),
    Trap("flatten at the batch", [node("Flatten", ["x"], ["y"], axis=2)], ("N", 3, 4)),
    Trap(
        "a reshape by a shape that is computed",
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"], axis=0),
            node("Unsqueeze", ["n", "axes"], ["u"]),
            node("Concat", ["u", "rest"], ["t"], axis=0),
            node("Reshape", ["x", "t"], ["y"]),
        ],
        ("N", 6, 2),
        {"zero": np.array(0, np.int64), "axes": _i(0), "rest": _i(2, 3, 2)},
    ),
    Trap(
        "a channel shuffle with a computed shape",
        [
            node("Shape", ["x"], ["s"]),
            node("Split", ["s"], ["n", "c", "h"], axis=0),
            node("Div", ["c", "two"], ["half"]),
            node("Concat", ["n", "two", "half", "h"], ["apart"], axis=0),
            node("Reshape", ["x", "apart"], ["r"]),
            node("Transpose", ["r"], ["q"], perm=[0, 2, 1, 3]),
            node("Reshape", ["q", "s"], ["y"]),
        ],
        ("N", 6, 2),
        {"two": _i(2)},
    ),
    Trap("images counted before channels", [node("Reshape", ["x", "s"], ["y"])], ("N", 6), {"s": _i(-1, 2)}),
    Trap(
        "a folded weight",
        [
            node("ReduceMean", ["w"], ["m"], axes=[1, 2, 3]),
            node("Sub", ["w", "m"], ["c"]),
            node("Mul", ["c", "c"], ["q"]),
            node("ReduceMean", ["q"], ["v"], axes=[1, 2, 3]),
            node("Sqrt", ["v"], ["d"]),
            node("Div", ["c", "d"], ["n"]),
            node("Conv", ["x", "n"], ["y"]),
        ],
        ("N", 3, 5, 5),
        {"w": _w(4, 3, 3, 3)},
        13,
    ),
    Trap(
        "a bias in its own place",
        [node("MatMul", ["x", "b"], ["m"]), node("Add", ["c", "m"], ["y"])],
        ("N", 3),
        {"b": _w(3, 4), "c": _w(4)},
    ),
    Trap(
        "padding that is the same above",
        [node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2])],
        ("N", 2, 6, 5),
        {"w": _w(3, 2, 3, 3)},
    ),
    Trap(
        "padding that is the same below",
        [node("MaxPool", ["x"], ["y"], auto_pad="SAME_LOWER", kernel_shape=[2, 2])],
        ("N", 2, 6, 5),
    ),
    Trap(
        "asymmetric padding",
        [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])],
        ("N", 2, 8, 8),
    ),
    Trap(
        "rounding up", [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)], ("N", 2, 8, 8)
    ),
    Trap(
        "averages with padding counted",
        [node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)],
        ("N", 2, 5, 5),
    ),
    Trap(
        "averages without padding",
        [node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
        ("N", 2, 5, 5),
    ),
    Trap(
        "averages with gaps",
        [node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], dilations=[2, 2], pads=[1, 0, 1, 0])],
        ("N", 2, 6, 5),
        opset=19,
    ),
    Trap(
        "maxima with gaps",
        [node("MaxPool", ["x"], ["y"], kernel_shape=[2, 3], dilations=[2, 1], strides=[1, 2], pads=[1, 1, 1, 1])],
        ("N", 2, 6, 7),
    ),
    Trap(
        "grouped and dilated",
        [node("Conv", ["x", "w", "b"], ["y"], group=2, dilations=[2, 1], pads=[2, 1, 2, 1])],
        ("N", 4, 6, 5),
        {"w": _w(6, 2, 3, 3), "b": _w(6)},
    ),
    Trap("a convolution of lines", [node("Conv", ["x", "w"], ["y"], pads=[1, 1])], ("N", 3, 7), {"w": _w(4, 3, 3)}),
    Trap(
        "a transposed convolution",
        [
            node(
                "ConvTranspose",
                ["x", "w", "b"],
                ["y"],
                strides=[2, 2],
                pads=[1, 1, 1, 1],
                output_padding=[1, 1],
                group=2,
            )
        ],
        ("N", 4, 5, 4),
        {"w": _w(4, 3, 3, 3), "b": _w(6)},
    ),
    Trap(
        "batch normalisation",
        [node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], epsilon=1e-3)],
        ("N", 3, 4),
        {"s": _w(3), "b": _w(3), "m": _w(3), "v": np.abs(_w(3)) + 0.5},
    ),
    Trap(
        "local response normalisation",
        [node("LRN", ["x"], ["y"], size=3, alpha=0.5, beta=0.75, bias=2.0)],
        ("N", 6, 3, 3),
    ),
    Trap(
        "layer normalisation",
        [node("LayerNormalization", ["x", "s", "b"], ["y"], epsilon=1e-6)],
        ("N", 3, 8),
        {"s": _w(8), "b": _w(8)},
    ),
    Trap(
        "instance normalisation",
        [node("InstanceNormalization", ["x", "s", "b"], ["y"])],
        ("N", 3, 4, 5),
        {"s": _w(3), "b": _w(3)},
    ),
    Trap("slopes of channels", [node("PRelu", ["x", "s"], ["y"])], ("N", 3, 4, 4), {"s": _w(3, 1, 1)}),
    Trap("another hard sigmoid", [node("HardSigmoid", ["x"], ["y"], alpha=0.3, beta=0.4)], ("N", 20)),
    Trap(
        "gelu and its approximation",
        [node("Gelu", ["x"], ["g"]), node("Gelu", ["g"], ["y"], approximate="tanh")],
        ("N", 20),
        opset=20,
    ),
    Trap(
        "whole multiples of an image",
        [
            node(
                "Resize",
                ["x", "", "s"],
                ["y"],
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
        ],
        ("N", 2, 3, 4),
        {"s": np.array([1, 1, 2, 3], np.float32)},
        13,
    ),
    Trap(
        "an image to a size",
        [node("Resize", ["x", "", "", "s"], ["y"], mode="linear")],
        (2, 2, 3, 4),
        {"s": _i(2, 2, 5, 7)},
        13,
    ),
    Trap(
        "upsample",
        [node("Upsample", ["x", "s"], ["y"], mode="nearest")],
        ("N", 2, 3, 4),
        {"s": np.array([1, 1, 2, 2], np.float32)},
        9,
    ),
    Trap(
        "gathered channels",
        [node("Gather", ["x", "i"], ["y"], axis=1)],
        ("N", 4, 3),
        {"i": np.array([[3, 0], [1, 1]], np.int64)},
    ),
    Trap(
        "one channel of three", [node("Gather", ["x", "i"], ["y"], axis=1)], ("N", 3, 4), {"i": np.array(-1, np.int64)}
    ),
    Trap("a broadcast channel", [node("Expand", ["x", "s"], ["y"])], ("N", 1, 4), {"s": _i(3, 1)}),
    Trap("tiles", [node("Tile", ["x", "s"], ["y"])], ("N", 2, 3), {"s": _i(1, 2, 3)}),
    Trap(
        "a token before those of each image",
        [
            node("Shape", ["x"], ["n"], end=1),
            node("Concat", ["n", "rest"], ["s"], axis=0),
            node("Expand", ["token", "s"], ["t"]),
            node("Concat", ["t", "x"], ["y"], axis=1),
        ],
        ("N", 2, 3),
        {"token": _w(1, 1, 3), "rest": _i(1, 3)},
    ),
    Trap(
        "a mean of all images for each",
        [
            node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
            node("Shape", ["x"], ["s"]),
            node("Expand", ["m", "s"], ["e"]),
            node("Concat", ["x", "e"], ["y"], axis=1),
        ],
        ("N", 2, 3),
    ),
    *(
        Trap(name, _as_strided(), ("N", 12), {**_AS_STRIDED, "places": places})
        for name, places in (
            ("each image as it is, by indices", np.arange(12).reshape(1, 3, 1, 4)),
            ("each image turned, by indices", np.arange(12).reshape(1, 3, 2, 2).transpose(0, 2, 3, 1)),
            ("some of each image, by indices", np.array([[[[1, 2], [2, 7]]]])),
        )
    ),
    Trap(
        "constants cut out of constants",
        [
            node("ScatterND", ["c", "rows", "new"], ["d"]),
            node("GatherND", ["d", "places"], ["e"], batch_dims=1),
            node("CumSum", ["e", "one"], ["f"], exclusive=1, reverse=1),
            node("CumSum", ["f", "zero"], ["g"]),
            node("Add", ["x", "g"], ["y"]),
        ],
        ("N", 2, 3),
        {
            "c": _w(2, 2, 4),
            "rows": _i(1, 0).reshape(1, 2),
            "new": _w(1, 4),
            "one": _i(1),
            "zero": _i(0),
            "places": _rng.integers(0, 2, (2, 3, 2)),
        },
    ),
    *(
        Trap(
            f"einsum {equation}",
            [node("Einsum", ["x", "c"][: 1 + equation.count(",")], ["y"], equation=equation)],
            ("N", 2, 3, 4),
            {"c": _rng.standard_normal(shape).astype(np.float32)},
        )
        for equation, shape in (
            ("nhid, hjd -> nhij", (2, 5, 4)),
            ("nhwc,kchp->nkwp", (6, 4, 2, 5)),
            ("nhwc,w", (3,)),
            ("nhwc,pq->qnwp", (5, 2)),
            ("nhwc -> wn", (1,)),
        )
    ),
)


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name.replace(" ", "-"))
def test_it_means_what_it_meant_in_its_opset(handle: Handle, trap: Trap) -> None:
    proto = model_of(trap.nodes, {"x": trap.shape}, trap.constants, opset=trap.opset)
    model = import_onnx(proto)
    for batch in (1, 4):
        shape = [batch if extent == BATCH else int(extent) for extent in trap.shape]
        x = np.random.default_rng(batch).standard_normal(shape).astype(np.float32)
        close(run(handle, model, {"x": x}, batch), onnxruntime_run(proto, {"x": x}), 1e-5)


def test_initialisers_that_are_inputs_too_are_constants() -> None:
    proto = model_of([node("Add", ["x", "b"], ["y"])], {"x": ("N", 3), "b": (3,)}, {"b": _w(3)}, opset=9)
    proto.ir_version = 3
    assert [one.name for one in import_onnx(proto).graph.inputs] == ["x"]


def test_broadcasting_before_opset_7_begins_where_an_attribute_says(handle: Handle) -> None:
    b = _w(3)
    proto = model_of([node("Mul", ["x", "b"], ["y"], broadcast=1, axis=1)], {"x": ("N", 3, 2)}, {"b": b}, opset=6)
    x = _w(2, 3, 2)
    close(run(handle, import_onnx(proto), {"x": x}, 2), {"y": x * b[:, None]}, 1e-6)


def test_whole_numbers_to_powers_lose_their_fractions_only(handle: Handle) -> None:
    proto = model_of([node("Pow", ["i", "p"], ["y"])], {"i": ("N", 4), "p": ("N", 4)})
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT32
    feeds = {"i": np.array([[3, 10, 2, -7]], np.int32), "p": np.array([[6, 0.5, -1, 3]], np.float32)}
    found = run(handle, import_onnx(proto), feeds, 1)["y"]
    assert found.dtype == np.int32
    assert found.tolist() == [[729, 3, 0, -343]]


@pytest.mark.parametrize("to", [TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.BOOL])
def test_a_cast_cuts_off_what_does_not_fit(handle: Handle, to: int) -> None:
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
    x = 2 * _w(2, 24)
    close(run(handle, import_onnx(proto), {"x": x}, 2), onnxruntime_run(proto, {"x": x}), 0)


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin"])
def test_the_extrema_of_what_is_true_or_false(handle: Handle, kind: str) -> None:
    nodes = [node("Greater", ["x", "zero"], ["b"]), node(kind, ["b", "a"], ["m"]), node("Not", ["m"], ["y"])]
    proto = model_of(nodes, {"x": ("N", 3, 2)}, {"zero": np.zeros((), np.float32), "a": _i(1)}, opset=20)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    x = _w(6, 3, 2)
    expected = onnxruntime_run(proto, {"x": x})["y"]
    assert 0 < expected.sum() < expected.size
    assert np.array_equal(run(handle, import_onnx(proto), {"x": x}, 6)["y"], expected)


def test_a_batch_normalised_by_its_own_statistics_goes_into_the_running_ones(handle: Handle) -> None:
    """Against PyTorch, whose momentum is the share of the new, and whose running variance is that of a sample."""
    names = ("scale", "bias", "mean", "variance")
    constants = {name: np.abs(_w(3)) + 0.5 for name in names}
    made = node("BatchNormalization", ["x", *names], ["y", "m", "v"], training_mode=1, momentum=0.75)
    proto = model_of([made], {"x": ("N", 3, 2, 5)}, constants, outputs=("y", "m", "v"))
    x = _w(4, 3, 2, 5)
    scale, bias, mean, variance = (torch.tensor(constants[name]) for name in names)
    old = variance.clone()
    y = torch.nn.functional.batch_norm(torch.tensor(x), mean, variance, scale, bias, training=True, momentum=0.25)
    sample = x.size // 3
    variance = (variance - 0.75 * old) * (sample - 1) / sample + 0.75 * old
    expected = {"y": y.numpy(), "m": mean.numpy(), "v": variance.numpy()}
    close(run(handle, import_onnx(proto), {"x": x}, 4), expected, 1e-5)


def test_several_inputs_and_outputs_some_of_which_are_others_or_constant(handle: Handle) -> None:
    nodes = [
        node("Add", ["a", "b"], ["sum"]),
        node("Relu", ["sum"], ["r"]),
        node("Identity", ["r"], ["same"]),
        node("Identity", ["c"], ["fixed"]),
    ]
    proto = model_of(nodes, {"a": ("N", 3), "b": ("N", 3)}, {"c": _w(2)}, outputs=("sum", "same", "r", "fixed"))
    feeds = {"a": _w(2, 3), "b": _w(2, 3)}
    model = import_onnx(proto)
    assert model.graph.outputs == ("sum", "same", "r", "fixed")
    close(run(handle, model, feeds, 2), onnxruntime_run(proto, feeds), 1e-6)


def test_elements_in_every_field_of_the_format(handle: Handle) -> None:
    array = _w(4)
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
    x = _w(2, 4)
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


def test_functions_of_the_model_are_written_out(handle: Handle) -> None:
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
    x = _w(2, 4)
    close(run(handle, import_onnx(proto), {"x": x}, 2), onnxruntime_run(proto, {"x": x}), 1e-5)
