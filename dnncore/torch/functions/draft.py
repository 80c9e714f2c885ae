"""An operation that is more than one launch, while it is put together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.formats import as_rows, like
from dnncore.problems import AddProblem, FillProblem, Problem
from dnncore.torch.operation import Behind, Operation, Step

__all__ = ["Draft"]

_CAST = {DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32}
"""What `torch.autocast` casts."""


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

    def make_wanted(self, results: Sequence[TensorDescriptor], wanted: Sequence[bool]) -> list[int | None]:
        """Let it make those tensors that are wanted.

        Returns:
            Their places, None for the others.
        """
        return [self.make(result) if is_wanted else None for result, is_wanted in zip(results, wanted, strict=True)]

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

    def parameter(self, tensor: TensorDescriptor, place: int, *dtypes: DType) -> tuple[TensorDescriptor, int]:
        """Let it have a parameter in one of these dtypes as `torch.autocast` does: copied in the first where it has another.

        Nothing is copied where autocast leaves a tensor as it is: to or from float64, and integers.

        Returns:
            The parameter and its place.
        """
        if tensor.dtype in dtypes or not {tensor.dtype, dtypes[0]} <= _CAST:
            return tensor, place
        copy = like(tensor).with_dtype(dtypes[0])
        copied = self.make(copy)
        self.step(AddProblem(tensor, copy), place, copied)
        return copy, copied

    def compute(self, place: int, problem: Problem, *operands: int | Behind) -> None:
        """Let a result be what a problem computes from the tensors at these places, converted where it has another dtype."""
        (output,), result = problem.outputs, self._results[place - self._given]
        if output.dtype is result.dtype:
            self.step(problem, *operands, place)
            return
        computed = self.make(output)
        self.step(problem, *operands, computed)
        self.step(AddProblem(output, output.with_dtype(result.dtype)), computed, place)

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
