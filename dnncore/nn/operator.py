"""What an operator is: attributes, shapes, the operations of its forward pass, and the nodes of its gradient.

An operator holds no memory: whoever compiles a graph brings the tensors. Its class is in `dnncore.nn.operators`; files name it by
`kind` and `version`, never by the class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from dnncore.descriptors import Layout, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.tensor import Tensor

if TYPE_CHECKING:
    from typing import Any

__all__ = ["BATCH", "PARTIAL", "BackwardStep", "Extent", "Operator", "Spec", "Tape"]

BATCH = "N"
"""The extent of a dimension that counts images."""

PARTIAL = "partial"
"""The last input of operators that add what is known of a gradient already; they begin by copying it to where the output lies."""

Extent = int | str
"""A number, or a multiple of the batch: "N", "4N"."""


class Spec(NamedTuple):
    """Dtype and shape of a value for a known number of images. Immutable."""

    dtype: DType
    shape: tuple[int, ...]

    def with_shape(self, *shape: int) -> Spec:
        """The same dtype with another shape."""
        return Spec(self.dtype, shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    def descriptor(self, layout: Layout = Layout.NCHW) -> TensorDescriptor:
        """Of a tensor without gaps; a tensor without dimensions has one of extent 1 on a device."""
        return TensorDescriptor.packed(self.shape or (1,), self.dtype, layout if len(self.shape) > 2 else Layout.NCHW)

    def __str__(self) -> str:
        return f"{self.dtype.value}{list(self.shape)}"


class Tape(Protocol):
    """Where gradients write their nodes, while a graph is differentiated (dnncore/nn/gradient.py)."""

    def add(self, operator: Operator, *inputs: str | None) -> str:
        """Add a node with one output, whose name is returned."""
        ...

    def add_several(self, operator: Operator, *inputs: str | None) -> tuple[str, ...]:
        """Add a node with several outputs, whose names are returned."""
        ...

    def dtype(self, name: str) -> DType:
        """Element type of a value of the graph."""
        ...

    def shape(self, name: str) -> tuple[Extent, ...]:
        """Extents of a value of the graph, with the batch as a symbol."""
        ...

    def total(self, a: str, b: str) -> str:
        """Add the node that gives the sum of two values; its name is returned."""
        ...


@dataclass(frozen=True, slots=True)
class BackwardStep:
    """A node that the backward pass has reached: some of its outputs have gradients, and some of its inputs want theirs. Immutable.

    Args:
        tape: Where the nodes of its gradient go.
        inputs: Names of the node's inputs; None for one that is left out.
        outputs: Names of its outputs.
        gradients: Names of the outputs' gradients; None where nothing depends on one.
        wanted: Places of the inputs whose gradients are wanted; one at least.
        partials: For each input the name of what other readers of the same value gave so far; None where this is the first.
    """

    tape: Tape
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    gradients: tuple[str | None, ...]
    wanted: frozenset[int]
    partials: tuple[str | None, ...]

    @property
    def x(self) -> str:
        """The first input's name."""
        return _present(self.inputs[0])

    @property
    def dy(self) -> str:
        """The first output's gradient: there is one whenever a node has one output."""
        return _present(self.gradients[0])

    def wants(self, place: int) -> bool:
        """Whether the gradient of an input is wanted."""
        return place in self.wanted

    def partial(self, place: int = 0) -> str | None:
        """What is known of an input's gradient already, which the node that computes the rest adds."""
        return self.partials[place]

    def plus(self, gradient: str, place: int = 0) -> str:
        """An input's gradient with what is known of it already."""
        partial = self.partial(place)
        return gradient if partial is None else self.tape.total(partial, gradient)

    def add(self, operator: Operator, *inputs: str | None) -> str:
        """See `Tape`."""
        return self.tape.add(operator, *inputs)

    def add_several(self, operator: Operator, *inputs: str | None) -> tuple[str, ...]:
        """See `Tape`."""
        return self.tape.add_several(operator, *inputs)

    def dtype(self, name: str | None) -> DType:
        """Element type of a value of the graph that is there."""
        return self.tape.dtype(_present(name))

    def shape(self, name: str | None) -> tuple[Extent, ...]:
        """Extents of a value of the graph that is there, with the batch as a symbol: how many images there will be is not known."""
        return self.tape.shape(_present(name))

    def extent(self, name: str | None, axis: int) -> int:
        """An extent that the gradient needs as a number.

        Raises:
            BadParamError: it depends on the batch.
        """
        shape = self.shape(name)
        found = shape[axis]
        if not isinstance(found, int):
            text = f"{name!r} has extents [{', '.join(map(str, shape))}]"
            raise BadParamError(
                f"{text}: a gradient along dimension {axis}, which depends on the batch, is not supported"
            )
        return found

    def extents(self, name: str | None, first: int) -> tuple[int, ...]:
        """All extents from a dimension on, as `extent`."""
        return tuple(self.extent(name, axis) for axis in range(first, len(self.shape(name))))


