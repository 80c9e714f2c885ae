"""A net: nodes joined by the names of the blobs they read and write; structure only, no memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.nn.layer import Layer, ParameterSpec, Shape
from dnncore.nn.layers import Softmax
from dnncore.nn.parameters import Parameters

__all__ = ["Net", "Node"]


@dataclass(frozen=True)
class Node:
    """A layer in a net; its output blob has the node's name. Immutable.

    Args:
        name: Unique in the net.
        layer: What it computes.
        inputs: Names of the blobs that it reads.
    """

    name: str
    layer: Layer
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Net:
    """A directed acyclic graph with one input and one output, the last node's. Immutable.

    Args:
        name: What people call it.
        input_shape: Of one sample, [C, H, W].
        nodes: Each after those that it reads.
        input_name: Name of the input's blob.

    Raises:
        BadParamError: a name is used twice or not defined before it is read, or shapes do not fit; the message names the node.
    """

    name: str
    input_shape: Shape
    nodes: tuple[Node, ...]
    input_name: str = "data"

    def __post_init__(self) -> None:
        if not self.nodes:
            raise BadParamError(f"net {self.name!r} has no nodes")
        if not self.input_shape or min(self.input_shape) < 1:
            raise BadParamError(f"net {self.name!r}: input shape {list(self.input_shape)} must be of positive extents")
        shapes = self.blob_shapes()
        if len(shapes[self.output_name]) < 1:
            raise BadParamError(f"net {self.name!r}: the output {self.output_name!r} has no extents")

    @property
    def output_name(self) -> str:
        """Name of the last node."""
        return self.nodes[-1].name

    @property
    def output_shape(self) -> Shape:
        """Of one sample."""
        return self.blob_shapes()[self.output_name]

    @property
    def ends_in_probabilities(self) -> bool:
        """Whether the last node is a softmax."""
        return isinstance(self.nodes[-1].layer, Softmax)

    def with_probabilities(self) -> Net:
        """This net with a softmax behind it, or itself where it ends in one."""
        if self.ends_in_probabilities:
            return self
        softmax = Node("probabilities", Softmax(), (self.output_name,))
        return Net(self.name, self.input_shape, (*self.nodes, softmax), self.input_name)

    def blob_shapes(self) -> dict[str, Shape]:
        """Shape of every blob for one sample, by name."""
        shapes: dict[str, Shape] = {self.input_name: tuple(self.input_shape)}
        for node in self.nodes:
            if not node.name or node.name in shapes:
                raise BadParamError(f"net {self.name!r}: node name {node.name!r} is empty or used twice")
            missing = [name for name in node.inputs if name not in shapes]
            if missing:
                raise BadParamError(
                    f"net {self.name!r}: node {node.name!r} reads {missing[0]!r}, which no earlier node writes"
                )
            inputs = [shapes[name] for name in node.inputs]
            try:
                node.layer.check_num_inputs(inputs)
                shapes[node.name] = node.layer.output_shape(inputs)
            except BadParamError as error:
                raise BadParamError(f"net {self.name!r}: node {node.name!r}: {error}") from error
        return shapes

    def parameter_specs(self) -> dict[str, ParameterSpec]:
        """Every learnable tensor by its full name, "node.weight", in the order of the nodes."""
        shapes = self.blob_shapes()
        return {
            f"{node.name}.{short}": spec
            for node in self.nodes
            for short, spec in node.layer.parameters([shapes[name] for name in node.inputs]).items()
        }

    def initialize(self, seed: int) -> dict[str, np.ndarray]:
        """Fresh float32 parameters: weights normal with variance 2 / fan_in, biases zero; equal seeds give equal bits."""
        generator = np.random.default_rng(seed)
        return {
            name: (
                (generator.standard_normal(spec.shape) * np.sqrt(2 / spec.fan_in)).astype(np.float32)
                if spec.fan_in
                else np.zeros(spec.shape, np.float32)
            )
            for name, spec in self.parameter_specs().items()
        }

    def upload(self, handle: Handle, weights: Mapping[str, np.ndarray]) -> Parameters:
        """Copy parameters to a device, once for all executors of a handle.

        Raises:
            BadParamError: a tensor is missing, unknown or has another shape; the message names it.
        """
        return Parameters.upload(handle, self.parameter_specs(), weights)
