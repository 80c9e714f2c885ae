"""What a layer is as one of several in a row, which are one operation forward and one backward: `dnncore.torch.functions.chain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from dnncore.descriptors import TensorDescriptor
from dnncore.torch.operation import Operation

__all__ = ["DY", "Kind", "NotLinkedError", "Settings", "View"]

DY: Final = -1
"""Among what a backward reads: the gradient of the layer's result."""

Settings = tuple[Any, ...]
"""Of a layer: its kind, and what else the kind's operations are made with; hashable."""


class NotLinkedError(Exception):
    """What a layer is given is computed by more than the operations of its kind: it is to be called by itself."""


class View:
    """A kind of layer that may have nothing to compute: its result is then x's memory, seen otherwise. Immutable.

    That is for a chain to make use of, inside of which nobody else sees either of them; else it is a `Kind` like any other.
    """

    def view(self, settings: Settings, x: TensorDescriptor) -> TensorDescriptor | None:
        """How the result is seen where it is x; None where it has to be computed."""
        raise NotImplementedError

    def gradient(self, settings: Settings, x: TensorDescriptor, dy: TensorDescriptor) -> TensorDescriptor:
        """How dx is seen, which then is dy."""
        raise NotImplementedError


class Kind(Protocol):
    """A kind of layer: its operations, as its own function has them. Immutable.

    Tensors of a layer are numbered: those that the forward is given, which are x, the parameters, what is read or updated beside
    them, and a residual where there is one; then those that it makes, the result first.
    """

    def forward(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> Operation:
        """(given) -> the result, and what else its way makes.

        Args:
            settings: Of the layer.
            casts: Whether parameters are cast to the dtype of x, as `torch.autocast` does.
            given: What it is given.

        Raises:
            NotLinkedError: it is to be called by itself.
        """
        ...

    def reads(self, settings: Settings, casts: bool, given: Sequence[TensorDescriptor]) -> tuple[int, ...]:
        """Which tensors the backward operation is given, by their numbers, and DY among them."""
        ...

    def backward(
        self,
        settings: Settings,
        given: Sequence[TensorDescriptor],
        read: Sequence[TensorDescriptor],
        wanted: Sequence[bool],
    ) -> tuple[Operation, tuple[int, ...]]:
        """(what it reads) -> gradients.

        Args:
            settings: Of the layer.
            given: What the forward was given.
            read: What it reads.
            wanted: Of which of the given there is to be a gradient; of one at least.

        Returns:
            The operation; and of which of the given its results are the gradients, in order: perhaps of more than are wanted. What
            it makes beside them nobody reads.
        """
        ...
