"""An operation that is more than one launch, while it is put together."""

from __future__ import annotations

import math

from dnncore.descriptors import TensorDescriptor
from dnncore.problems import AddProblem, FillProblem, Problem
from dnncore.torch.functions.formats import as_rows
from dnncore.torch.operation import Behind, Operation, Step

__all__ = ["Draft"]


class Draft:
    """Results and steps in the order in which they are asked for. Mutable.

    Args:
        given: How many tensors the operation is given; None among them counts.
    """

    def __init__(self, given: int) -> None:
        self._given = given
        self._results: list[TensorDescriptor] = []
        self._steps: list[Step] = []

    def make(self, result: TensorDescriptor) -> int:
        """Let the operation make a tensor.

        Returns:
            Its place among the operation's tensors.
        """
        self._results.append(result)
        return self._given + len(self._results) - 1

    def step(self, problem: Problem, *operands: int | Behind, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Let it launch a problem on the tensors at these places."""
        self._steps.append(Step(problem, operands, alpha, beta))

    def constant(self, value: float, tensor: TensorDescriptor) -> int:
        """Let it make a tensor that holds one number everywhere.

        Returns:
            Its place.
        """
        place = self.make(tensor)
        self.step(FillProblem(tensor), place, alpha=value)
        return place

    def rows(self, tensor: TensorDescriptor, place: int) -> tuple[TensorDescriptor, int]:
        """Let it have a tensor [..., C] as [M, C]: where it lies or, where its strides do not allow that, copied.

        Returns:
            The rows and their place.
        """
        rows = as_rows(tensor)
        if rows is not None:
            return rows, place
        copy = TensorDescriptor.packed(tensor.shape, tensor.dtype)
        copied = self.make(copy)
        self.step(AddProblem(tensor, copy), place, copied)
        return TensorDescriptor.packed((math.prod(tensor.shape[:-1]), tensor.shape[-1]), tensor.dtype), copied

    def operation(self, *ways: tuple[Step, ...]) -> Operation:
        """What has been put together, and one of several ways to end it where some are given."""
        return Operation(tuple(self._results), tuple((*self._steps, *way) for way in ways or ((),)))
