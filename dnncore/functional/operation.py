"""What a function does to operands of a given form, as data: worked out once, launched as often as it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.formats import as_rows
from dnncore.problems import AddProblem, FillProblem, Problem

__all__ = ["Draft", "Operation", "Step", "remembered"]

_MOST_OPERATIONS = 1024
"""That each function remembers: shapes may be new ones at every call."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One launch of an operation. Immutable; equal to itself alone, which makes it a quick key.

    Args:
        problem: What is computed.
        operands: Its inputs and outputs by their places among the operation's tensors: those that it is given, in order, then those
            that it makes. Each is seen through the problem's descriptor, from its own first element.
        alpha: Factor of the result.
        beta: Factor of what the output held.

    Attributes:
        inputs: The operands that are read.
        outputs: The operands that are written.
    """

    problem: Problem
    operands: tuple[int, ...]
    alpha: float = 1.0
    beta: float = 0.0
    inputs: tuple[int, ...] = field(init=False)
    outputs: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.problem.inputs)
        object.__setattr__(self, "inputs", self.operands[:count])
        object.__setattr__(self, "outputs", self.operands[count:])

    def __call__(self) -> Problem:
        """The problem, as `Handle.execute` asks for it when it first sees this step."""
        return self.problem


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """Launches in a row, and the tensors that they need beside the given ones. Immutable; equal to itself alone.

    Args:
        made: What is allocated for it: results first.
        num_results: How many of these the caller gets.
        ways: The launches, in several ways where there are several; the fastest by estimate is taken.
        writes: Places of given tensors that are written.
        views: Parts of tensors: the place of the whole, what to see and how many elements in. Their own places are -1, -2, ...
    """

    made: tuple[TensorDescriptor, ...]
    num_results: int
    ways: tuple[tuple[Step, ...], ...]
    writes: frozenset[int]
    views: tuple[tuple[int, TensorDescriptor, int], ...] = ()


def remembered(describe: Callable[..., Operation]) -> Callable[..., Operation]:
    """Have `describe(*settings, *descriptors)`, a pure function, work each operation out once while it is in use."""
    return lru_cache(_MOST_OPERATIONS, typed=True)(describe)


class Draft:
    """An operation that is being described. Owned by one thread.

    Args:
        given: How many tensors it is given, those that are None among them.
        results: What it returns.

    Attributes:
        results: Places of what it returns.
    """

    def __init__(self, given: int, *results: TensorDescriptor) -> None:
        self._given = given
        self._made = list(results)
        self._steps: list[Step] = []
        self._views: list[tuple[int, TensorDescriptor, int]] = []
        self.results = range(given, given + len(results))

    def scratch(self, descriptor: TensorDescriptor) -> int:
        """The place of another tensor, which nobody sees."""
        self._made.append(descriptor)
        return self._given + len(self._made) - 1

    def view(self, place: int, descriptor: TensorDescriptor, offset: int) -> int:
        """The place of part of what is at a place, from its `offset`-th element on; written only of what the operation makes."""
        if not offset:
            return place  # a step sees operands through its own descriptors
        self._views.append((place, descriptor, offset))
        return -len(self._views)

    def step(self, problem: Problem, *operands: int, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Launch a problem on the tensors at these places: its inputs, then its outputs."""
        self._steps.append(Step(problem, operands, alpha, beta))

    def filled(self, value: float, descriptor: TensorDescriptor) -> int:
        """The place of a tensor that has one value everywhere."""
        place = self.scratch(descriptor)
        self.step(FillProblem(descriptor), place, alpha=value)
        return place

    def packed(
        self, place: int, descriptor: TensorDescriptor, dtype: DType | None = None
    ) -> tuple[int, TensorDescriptor]:
        """Copy what is at a place into a row-major tensor, of another element type where one is given."""
        copy = TensorDescriptor.packed(descriptor.shape, dtype or descriptor.dtype)
        other = self.scratch(copy)
        self.step(AddProblem(descriptor, copy), place, other)
        return other, copy

    def in_dtype(self, place: int, descriptor: TensorDescriptor, dtype: DType) -> tuple[int, TensorDescriptor]:
        """What is at a place, copied where it is of another element type."""
        return (place, descriptor) if descriptor.dtype is dtype else self.packed(place, descriptor, dtype)

    def matrix(self, place: int, descriptor: TensorDescriptor) -> tuple[int, TensorDescriptor]:
        """[..., K] at a place as a matrix [M, K]; copied where no one stride leads from row to row."""
        found = as_rows(descriptor)
        if found is None:
            place, descriptor = self.packed(place, descriptor)
            found = as_rows(descriptor)
            assert found is not None  # a copy has no gaps
        return place, found

    def operation(self, *ends: tuple[Step, ...]) -> Operation:
        """What was described, and one of several ways to end it where some are given."""
        ways = tuple((*self._steps, *end) for end in ends or ((),))
        written = frozenset(place for step in ways[0] for place in step.outputs if 0 <= place < self._given)
        return Operation(tuple(self._made), len(self.results), ways, written, tuple(self._views))
