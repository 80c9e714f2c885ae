"""What a function of this package does to PyTorch's tensors, as data: worked out once for each form of its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.descriptors import TensorDescriptor
from dnncore.problems import Problem

__all__ = ["Behind", "Operation", "Step"]


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
class Step:
    """One launch of an operation: output = alpha * problem(inputs) + beta * output. Immutable.

    Args:
        problem: What is computed.
        operands: Its inputs and outputs by their places among the operation's tensors: those that it was given, in order, then
            those that it makes.
        alpha: Factor of the result.
        beta: Factor of what the output held.
    """

    problem: Problem
    operands: tuple[int | Behind, ...]
    alpha: float = 1.0
    beta: float = 0.0


@dataclass(frozen=True, slots=True)
class Operation:
    """What a function of this package does to tensors of given formats. Immutable.

    Args:
        results: Tensors that it makes, as PyTorch's users see them; a problem may have other dimensions of the same memory.
        ways: Steps that compute them, in several ways where there are several; the fastest by estimate is taken.
    """

    results: tuple[TensorDescriptor, ...]
    ways: tuple[tuple[Step, ...], ...]

    @classmethod
    def of(cls, problem: Problem, operands: tuple[int | Behind, ...], *results: TensorDescriptor) -> Operation:
        """One launch."""
        return cls(results, ((Step(problem, operands),),))
