"""Small nets where versions of an operator, exporters or forms of a file differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from onnx import NodeProto, helper

__all__ = ["TRAPS", "Trap"]

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
            ("...c,...c->...", (1, 2, 3, 4)),
            ("...wc,...cp", (1, 2, 4, 5)),
            ("...hc,c...h->h...", (4, 1, 2, 3)),
            ("nhwc,wwc->nhw", (3, 3, 4)),
            ("nhwc,ppwpq->npq", (5, 5, 3, 5, 2)),
            ("n...c,...kk->nk...", (2, 1, 5, 5)),
            ("...->...", (1,)),
            ("nh...->...n", (1,)),
        )
    ),
)
