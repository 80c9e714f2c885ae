"""Nets written in Python: each call adds a layer behind what it is given, with its constants, and gives its name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dnncore.dtypes import DType
from dnncore.nn.graph import Constant, Extent, Graph, Node, Role, Value
from dnncore.nn.initializers import Averages, Filled, Initializer, Zeros, he_normal
from dnncore.nn.operator import Operator, Spec
from dnncore.nn.operators import (
    Activation,
    BatchNorm,
    Binary,
    Concat,
    Convolution,
    Dropout,
    Flatten,
    GlobalPooling,
    InnerProduct,
    LocalResponseNorm,
    Pooling,
    Reshape,
    Softmax,
)
from dnncore.nn.operators.convolution import Extents, Padding

__all__ = ["NetBuilder"]


class NetBuilder:
    """A graph while it is put together. Names are those of nodes; constants are "node.weight", "node.bias".

    Args:
        name: What people call the net.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._constants: list[Constant] = []
        self._specs: dict[str, Spec] = {}

    def input(self, name: str, shape: Sequence[Extent], dtype: DType = DType.FLOAT32) -> str:
        """What is given at every run; "N" for the batch."""
        value = Value(name, dtype, tuple(shape))
        self._inputs.append(value)
        self._specs[name] = value.spec(1)
        return name

    def constant(
        self,
        name: str,
        shape: Sequence[int],
        initial: Initializer = Zeros(),  # noqa: B008 (frozen)
        role: Role = Role.TRAINABLE,
        dtype: DType = DType.FLOAT32,
    ) -> str:
        """What is there before anything runs."""
        constant = Constant(name, tuple(shape), dtype, role, initial)
        self._constants.append(constant)
        self._specs[name] = constant.spec
        return name

    def add(self, name: str, operator: Operator, *inputs: str | None) -> str:
        """A node with one output, which has its name.

        Raises:
            BadParamError: the inputs do not fit; the graph names the node when it is built.
        """
        self._nodes.append(Node(name, operator, inputs, (name,)))
        self._specs[name] = operator.infer_checked([None if one is None else self._specs[one] for one in inputs])[0]
        return name

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a value, for one image."""
        return self._specs[name].shape

    def build(self, *outputs: str) -> Graph:
        """The graph.

        Raises:
            BadParamError: it makes no sense; the message names the node.
        """
        return Graph(self._name, tuple(self._inputs), outputs, tuple(self._nodes), tuple(self._constants))

    # Layers, in the order of their names.

    def adaptive_average_pooling(self, name: str, x: str, extents: tuple[int, int]) -> str:
        """As many windows as wanted along both dimensions of [N, C, H, W], each averaged.

        Windows of equal extents are a pooling, of one place each nothing at all. Others are a product with a matrix that nothing
        changes, "matrix".
        """
        channels, *source = self.shape(x)[1:]
        if tuple(source) == extents:
            return x
        if all(have % want == 0 for have, want in zip(source, extents, strict=True)):
            window = tuple(have // want for have, want in zip(source, extents, strict=True))
            return self.pooling(name, x, "average_exclude_padding", window)
        shape, initial = (math.prod(extents), math.prod(source)), Averages((source[0], source[1]), extents)
        places = self.add(f"{name}.places", Reshape((-1, math.prod(source))), x)
        matrix = self.constant(f"{name}.matrix", shape, initial, Role.FIXED)
        windows = self.add(f"{name}.windows", InnerProduct(), places, matrix)
        return self.add(name, Reshape((-1, channels, *extents)), windows)

    def plus(self, name: str, a: str, b: str) -> str:
        """a + b."""
        return self.add(name, Binary("add"), a, b)

    def activation(self, name: str, x: str, mode: str, coefficient: float = 0.0) -> str:
        """A mode of `ActivationMode`."""
        return self.add(name, Activation(mode, coefficient), x)

    def batch_norm(self, name: str, x: str, epsilon: float = 1e-5) -> str:
        """Batch normalisation: "scale" and "bias" are trained, "mean" and "variance" are running statistics."""
        channels = self.shape(x)[1:2]
        return self.add(
            name,
            BatchNorm(epsilon),
            x,
            self.constant(f"{name}.scale", channels, Filled(1.0)),
            self.constant(f"{name}.bias", channels),
            self.constant(f"{name}.mean", channels, role=Role.BUFFER),
            self.constant(f"{name}.variance", channels, Filled(1.0), Role.BUFFER),
        )

    def concat(self, name: str, *parts: str, axis: int = 1) -> str:
        """The parts, one behind the other."""
        return self.add(name, Concat(axis), *parts)

    def convolution(
        self,
        name: str,
        x: str,
        num_output: int,
        kernel: Extents,
        *,
        stride: Extents = 1,
        padding: Padding = 0,
        dilation: Extents = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> str:
        """Convolution with `num_output` filters: "weight" [K, C/G, *kernel], "bias" [K]."""
        shape = self.shape(x)
        extents = (kernel,) * (len(shape) - 2) if isinstance(kernel, int) else tuple(kernel)
        weight = (num_output, shape[1] // max(groups, 1), *extents)
        parameters = [self.constant(f"{name}.weight", weight, he_normal(max(math.prod(weight[1:]), 1)))]
        if bias:
            parameters.append(self.constant(f"{name}.bias", (num_output,)))
        return self.add(name, Convolution(stride, padding, dilation, groups), x, *parameters)

    def dropout(self, name: str, x: str, probability: float = 0.5) -> str:
        """Dropout: x itself, but for training."""
        return self.add(name, Dropout(probability), x)

    def flatten(self, name: str, x: str) -> str:
        """[N, ...] as [N, C]."""
        return self.add(name, Flatten(), x)

    def global_pooling(self, name: str, x: str, mode: str = "average") -> str:
        """One window over all places."""
        return self.add(name, GlobalPooling(mode), x)

    def inner_product(self, name: str, x: str, num_output: int, *, bias: bool = True) -> str:
        """Fully connected: "weight" [K, C], "bias" [K]. What has more dimensions than [N, C] is flattened."""
        if len(self.shape(x)) != 2:
            x = self.flatten(f"{name}.flatten", x)
        columns = self.shape(x)[1]
        parameters = [self.constant(f"{name}.weight", (num_output, columns), he_normal(max(columns, 1)))]
        if bias:
            parameters.append(self.constant(f"{name}.bias", (num_output,)))
        return self.add(name, InnerProduct(), x, *parameters)

    def local_response_norm(self, name: str, x: str, size: int, alpha: float, beta: float, k: float = 1.0) -> str:
        """Across channels."""
        return self.add(name, LocalResponseNorm(size, alpha, beta, k), x)

    def pooling(
        self,
        name: str,
        x: str,
        mode: str,
        window: Extents,
        *,
        stride: Extents | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
    ) -> str:
        """A window: "max", "average_include_padding" or "average_exclude_padding"."""
        extents = (window,) * (len(self.shape(x)) - 2) if isinstance(window, int) else tuple(window)
        return self.add(name, Pooling(mode, extents, stride, padding, ceil_mode), x)

    def relu(self, name: str, x: str) -> str:
        """max(x, 0)."""
        return self.activation(name, x, "relu")

    def softmax(self, name: str, x: str) -> str:
        """Probabilities along the channels."""
        return self.add(name, Softmax(), x)
