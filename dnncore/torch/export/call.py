"""One ATen operator of a program, as the rule sees that makes nodes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dnncore.errors import NotSupportedError
from dnncore.nn.graph import Extent, Value
from dnncore.nn.operator import Operator

__all__ = ["Call", "Net", "Operand"]

Operand = Value | str | None
"""What a node reads: a value of the program, the name of one that a rule has made, or nothing."""


class Net(Protocol):
    """The graph that is being made."""

    def add(self, base: str, kind: Operator, inputs: Sequence[str | None]) -> tuple[str, ...]:
        """Add a node, named as near to `base` as possible; the names of its outputs."""
        ...

    def constant(self, base: str, array: np.ndarray) -> str:
        """Add a constant, named as near to `base` as possible."""
        ...

    @property
    def images(self) -> str | None:
        """An input of the net that begins with the number of images."""
        ...


class Call:
    """A call of an operator: what there is to know about its results, and where its nodes go. Owned by one thread.

    Args:
        net: The graph that is being made.
        name: What its nodes are called: the module that calls the operator, or that and the operator.
        result: Dtype and shape of what the operator gives, by PyTorch's account.
        results: Of all that it gives; None for what can be no value of a net.
    """

    def __init__(self, net: Net, name: str, result: Value, results: tuple[Value | None, ...]) -> None:
        self._net = net
        self.name = name
        self.result = result
        self.results = results

    @property
    def shape(self) -> tuple[Extent, ...]:
        """Of the first result."""
        return self.result.shape

    def add(self, operator: Operator, *inputs: Operand, part: str = "") -> str:
        """Add a node; returns the name of its first output.

        Args:
            operator: What is computed.
            inputs: Of what.
            part: What it is to the call; empty for the call itself.
        """
        return self.add_several(operator, *inputs, part=part)[0]

    def add_several(self, operator: Operator, *inputs: Operand, part: str = "") -> tuple[str, ...]:
        """Add a node with several outputs; returns their names."""
        names = [each.name if isinstance(each, Value) else each for each in inputs]
        return self._net.add(f"{self.name}.{part}" if part else self.name, operator, names)

    def constant(self, part: str, array: np.ndarray) -> str:
        """Add a constant that the model has no name for.

        Args:
            part: What it is to the call.
            array: Its elements.
        """
        return self._net.constant(f"{self.name}.{part}", array)

    def number(self, value: float) -> str:
        """Add a constant of one element, which is broadcast."""
        return self.constant("number", np.full(1, value, np.float32))

    def images(self) -> str:
        """An input of the net that begins with the number of images."""
        found = self._net.images
        if found is None:
            raise NotSupportedError("the net has no input with a number of images")
        return found
