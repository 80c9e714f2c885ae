"""Files are not trusted: all that is in the way is said at once, by name, and nothing a file holds does more than be refused."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from dnncore.errors import ModelImportError
from dnncore.importers.onnx import Limits, import_onnx
from dnncore.importers.onnx.folding import FOLDS
from dnncore.importers.onnx.rules import RULES
from dnncore.importers.onnx.versions import NEWEST_VERSION
from tests.importers.fuzz.targets import onnx_files
from tests.importers.onnx.nets import model_of

node = helper.make_node
_ONE = np.ones(1, np.float32)


def test_every_operator_says_which_version_it_was_compared_with() -> None:
    assert RULES.keys() | FOLDS.keys() == NEWEST_VERSION.keys()
    for kind, version in NEWEST_VERSION.items():
        assert version in {one.since_version for one in onnx.defs.get_all_schemas_with_history() if one.name == kind}, (
            kind
        )


def test_all_that_is_in_the_way_is_listed_by_name() -> None:
    nodes = [
        node("Relu", ["x"], ["r"], name="fine"),
        node("NonZero", ["r"], ["n"], name="unknown"),
        node("Range", ["r", "r", "r"], ["e"], name="constant-only"),
        node("ConstantOfShape", ["e"], ["s"], name="behind-it"),
        node("LSTM", ["r", "r", "r"], ["l"], name="recurrent"),
        node("Fancy", ["r"], ["f"], name="foreign", domain="com.example"),
        node("AveragePool", ["r"], ["a"], name="malformed", kernel_shape=[2, 2]),
        node("Relu", ["nowhere"], ["m"], name="dangling"),
        node("Relu", ["x"], ["unread"], name="unused", axis=3),
        node("Relu", ["x"], ["o"], name="odd", strangeness=1),
    ]
    outputs = ("n", "s", "l", "f", "a", "m", "o", "never")
    proto = model_of(nodes, {"x": ("N", 3), "z": ("N", "height")}, outputs=outputs)
    with pytest.raises(ModelImportError) as caught:
        import_onnx(proto)
    constant = "this operator is supported only where its operands are constant"
    assert caught.value.problems == (
        "input 'z': dimension 1 (height) is left open; give it, as shapes={'z': ('N', ...)}",
        "node 'unknown' (NonZero, opset 17): this operator is not supported",
        f"node 'constant-only' (Range, opset 17): {constant}",
        f"node 'behind-it' (ConstantOfShape, opset 17): {constant}",
        "node 'recurrent' (LSTM, opset 17): this operator is not supported",
        "node 'foreign' (com.example.Fancy, opset 17): operators of domain 'com.example' are not supported",
        "node 'malformed' (AveragePool, opset 17): float32[2, 3] has no spatial dimensions",
        "node 'dangling' (Relu, opset 17): it reads 'nowhere', which nothing before it writes",
        "node 'odd' (Relu, opset 17): attribute 'strangeness' is not supported",
        "output 'never' is written by no node",
    )
    assert str(caught.value).startswith("model 'net': 10 problems\n  input 'z'")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: m.opset_import[0].CopyFrom(helper.make_opsetid("", 5)),
            "its version of opset 1 is not supported",
        ),
        (lambda m: m.opset_import[0].CopyFrom(helper.make_opsetid("", 999)), "opset 999 is unknown"),
        (lambda m: m.graph.output.pop(), "it has no outputs"),
        (lambda m: m.graph.node.append(node("Relu", ["x"], ["y"])), "its output 'y' is written twice"),
        (lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"), "the file states no shape; give it"),
        (lambda m: m.graph.input[0].type.Clear(), "only tensors are supported"),
        (
            lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", TensorProto.STRING),
            "STRING is not supported",
        ),
        (
            lambda m: setattr(m.graph.initializer[0], "raw_data", b"abc"),
            "tensor 'c': 3 B of data, the extents .* need 4 B",
        ),
        (
            lambda m: m.graph.initializer[0].dims.append(1 << 40),
            r"tensor 'c': extents \[1, .*\] take .* B, and .* B are left",
        ),
        (lambda m: m.graph.initializer[0].dims.append(-1), "extents .* must not be negative"),
        (lambda m: m.graph.initializer[0].dims.extend([1] * 100), "101 dimensions are too many"),
        (lambda m: m.graph.node[0].CopyFrom(_wide_average()), "B are left for what is folded"),
        (lambda m: setattr(m.graph.initializer[0], "data_type", 77), "element type 77 is not supported"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_the_reason(change: Any, message: str) -> None:
    proto = model_of([node("Add", ["x", "c"], ["y"])], {"x": ("N", 3, 4)}, {"c": _ONE}, opset=19)
    change(proto)
    with pytest.raises(ModelImportError, match=message):
        import_onnx(proto)


def test_what_is_said_of_an_array_is_short_however_large_it_is() -> None:
    nodes = [
        node("Shape", ["x"], ["n"], end=1),
        node("Concat", ["many", "n"], ["s"], axis=0),
        node("Expand", ["c", "s"], ["e"], name="behind"),
        node("Conv", ["x", "e"], ["y"], name="reads"),
        node("Pad", ["x", "pads"], ["z"], name="list"),
    ]
    constants: dict[str, np.ndarray] = {"c": _ONE, "many": np.array([100, 100], np.int64), "pads": np.arange(5000)}
    with pytest.raises(ModelImportError) as caught:
        import_onnx(model_of(nodes, {"x": ("N", 1, 4)}, constants, outputs=("y", "z")))
    reads, pads = caught.value.problems
    assert reads.endswith("'e' depends on the batch: float32[100, 100, 2] for 2 images, [100, 100, 3] for 3")
    assert pads.startswith("node 'list' (Pad, opset 17): pads (0, 1, 2, 3,")
    assert len(pads) < 1100


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (node("ScatterND", ["c", "i", "c"], ["y"], reduction="add"), "reduction 'add' is not supported"),
        (node("ScatterND", ["c", "i", "i"], ["y"]), r"indices \[3, 1\] and updates \[3, 1\] do not fit \[3\]"),
        (node("GatherND", ["c", "i"], ["y"], batch_dims=1), r"indices \[3, 1\] and batch_dims 1 do not fit \[3\]"),
        (node("GatherND", ["c", "i"], ["y"]), "IndexError: index 7 is out of bounds"),
        (node("CumSum", ["c", "i"], ["y"]), "is malformed: ValueError"),
        (node("Einsum", ["x"], ["y"], equation="nii->ni"), r"does not fit float32\[2, 4, 5\]"),
        (node("Einsum", ["x", "x"], ["y"], equation="nij,nkj->iin"), "makes no sense"),
        (node("Einsum", ["x"], ["y"], equation="i.j.k->ijk"), "makes no sense"),
        (node("Einsum", ["x"], ["y"], equation="...i...->i"), "makes no sense"),
        (node("Einsum", ["x"], ["y"], equation="nij->...n"), "makes no sense"),
        (node("Einsum", ["x"], ["y"], equation="...nijk->..."), r"does not fit float32\[2, 4, 5\]"),
        (node("Einsum", ["x", "c"], ["y"], equation="...j,...->..."), r"does not fit float32\[2, 4, 5\], float32\[3\]"),
        (node("Einsum", ["x"], ["y"], equation="...i->i"), "leaves out of its result what the ellipsis stands for"),
        (node("Einsum", ["x", "x"], ["y"], equation="...ij,...ji->..."), r"does not fit float32\[2, 4, 5\], float32"),
        (node("Einsum", ["x", "x", "x"], ["y"], equation="i,i,i->i"), "of one or two operands"),
        (node("Einsum", ["x", "c"], ["y"], equation="nij,i->nj"), r"does not fit float32\[2, 4, 5\], float32\[3\]"),
        (node("Einsum", ["x"], ["y"], equation="nij,i->nj"), "is of 2 operands, there are 1"),
        (node("Einsum", ["x"], ["y"], equation="nij->k"), "makes no sense"),
    ],
)
def test_places_and_letters_that_do_not_fit_are_refused(made: onnx.NodeProto, message: str) -> None:
    proto = model_of(
        [made], {"x": ("N", 4, 5)}, {"c": np.ones(3, np.float32), "i": np.array([[0], [7], [1]])}, opset=18
    )
    with pytest.raises(ModelImportError, match=message):
        import_onnx(proto)


def test_the_diagonal_of_batch_by_batch_is_refused() -> None:
    products = [node("Transpose", ["x"], ["t"]), node("MatMul", ["x", "t"], ["d"])]
    proto = model_of([*products, node("Einsum", ["d"], ["y"], equation="bb->b")], {"x": ("N", 4)}, {})
    with pytest.raises(ModelImportError, match="'b' twice in 'bb': its extent depends on the batch"):
        import_onnx(proto)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([[0, 4], [6, 11]], r"indices \[2, 2\] into float32\[12\] are not the same places of each image"),
        ([[0, 6], [6, 12], [12, 18]], r"indices \[3, 2\] into float32\[12\] are not the same places of each image"),
    ],
)
def test_indices_that_mix_images_are_refused(places: list[list[int]], message: str) -> None:
    nodes = [node("Reshape", ["x", "flat"], ["f"]), node("Gather", ["f", "i"], ["y"])]
    constants = {"flat": np.array([-1]), "i": np.array(places)}
    with pytest.raises(ModelImportError, match=message):
        import_onnx(model_of(nodes, {"x": ("N", 6)}, constants))


def test_a_constant_that_differs_from_image_to_image_is_refused() -> None:
    nodes = [
        node("Shape", ["x"], ["n"], end=1),
        node("Squeeze", ["n"], ["images"]),
        node("Range", ["zero", "images", "one"], ["numbers"]),
        node("Cast", ["numbers"], ["c"], to=TensorProto.FLOAT),
        node("Add", ["x", "c"], ["y"]),
    ]
    constants = {"zero": np.array(0), "one": np.array(1)}
    with pytest.raises(ModelImportError, match=r"'c' depends on the batch: float32\[2\] for 2 images, \[3\] for 3"):
        import_onnx(model_of(nodes, {"x": ("N",)}, constants))


def _wide_average() -> onnx.NodeProto:
    """A window whose weights would be large."""
    return node("AveragePool", ["x"], ["y"], kernel_shape=[1 << 32], dilations=[2], pads=[1 << 33, 1 << 33])


_DOUBLING = [
    node("ConstantOfShape", ["t"], ["d0"]),
    *(node("Concat", [f"d{i}"] * 2, [f"d{i + 1}"], axis=0) for i in range(40)),
    node("Identity", ["d40"], ["y"]),
]


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ConstantOfShape", ["s"], ["y"])],
        [node("Range", ["zero", "large", "one"], ["y"])],
        [node("Expand", ["one", "s"], ["y"])],
        [node("ConstantOfShape", ["t"], ["a"]), node("Tile", ["a", "n"], ["y"])],
        [node("ConstantOfShape", ["t"], ["a"]), node("Transpose", ["r"], ["b"]), node("Add", ["r", "b"], ["y"])],
        _DOUBLING,
    ],
    ids=["constant", "range", "expand", "tile", "outer-sum", "doubling"],
)  # fmt: skip
def test_what_is_folded_is_bounded_before_it_is_allocated(nodes: list[onnx.NodeProto]) -> None:
    constants: dict[str, np.ndarray] = {
        "s": np.array([1 << 20, 1 << 20], np.int64),
        "t": np.array([1 << 10], np.int64),
        "n": np.array([1 << 30], np.int64),
        "r": np.ones((1, 1 << 14), np.float32),
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "large": np.array(1 << 50, np.int64),
    }
    with pytest.raises(ModelImportError, match="B are left for what is folded"):
        import_onnx(model_of(nodes, {"x": (1,)}, constants), limits=Limits(tensor_bytes=1 << 26))


def test_functions_that_multiply_or_call_themselves_end() -> None:
    own = [helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function(
            "own", f"F{i}", ["v"], ["w"], [node(f"F{i + 1}", ["v"], [name], domain="own") for name in ("u", "w")], own
        )
        for i in range(30)
    ]  # fmt: skip
    proto = model_of([node("F0", ["x"], ["y"], domain="own")], {"x": ("N", 3)}, functions=functions)
    with pytest.raises(ModelImportError, match="has more than 1000 nodes"):
        import_onnx(proto, limits=Limits(nodes=1000))
    itself = helper.make_function(
        "own", "F0", ["v"], ["w"], [node("F0", ["v"], ["w"], domain="own")], [helper.make_opsetid("own", 1)]
    )
    with pytest.raises(ModelImportError, match="more than 32 deep"):
        import_onnx(model_of([node("F0", ["x"], ["y"], domain="own")], {"x": ("N", 3)}, functions=[itself]))


def _external(folder: Path, location: str, **entries: str) -> Path:
    proto = model_of([node("Add", ["x", "c"], ["y"])], {"x": ("N", 3)})
    tensor = TensorProto(name="c", dims=[3], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    proto.graph.initializer.append(tensor)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_data_beside_the_model_is_read(tmp_path: Path) -> None:
    data = np.arange(8, dtype=np.float32)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "w.data").write_bytes(data.tobytes())
    model = import_onnx(_external(tmp_path, "inner/w.data", offset="8", length="12"))
    assert np.array_equal(model.weights["c"], data[2:5])
    with pytest.raises(ModelImportError, match="import the model by its path"):
        import_onnx((tmp_path / "model.onnx").read_bytes())


@pytest.mark.parametrize(
    ("location", "entries", "message"),
    [
        ("../secret", {}, "outside the model's folder"),
        ("/etc/passwd", {}, "outside the model's folder"),
        ("link", {}, "outside the model's folder"),
        ("in/../../secret", {}, "outside the model's folder"),
        ("C:secret", {}, "outside the model's folder"),
        ("nul\0", {}, "outside the model's folder"),
        ("", {}, "outside the model's folder"),
        (".", {}, "outside the model's folder"),
        ("pipe", {}, "not beside the model"),
        ("missing", {}, "'missing', which is not beside the model"),
        ("short", {}, "'short' ends before byte 12"),
        ("short", {"offset": "-4"}, "offset '-4'"),
        ("short", {"offset": "9" * 18}, "ends before byte|cannot be read"),
        ("short", {"length": "8"}, "'short' holds 8 B of it, the extents need 12 B"),
    ],
)
def test_data_is_not_read_from_elsewhere(tmp_path: Path, location: str, entries: dict[str, str], message: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(12))
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "short").write_bytes(bytes(8))
    os.mkfifo(folder / "pipe")
    with pytest.raises(ModelImportError, match=message):
        import_onnx(_external(folder, location, **entries))


def test_a_path_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelImportError, match=r"nothing.onnx: there is no such file"):
        import_onnx(tmp_path / "nothing.onnx")
    (tmp_path / "large.onnx").write_bytes(bytes(100))
    with pytest.raises(ModelImportError, match="has more than 10 B"):
        import_onnx(tmp_path / "large.onnx", limits=Limits(file_bytes=10))
    with pytest.raises(ModelImportError, match="truncated or no ONNX model"):
        import_onnx(tmp_path / "large.onnx")


def test_a_message_that_was_changed_at_random_is_a_model_or_refused() -> None:
    """Numbers of the message are exchanged, which keeps it well formed."""
    proto = ModelProto.FromString(onnx_files()[0])
    rng = np.random.default_rng(0)
    odd = [-(1 << 63), -1, 0, 1, 2, 3, 1 << 31, (1 << 63) - 1]
    for _ in range(400):
        changed = ModelProto()
        changed.CopyFrom(proto)
        one = changed.graph.node[rng.integers(len(changed.graph.node))]
        if rng.integers(2) and one.attribute:
            attribute = one.attribute[rng.integers(len(one.attribute))]
            attribute.i = odd[rng.integers(len(odd))]
            if attribute.ints:
                attribute.ints[int(rng.integers(len(attribute.ints)))] = odd[rng.integers(len(odd))]
        else:
            tensor = changed.graph.initializer[rng.integers(len(changed.graph.initializer))]
            if tensor.data_type == TensorProto.INT64:
                tensor.CopyFrom(numpy_helper.from_array(np.array([odd[rng.integers(len(odd))]]), tensor.name))
            else:
                one.input[int(rng.integers(len(one.input)))] = tensor.name
        with contextlib.suppress(ModelImportError):
            import_onnx(changed, limits=Limits(tensor_bytes=1 << 24))
