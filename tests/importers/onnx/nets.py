"""ONNX models for tests: small ones written here, and running them with us and with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from dnncore import Handle
from dnncore.nn import Executor, Parameters
from dnncore.nn.model import Model

__all__ = ["close", "model_of", "onnxruntime_run", "run"]

Feeds = Mapping[str, np.ndarray]


def model_of(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    **more: Any,
) -> ModelProto:
    """A model; shapes of outputs are left out."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **more)


def run(handle: Handle, model: Model, feeds: Feeds, batch: int) -> dict[str, np.ndarray]:
    """All outputs."""
    with (
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        Executor(model.graph, handle, parameters, batch) as executor,
    ):
        return {name: array.copy() for name, array in executor.run(feeds).items()}


def onnxruntime_run(model: ModelProto | Path, feeds: Feeds) -> dict[str, np.ndarray]:
    """All outputs, by onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def close(found: Feeds, expected: Feeds, allowed: float = 1e-4) -> None:
    """Refuse a difference of more than a part of the largest element."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].shape == array.shape, name
        assert np.abs(found[name] - array).max() <= allowed * max(np.abs(array).max(), 1e-6), name
