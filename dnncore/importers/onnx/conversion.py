"""A net while it is made out of an ONNX graph: its nodes and constants, and what each name of the file stands for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, overload

import numpy as np

from dnncore.dtypes import DType
from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.attributes import Attributes
from dnncore.importers.onnx.limits import Budget
from dnncore.importers.onnx.values import FEW, MANY, Computed, Imported, Known
from dnncore.nn.graph import Constant, Node, Role
from dnncore.nn.operator import Operator
from dnncore.nn.operators import (
    Binary,
    Cast,
    Concat,
    Dropout,
    Expand,
    GlobalPooling,
    Identity,
    Pad,
    PlaneOffsets,
    Pooling,
    PoolingWithIndices,
    Reshape,
    Scale,
    Slice,
    Split,
    Transpose,
    Where,
    Zeros,
)

__all__ = ["Call", "Net"]

_OF_ANY_DTYPE = (
    Binary,
    Cast,
    Concat,
    Dropout,
    Expand,
    Identity,
    Pad,
    Reshape,
    Scale,
    Slice,
    Split,
    Transpose,
    Where,
    Zeros,
)
_OF_INT8 = (*_OF_ANY_DTYPE, GlobalPooling, PlaneOffsets, Pooling, PoolingWithIndices)
"""What devices do with whole numbers and bool; everything else is of floating-point numbers."""


class Net:
    """Nodes and constants as they come. Owned by one thread; not checked.

    Args:
        reserved: Names of the file, which nothing else may get.
        most: How many nodes there may be.
        budget: For constants that the file does not have as they are.
    """

    def __init__(self, reserved: Iterable[str], most: int, budget: Budget) -> None:
        self.budget = budget
        self.images: Computed | None = None
        """An input whose first extent is the number of images; None where there is none."""
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}
        self.weights: dict[str, np.ndarray] = {}
        self._trained: set[str] = set()  # values that depend on what is trained
        self._reserved = set(reserved)
        self._taken: set[str] = set()
        self._node_names: set[str] = set()
        self._most = most
        self._constant_of: dict[int, tuple[Known, str]] = {}  # by identity, which the Known beside it keeps
        self._image_of: dict[int, tuple[Known, Known]] = {}  # as well

    def _free(self, wanted: str, taken: set[str]) -> str:
        number, name = 1, wanted
        while name in taken or not name:
            number += 1
            name = f"{wanted}.{number}"
        taken.add(name)
        return name

    def inner_name(self, wanted: str) -> str:
        """A name for a value that the file has no name for."""
        while wanted in self._reserved:
            wanted += "."
        return self._free(wanted, self._taken)

    def constant(self, name: str, array: np.ndarray, role: Role) -> str:
        """Add a constant under a free name.

        Raises:
            BadParamError: no device has its dtype.
        """
        dtype = DType.of(array.dtype)
        self.constants[name] = Constant(name, array.shape, dtype, role)
        self.weights[name] = array
        return name

    def constant_of(self, known: Known, role: Role) -> Computed:
        """Known elements as a constant of the net, one however often it is asked for; repeated where all images have the same.

        Raises:
            NotSupportedError: they depend on the batch in another way.
            BadParamError: no device has their dtype.
        """
        if not known.is_fixed and self.images is not None and (image := known.image) is not None:
            _, one = self._image_of.setdefault(id(known), (known, Known(f"{known.name}.image", image, image)))
            return self.emit(known.name, Expand((1,) * image.ndim), (self.constant_of(one, role), self.images))[0]
        array = known.fixed
        if id(known) in self._constant_of:
            name = self._constant_of[id(known)][1]
            if role is not Role.FIXED:
                self.constants[name] = replace(self.constants[name], role=role)
        else:
            DType.of(array.dtype)
            own = known.name and known.name not in self._taken
            name = self._free(known.name, self._taken) if own else self.inner_name(known.name or "constant")
            self.constant(name, array, role)
            self._constant_of[id(known)] = (known, name)
        spec = self.constants[name].spec
        return Computed(name, spec, spec)

    def emit(self, node: str, operator: Operator, inputs: Sequence[Computed | None]) -> tuple[Computed, ...]:
        """Add a node.

        Raises:
            BadParamError: the inputs do not fit.
            NotSupportedError: devices do not compute this with their dtype, or there are too many nodes.
        """
        if len(self.nodes) >= self._most:
            raise NotSupportedError(f"the net gets more than {self._most} nodes")
        for dtype in {one.few.dtype for one in inputs if one is not None}:
            if not dtype.is_floating and not isinstance(operator, _OF_INT8 if dtype is DType.INT8 else _OF_ANY_DTYPE):
                raise NotSupportedError(f"{operator.kind} of {dtype.value} is not supported")
        few = operator.infer_checked([None if one is None else one.few for one in inputs])
        many = operator.infer_checked([None if one is None else one.many for one in inputs])
        name = self._free(node, self._node_names)
        suffixes = [""] if len(few) == 1 else [f":{number}" for number in range(len(few))]
        outputs = tuple(
            Computed(self.inner_name(f"{name}{suffix}"), a, b) for suffix, a, b in zip(suffixes, few, many, strict=True)
        )
        names = tuple(None if one is None else one.name for one in inputs)
        self.nodes.append(Node(name, operator, names, tuple(one.name for one in outputs)))
        if any(self.is_trained(one) for one in names if one is not None):
            self._trained.update(one.name for one in outputs)
        return outputs

    def is_trained(self, name: str) -> bool:
        """Whether a value is trained, or depends on something that is."""
        constant = self.constants.get(name)
        return name in self._trained if constant is None else constant.role is Role.TRAINABLE

    def rename(self, start: int, computed: Computed, name: str) -> Computed:
        """Give a value that one of the nodes from `start` on computes the name that the file has for it."""
        old = computed.name
        for index in range(start, len(self.nodes)):
            node = self.nodes[index]
            if old in node.outputs or old in node.inputs:
                self.nodes[index] = replace(
                    node,
                    inputs=tuple(name if one == old else one for one in node.inputs),
                    outputs=tuple(name if one == old else one for one in node.outputs),
                )
        self._taken.add(name)
        if old in self._trained:
            self._trained.add(name)
        return replace(computed, name=name)


class Call:
    """One node of the file for the rule that imports it: operands, attributes, and the nodes that are to stand for it. Owned by one
    thread; not checked.

    Args:
        net: Where they go.
        name: What the node is called.
        version: Opset that last changed the operator.
        opset: Opset of the model.
        attributes: As the file has them.
        inputs: What its operands stand for; None for one that is left out.
        outputs: Names of its results in the file; empty where nobody wants one.
        fixed_batch: The number of images that the model was made for, where it is imported for any number.
    """

    def __init__(
        self,
        net: Net,
        name: str,
        version: int,
        opset: int,
        attributes: Attributes,
        inputs: Sequence[Imported | None],
        outputs: Sequence[str],
        fixed_batch: int | None = None,
    ) -> None:
        self._net = net
        self.name = name
        self.version = version
        self.opset = opset
        self.attributes = attributes
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.fixed_batch = fixed_batch

    def wants(self, output: int) -> bool:
        """Whether anybody may read a result."""
        return output < len(self.outputs) and bool(self.outputs[output])

    def only_first_output(self, what: str) -> None:
        """Refuse to give more than the first result.

        Raises:
            NotSupportedError: more is wanted.
        """
        if any(self.outputs[1:]):
            raise NotSupportedError(f"{what} is not supported")

    def has(self, index: int) -> bool:
        """Whether an operand is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def operand(self, index: int) -> Imported:
        """An operand.

        Raises:
            BadParamError: it is left out.
        """
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise BadParamError(f"input {index} is left out")
        return found

    def tensor(self, index: int, role: Role = Role.FIXED) -> Computed:
        """An operand as a value of the net.

        Args:
            index: Which.
            role: Of the constant that it becomes where it is known.
        """
        found = self.operand(index)
        return found if isinstance(found, Computed) else self._net.constant_of(found, role)

    def parameter(self, index: int) -> Computed:
        """An operand that is trained where it looks like a parameter, and what it is combined with depends on others that are.

        A bias behind a matrix product, an embedding of positions and a layer's scale are; a mean and a deviation that the net
        normalises its input with are not, nor are single numbers.
        """
        found = self.operand(index)
        others = [one for place, one in enumerate(self.inputs) if place != index and isinstance(one, Computed)]
        if isinstance(found, Known) and found.is_parameter and any(self._net.is_trained(one.name) for one in others):
            return self.tensor(index, Role.TRAINABLE)
        return self.tensor(index)

    @overload
    def known(self, index: int, what: str) -> np.ndarray: ...
    @overload
    def known(self, index: int, what: str, *, optional: Literal[True]) -> np.ndarray | None: ...
    def known(self, index: int, what: str, *, optional: bool = False) -> np.ndarray | None:
        """The elements of an operand.

        Raises:
            NotSupportedError: they are computed while the net runs, or depend on the batch.
        """
        if optional and not self.has(index):
            return None
        found = self.operand(index)
        if isinstance(found, Computed):
            raise NotSupportedError(f"{what} must be constant, it is computed while the net runs")
        return found.fixed

    def integers(self, index: int, what: str) -> tuple[int, ...] | None:
        """An optional operand as whole numbers."""
        found = self.known(index, what, optional=True)
        return None if found is None else tuple(int(number) for number in found.reshape(-1))

    def constant(self, suffix: str, array: np.ndarray, role: Role = Role.FIXED) -> Computed:
        """A constant that the file does not have as it is.

        Raises:
            BadParamError: it and all others like it are too large.
        """
        self.claim(array.shape, array.itemsize)
        name = self._net.constant(self._net.inner_name(f"{self.name}.{suffix}"), array, role)
        spec = self._net.constants[name].spec
        return Computed(name, spec, spec)

    def claim(self, shape: Sequence[int], itemsize: int) -> None:
        """Take the room for an array that a rule is going to make.

        Raises:
            BadParamError: it is too large.
        """
        self._net.budget.claim(shape, itemsize)

    def scalar(self, like: Computed, value: float, suffix: str) -> Computed:
        """A number as a constant without dimensions, of the dtype of a value."""
        return self.constant(suffix, np.array(value, like.few.dtype.numpy))

    def emit_all(self, operator: Operator, *inputs: Computed | None) -> tuple[Computed, ...]:
        """Add a node with any number of results."""
        return self._net.emit(self.name, operator, inputs)

    def emit(self, operator: Operator, *inputs: Computed | None) -> Computed:
        """Add a node; its first result."""
        return self.emit_all(operator, *inputs)[0]

    def reshape(self, x: Computed, few: Sequence[int], many: Sequence[int]) -> Computed:
        """x with other extents, which may depend on the batch.

        Args:
            x: The value.
            few: Its new extents for `FEW` images.
            many: For `MANY`.

        Raises:
            NotSupportedError: more of them depend on the batch than a reshape can express.
        """
        if (tuple(few), tuple(many)) == x.shapes:
            return x
        target: list[int] = []
        for axis, (a, b) in enumerate(zip(few, many, strict=True)):
            if axis < x.ndim and (a, b) == (x.few.shape[axis], x.many.shape[axis]) and (a != b or not a):
                target.append(0)
            elif a == b and a:
                target.append(a)
            else:
                target.append(-1)
        if target.count(-1) > 1:
            raise NotSupportedError(
                f"extents {list(few)} for {FEW} images and {list(many)} for {MANY}: several depend on the batch"
            )
        return self.emit(Reshape(tuple(target)), x)

    def expand(self, x: Computed, shape: Sequence[int], *, to_images: bool = False) -> Computed:
        """x broadcast.

        Args:
            x: The value.
            shape: What to, 1 where an extent of x stays.
            to_images: Whether there is another dimension in front of `shape`, the images.

        Raises:
            NotSupportedError: no input of the net counts images.
        """
        if to_images and self._net.images is None:
            raise NotSupportedError(f"{x} cannot be broadcast to the images: no input of the net has any")
        return self.emit(Expand(tuple(shape)), x, self._net.images) if to_images else self.emit(Expand(tuple(shape)), x)

    def reshape_like(self, x: Computed, of: Computed) -> Computed:
        """x with the extents of another value."""
        return self.reshape(x, *of.shapes)

    def axis(self, number: int, ndim: int) -> int:
        """A dimension counted from the first.

        Raises:
            BadParamError: there is no such dimension.
        """
        if not -ndim <= number < ndim:
            raise BadParamError(f"there is no dimension {number} of {ndim}")
        return number % ndim
