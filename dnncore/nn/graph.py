"""A net as a value: what it reads, the nodes that compute the rest, and the constants beside; no memory, no device. Importers make
graphs, passes rewrite them, gradients extend them, and `Executor` compiles them.

Extents may be the batch's, "N". A graph knows its shapes by asking each operator for a number of images, so shapes are ordinary
numbers wherever they are computed with, and what depends on the batch shows where the answers for two batches differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dnncore.descriptors import Layout, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.nn.initializers import Initializer, Zeros
from dnncore.nn.operator import BATCH, Extent, Operator, Spec

__all__ = ["BATCH", "FEW", "MANY", "Constant", "Extent", "Graph", "Node", "Role", "Value", "symbolic"]


class Role(Enum):
    """What may change a constant: a solver, the net itself while it is trained (running statistics), or nothing."""

    TRAINABLE = "trainable"
    BUFFER = "buffer"
    FIXED = "fixed"


class Value(NamedTuple):
    """Something that is computed, read or given. Immutable.

    Args:
        name: Unique in a graph.
        dtype: Element type.
        shape: Extents.
    """

    name: str
    dtype: DType
    shape: tuple[Extent, ...]

    def spec(self, batch: int) -> Spec:
        """Dtype and shape for so many images."""
        return Spec(self.dtype, tuple(_extent(extent, batch) for extent in self.shape))

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype.value}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that is there before anything runs; its elements are kept beside the graph. Immutable.

    Args:
        name: Unique in a graph.
        shape: Extents.
        dtype: Element type.
        role: What may change it.
        initial: What it holds before anybody has trained.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType = DType.FLOAT32
    role: Role = Role.TRAINABLE
    initial: Initializer = field(default=Zeros(), compare=False)

    @property
    def spec(self) -> Spec:
        """Dtype and shape."""
        return Spec(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of a graph. Immutable.

    Args:
        name: Unique among the nodes; what messages call it.
        operator: What is computed, its attributes included.
        inputs: Names of what it reads; None for an optional operand that is left out.
        outputs: Names of what it computes.
    """

    name: str
    operator: Operator
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """Its inputs, without those that are left out."""
        return tuple(name for name in self.inputs if name is not None)


