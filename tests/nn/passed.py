"""What tests of a pass ask: what nodes a net has, what it computes, and the net without the pass."""

from __future__ import annotations

import numpy as np

from dnncore import DType, Handle
from dnncore.nn import Executor, Graph, Parameters
from dnncore.nn.model import Model
from dnncore.nn.passes import for_inference

__all__ = ["kinds", "outputs", "with_and_without"]


def kinds(model: Model) -> list[str]:
    """Of its nodes, in their order."""
    return [node.operator.kind for node in model.graph.nodes]


def outputs(handle: Handle, model: Model, images: np.ndarray) -> np.ndarray:
    """What its one output is."""
    with (
        Parameters.upload(handle, model.graph, model.weights) as parameters,
        Executor(model.graph, handle, parameters, len(images)) as executor,
    ):
        (found,) = executor.run({"data": images}).values()
        return found.copy()


def with_and_without(name: str, graph: Graph, dtype: DType = DType.FLOAT16) -> tuple[Model, Model]:
    """A net as it is run, and as it would be without the pass of this name."""
    model = Model(graph, graph.initialize(0))
    return for_inference(model, dtype), for_inference(model, dtype, without=(name,))
