"""What a function of this package does to PyTorch's tensors, as data: worked out once for each form of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dnncore.descriptors import TensorDescriptor
from dnncore.problems import Problem

__all__ = ["Behind", "Composite", "Operation", "Place", "Scratch", "Step", "Way"]


@dataclass(frozen=True, slots=True)
class Behind:
    """A place in a tensor: several tensors that lie behind each other in one take one call of PyTorch's allocator. Immutable.

    Args:
        place: Of the tensor, among the operation's.
        offset: Bytes from its beginning.
    """

    place: int
    offset: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """A place in the launches' scratch memory, for what nobody reads behind the operation: it takes no call of an allocator.

    Immutable.

    Args:
        offset: Bytes from where that memory begins.
    """

    offset: int


Place = int | Behind | Scratch
"""Where an operand is: the number of a tensor among the operation's, or a place in one or in scratch memory."""


@dataclass(frozen=True, slots=True)
class Step:
    """One launch of an operation: output = alpha * problem(inputs) + beta * output. Immutable.

    Args:
        problem: What is computed.
        operands: Its inputs and outputs by their places among the operation's tensors: those that it was given, in order, then
            those that it makes; or in scratch memory.
        alpha: Factor of the result.
        beta: Factor of what the output held.
    """

    problem: Problem
    operands: tuple[Place, ...]
    alpha: float = 1.0
    beta: float = 0.0


@dataclass(frozen=True, slots=True)
class Way:
    """Launches that compute an operation, and the tensors that they make. Immutable.

    Args:
        results: Tensors that it makes, as PyTorch's users see them; a problem may have other dimensions of the same memory. Behind
            these, what the backward reads or nobody, which may lie otherwise in another way, or not be there.
        steps: What computes them.
        scratch_bytes: Of scratch memory, those that steps name; what a launch needs itself lies behind them.
        notes: What is handed out behind the tensors that were made, the same at every call: what else the backward has to know.
    """

    results: tuple[TensorDescriptor, ...]
    steps: tuple[Step, ...]
    scratch_bytes: int = 0
    notes: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """What a function of this package does to tensors of given formats. Immutable.

    Args:
        ways: To compute it, several where there are several; the fastest by estimate is taken.
    """

    ways: tuple[Way, ...]

    @classmethod
    def of(cls, problem: Problem, operands: tuple[Place, ...], *results: TensorDescriptor) -> Operation:
        """One launch."""
        return cls((Way(results, (Step(problem, operands),)),))

    @classmethod
    def any_of(cls, operations: Iterable[Operation]) -> Operation:
        """One of several that come to the same for PyTorch's users."""
        return cls(tuple(way for operation in operations for way in operation.ways))


@dataclass(frozen=True, slots=True)
class Composite:
    """Operations in a row, each of which takes its fastest way: what they are may depend on the ways of those before. Immutable.

    Args:
        compose: compose(choose) -> one way for all of them; `choose` gives an operation's.
    """

    compose: Callable[[Callable[[Operation], Way]], Way]
