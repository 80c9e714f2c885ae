"""A net of several inputs and outputs, of different element types and numbers of dimensions, as an ONNX file and in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dnncore.importers.onnx import import_onnx
from dnncore.nn import Package

INPUTS = {
    "left": (TensorProto.FLOAT, ("N", 2, 3)),
    "half": (TensorProto.FLOAT16, ("N", 3)),
    "count": (TensorProto.INT32, ("N",)),
    "byte": (TensorProto.UINT8, ("N", 3)),
    "mask": (TensorProto.BOOL, ("N", 3)),
}
OUTPUTS = {
    "sums": (TensorProto.FLOAT, ("N", 3)),
    "chosen": (TensorProto.FLOAT16, ("N", 3)),
    "twice": (TensorProto.INT32, ("N",)),
    "above": (TensorProto.BOOL, ("N", 2, 3)),
}


def write_mixed(path: Path) -> Path:
    """The net as a file."""
    node = helper.make_node
    nodes = [
        node("ReduceSum", ["left", "axes"], ["over"], keepdims=0),
        node("Cast", ["byte"], ["bytes"], to=TensorProto.FLOAT),
        node("Add", ["over", "bytes"], ["sums"]),
        node("Neg", ["half"], ["negative"]),
        node("Where", ["mask", "half", "negative"], ["chosen"]),
        node("Add", ["count", "count"], ["twice"]),
        node("Greater", ["left", "zero"], ["above"]),
    ]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, *one) for name, one in tensors.items()] for tensors in (INPUTS, OUTPUTS)
    )
    constants = {"axes": np.array([1]), "zero": np.array(0, np.float32)}
    graph = helper.make_graph(
        nodes, "mixed", inputs, outputs, [numpy_helper.from_array(array, name) for name, array in constants.items()]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def save_mixed(folder: Path, package: Path) -> None:
    """The net as a package of the repository."""
    model = import_onnx(write_mixed(folder / "mixed.onnx"))
    Package("mixed", model.graph, model.weights, None, None).save(package)


def rows_of_mixed(seed: int, rows: int) -> dict[str, np.ndarray]:
    """Inputs."""
    made = np.random.default_rng(seed)
    return {
        "left": made.integers(-9, 9, (rows, 2, 3)).astype(np.float32),
        "half": made.integers(1, 99, (rows, 3)).astype(np.float16),
        "count": made.integers(-(2**30), 2**30, rows).astype(np.int32),
        "byte": made.integers(0, 256, (rows, 3)).astype(np.uint8),
        "mask": made.integers(0, 2, (rows, 3)).astype(np.bool_),
    }


def mixed(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs."""
    left, half = inputs["left"], inputs["half"]
    return {
        "sums": left.sum(axis=1) + inputs["byte"].astype(np.float32),
        "chosen": np.where(inputs["mask"], half, -half),
        "twice": 2 * inputs["count"],
        "above": left > 0,
    }