@dataclass(frozen=True)
class Graph:
    """A directed acyclic graph of operations. Immutable.

    Args:
        name: What people call it.
        inputs: What is given at every run.
        outputs: Names of what is wanted of every run.
        nodes: Each after those that compute what it reads.
        constants: What nodes read beside that.
        layouts: How values and constants lie in memory, by name; row-major where nothing is said.
        updates: Values that take the place of constants as soon as they are computed, by the constants' names: who reads the
            constant later in the order of the nodes reads the new value.

    Raises:
        BadParamError: a name is used twice or not defined before it is read, or shapes do not fit; the message names the node.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: tuple[Constant, ...] = ()
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    updates: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.nodes or not self.outputs:
            raise BadParamError(f"net {self.name!r} has no {'outputs' if self.nodes else 'nodes'}")
        for value in self.inputs:
            if any(extent != BATCH and (isinstance(extent, str) or extent < 0) for extent in value.shape):
                raise BadParamError(
                    f"net {self.name!r}: input {value} must have extents of 0 or more, or {BATCH} for the batch"
                )
        self._check_names()
        values = self.values  # which infers all shapes
        if bound := self.layouts.keys() & {*self.outputs, *(value.name for value in self.inputs)}:
            raise BadParamError(
                f"net {self.name!r}: {', '.join(sorted(bound))} are given or handed out, so they are row-major"
            )
        for name, new in self.updates.items():
            if name not in self.constant or new not in self.producer or values[new][1:] != values[name][1:]:
                raise BadParamError(
                    f"net {self.name!r}: {new!r} cannot take the place of {name!r}: no constant, no value, or another shape"
                )

    def _check_names(self) -> None:
        known: set[str] = set()

        def define(name: str, what: str) -> None:
            if not name or name in known:
                raise BadParamError(f"net {self.name!r}: {what} {name!r} is empty or used twice")
            known.add(name)

        for value in self.inputs:
            define(value.name, "the name of the input")
        for constant in self.constants:
            define(constant.name, "the name of the constant")
        for name, count in Counter(node.name for node in self.nodes).items():
            if not name or count > 1:
                raise BadParamError(f"net {self.name!r}: node name {name!r} is empty or used twice")
        for node in self.nodes:
            for name in node.reads:
                if name not in known:
                    raise BadParamError(
                        f"net {self.name!r}: node {node.name!r} reads {name!r}, which no earlier node writes"
                    )
            for name in node.outputs:
                define(name, f"node {node.name!r}: the name of the output")
        for name in self.outputs:
            if name not in known:
                raise BadParamError(f"net {self.name!r}: output {name!r} is written by no node")

    def specs(self, batch: int) -> dict[str, Spec]:
        """Dtype and shape of everything by name, for so many images.

        Raises:
            BadParamError: they do not fit; the message names the node.
        """
        found = {value.name: value.spec(batch) for value in self.inputs}
        found |= {constant.name: constant.spec for constant in self.constants}
        for node in self.nodes:
            try:
                outputs = node.operator.infer_checked([None if name is None else found[name] for name in node.inputs])
                found.update(zip(node.outputs, outputs, strict=True))
            except (BadParamError, ValueError) as error:
                raise BadParamError(f"net {self.name!r}: node {node.name!r} ({node.operator.kind}): {error}") from error
        return found

    @cached_property
    def values(self) -> dict[str, Value]:
        """Everything there is, by name, with the batch as a symbol."""
        few, many = self.specs(FEW), self.specs(MANY)
        return {name: Value(name, spec.dtype, symbolic(name, spec, many[name])) for name, spec in few.items()}

    @cached_property
    def constant(self) -> dict[str, Constant]:
        """The constants, by name."""
        return {constant.name: constant for constant in self.constants}

    @cached_property
    def producer(self) -> dict[str, Node]:
        """The node that computes a value, by the value's name."""
        return {name: node for node in self.nodes for name in node.outputs}

    @cached_property
    def consumers(self) -> dict[str, tuple[Node, ...]]:
        """The nodes that read a value, by its name; a node is there once for each time that it reads it."""
        found: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in self.nodes:
            for name in node.reads:
                found[name].append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    def is_only_read_by(self, name: str, node: Node) -> bool:
        """Whether nothing else would notice if a value were never written: one reader, and nobody outside."""
        return self.consumers[name] == (node,) and name not in self.outputs

    def rewritten(
        self,
        nodes: Iterable[Node],
        *,
        constants: Iterable[Constant] | None = None,
        outputs: tuple[str, ...] | None = None,
        inputs: tuple[Value, ...] | None = None,
    ) -> Graph:
        """This graph with other nodes, without the constants that none of them reads, and the layouts of what is gone."""
        nodes = tuple(nodes)
        outputs = self.outputs if outputs is None else outputs
        read = {name for node in nodes for name in node.reads} | set(outputs)
        kept = tuple(one for one in (self.constants if constants is None else constants) if one.name in read)
        left = read.union(*(node.outputs for node in nodes))
        layouts = {name: layout for name, layout in self.layouts.items() if name in left}
        inputs = self.inputs if inputs is None else inputs
        return replace(self, nodes=nodes, constants=kept, outputs=outputs, inputs=inputs, layouts=layouts)

    def without_unused(self) -> Graph:
        """This graph without the nodes and constants on which neither an output nor an update depends."""
        needed = {*self.outputs, *self.updates.values()}
        for node in reversed(self.nodes):
            if needed.intersection(node.outputs):
                needed.update(node.reads)
        return self.rewritten(node for node in self.nodes if needed.intersection(node.outputs))

    def descriptor(self, name: str, spec: Spec) -> TensorDescriptor:
        """How a value of known extents lies in memory of its own."""
        return spec.descriptor(self.layouts.get(name, Layout.NCHW))

    def free_name(self, wanted: str, taken: Iterable[str] = ()) -> str:
        """A name that nothing in the graph has, as near as possible to what is wanted."""
        used = self.values.keys() | {node.name for node in self.nodes} | set(taken)
        if wanted not in used:
            return wanted
        return next(name for number in range(2, len(used) + 3) if (name := f"{wanted}.{number}") not in used)

    def macs(self, batch: int = 1) -> int:
        """Multiply-adds of convolutions and matrix products, for so many images."""
        specs = self.specs(batch)
        return sum(
            node.operator.macs(
                [None if name is None else specs[name] for name in node.inputs], [specs[name] for name in node.outputs]
            )
            for node in self.nodes
        )

    def initialize(self, seed: int) -> dict[str, np.ndarray]:
        """Fresh constants by name, in the order in which they are listed; equal seeds give equal bits."""
        generator = np.random.default_rng(seed)
        return {
            constant.name: constant.initial.fill(generator, constant.shape).astype(constant.dtype.numpy, copy=False)
            for constant in self.constants
        }

    def describe(self) -> str:
        """A table to read: a line for each node with what it computes, reads and gives."""
        lines = [f"net {self.name}", *(f"  input   {value}" for value in self.inputs)]
        for node in self.nodes:
            reads = ", ".join("-" if name is None else name for name in node.inputs)
            lines += [f"  {node.operator}({reads})", *(f"      -> {self.values[name]}" for name in node.outputs)]
        parameters = sum(constant.spec.size for constant in self.constants)
        tensors, macs = len(self.constants), self.macs() / 1e6
        lines += [f"  output  {self.values[name]}" for name in self.outputs]
        nodes = f"{len(self.nodes)} nodes, {parameters} parameters in {tensors} tensors"
        lines.append(f"  {nodes}, {macs:.4g} M multiply-adds per image")
        return "\n".join(lines)


FEW, MANY = 2, 3
"""Two numbers of images, of which one is no multiple of the other: extents that differ for them are the batch's."""


def symbolic(name: str, few: Spec, many: Spec) -> tuple[Extent, ...]:
    """The extents of a value, from what they are for `FEW` images and for `MANY`.

    Raises:
        BadParamError: one of them depends on the batch and is no multiple of it.
    """
    return tuple(map(_symbolic, few.shape, many.shape, [name] * len(few.shape)))


def _extent(extent: Extent, batch: int) -> int:
    """The number of an extent for so many images."""
    return extent if isinstance(extent, int) else int(extent.removesuffix(BATCH) or 1) * batch


def _symbolic(few: int, many: int, name: str) -> Extent:
    if few == many:
        return few
    if few * MANY != many * FEW:
        raise BadParamError(f"value {name!r} has an extent {few} for {FEW} images and {many} for {MANY}: no multiple")
    multiple = few // FEW
    return BATCH if multiple == 1 else f"{multiple}{BATCH}"
