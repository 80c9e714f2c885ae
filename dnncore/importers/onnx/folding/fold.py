"""A node whose operands are all known, and what computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dnncore.errors import BadParamError
from dnncore.importers.onnx.attributes import Attributes
from dnncore.importers.onnx.limits import Budget

__all__ = ["Fold", "Folding", "axis_of"]


class Folding:
    """A node and its operands. Owned by one thread; not checked.

    Args:
        version: Opset that last changed the operator.
        attributes: As the file has them.
        inputs: Arrays; None for one that is left out.
        num_outputs: How many results it has.
        budget: For what is made.
    """

    def __init__(
        self,
        version: int,
        attributes: Attributes,
        inputs: Sequence[np.ndarray | None],
        num_outputs: int,
        budget: Budget,
    ) -> None:
        self.version = version
        self.attributes = attributes
        self.inputs = tuple(inputs)
        self.num_outputs = num_outputs
        self.budget = budget

    def __getitem__(self, index: int) -> np.ndarray:
        found = self.optional(index)
        if found is None:
            raise BadParamError(f"input {index} is left out")
        return found

    def optional(self, index: int) -> np.ndarray | None:
        """An operand, None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def integers(self, index: int, attribute: str, since: int) -> tuple[int, ...] | None:
        """Whole numbers that are an attribute in models before an opset, and an operand since."""
        if self.version < since:
            return self.attributes.integers(attribute)
        found = self.optional(index)
        return None if found is None else tuple(int(number) for number in found.reshape(-1))

    def claim(self, shape: Sequence[int], itemsize: int = 8) -> None:
        """Take the room for a result."""
        self.budget.claim(shape, itemsize)


Fold = Callable[[Folding], Sequence[np.ndarray]]
"""Its results. Every array is claimed from the budget before it is allocated."""


def axis_of(axis: int, ndim: int) -> int:
    """A dimension counted from the first.

    Raises:
        BadParamError: there is no such dimension.
    """
    if not -ndim <= axis < ndim:
        raise BadParamError(f"there is no dimension {axis} of {ndim}")
    return axis % ndim