def _present(name: str | None) -> str:
    assert name is not None, "a node without this operand asks for its name"
    return name


class Operator(ABC):
    """A kind of node with its attributes. Subclasses are frozen dataclasses of attributes that JSON can hold. Immutable."""

    kind: ClassVar[str]
    """Its name in files: the field's term, in snake case."""

    version: ClassVar[int] = 1
    """Counts what an attribute or its meaning changed."""

    input_names: ClassVar[tuple[str, ...]] = ("x",)
    """What it reads; the last may be repeated where `variadic`."""

    optional: ClassVar[int] = 0
    """How many of the inputs, counted from the last, may be left out."""

    variadic: ClassVar[bool] = False

    in_place: ClassVar[frozenset[int]] = frozenset()
    """Inputs whose memory the first output may take, when nobody else reads them; where there is a `PARTIAL`, that of no other."""

    batched: ClassVar[frozenset[int]] = frozenset()
    """Inputs that have a row for each row of the outputs, which follow from nothing else: the batch may be computed in parts."""

    def infer_checked(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        """`infer`, once the number of inputs is right.

        Raises:
            BadParamError: it is not, or they do not fit.
        """
        most = len(self.input_names)
        least = most - self.optional
        if not (least <= len(inputs) and (self.variadic or len(inputs) <= most)):
            wanted = f"{least} or more" if self.variadic else f"{least} to {most}" if self.optional else f"{most}"
            raise BadParamError(f"{self.kind} takes {wanted} inputs, {len(inputs)} are given")
        for name, spec in zip(self.input_names[:least], inputs, strict=False):
            if spec is None:
                raise BadParamError(f"{self.kind} needs its input {name!r}")
        return self.infer(inputs)

    @abstractmethod
    def infer(self, inputs: Sequence[Any]) -> Sequence[Spec]:
        """Specs of the outputs from those of the inputs; None stands for one that is left out.

        Raises:
            BadParamError: they do not fit.
        """

    @abstractmethod
    def lower(self, handle: Handle, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        """Call the operations that write the outputs, whose tensors have whatever strides the compiler chose."""

    def gradient(self, step: BackwardStep) -> Sequence[str | None]:  # noqa: ARG002 (most operators have one)
        """Add the nodes that compute the gradients of those inputs for which one is wanted.

        Returns:
            For each input its gradient's name, with what was known of it added; None where none is wanted or none flows. Inputs at
            the end that never have one may be left out.

        Raises:
            BadParamError: it has none.
        """
        raise BadParamError(f"{self.kind} has no gradient")

    def view(self, x: TensorDescriptor, specs: Sequence[Spec]) -> Sequence[tuple[TensorDescriptor, int]] | None:  # noqa: ARG002
        """The outputs as views of the first input's memory: descriptor and offset in elements; None where they need their own.

        Args:
            x: The first input.
            specs: Of the outputs.
        """
        return None

    def placed(self, output: TensorDescriptor, inputs: Sequence[Spec]) -> Sequence[tuple[TensorDescriptor, int]] | None:  # noqa: ARG002
        """The inputs as views of the output's memory, so that nothing is left to do once all are written; else None."""
        return None

    @property
    def strided(self) -> bool:
        """Whether its tensors may have any strides; else they are row-major."""
        return True

    @property
    def writes_strided(self) -> bool:
        """Whether its outputs may have any strides; else they are row-major, or views."""
        return self.strided

    def macs(self, inputs: Sequence[Any], outputs: Sequence[Spec]) -> int:  # noqa: ARG002
        """Multiply-adds."""
        return 0

    @property
    def attributes(self) -> dict[str, Any]:
        """Its settings by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def __str__(self) -> str:
        settings = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}  # type: ignore[arg-type]
        return " ".join([self.kind, *(f"{name}={_text(value)}" for name, value in settings.items())])


def _text(value: object) -> str:
    return str(value).replace(" ", "")
