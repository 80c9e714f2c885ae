"""An operation that a handle has run before: what is left of it is memory for its results, addresses and launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dnncore.aliasing import check_apart
from dnncore.descriptors import TensorDescriptor
from dnncore.functional.operation import Operation, Step
from dnncore.handle import Handle
from dnncore.plan import Plan
from dnncore.tensor import Tensor

__all__ = ["Launches"]


class _Launch(NamedTuple):
    """One plan of an operation. Immutable.

    Args:
        plan: What runs.
        alpha: Factor of the result.
        beta: Factor of what the output held.
        operands: By their places among all tensors of the operation, as of `Step`.
        written: Given tensors that it writes: they may be read-only, or share memory with other operands. What an operation
            allocates is neither.
    """

    plan: Plan
    alpha: float
    beta: float
    operands: tuple[int, ...]
    written: tuple[int, ...]


class Launches:
    """Of an operation on a handle whose addresses are pointers, for tensors of the same form as before. Immutable.

    Whatever depends on the form alone was checked when the operation was run for the first time.

    Args:
        made: What is allocated, results first.
        num_results: How many of these the caller gets.
        views: Places of tensors that are seen from a byte on; their own are -1, -2, ...
        launches: In a row.
    """

    __slots__ = ("_launches", "_made", "_num_results", "_views")

    def __init__(
        self,
        made: tuple[TensorDescriptor, ...],
        num_results: int,
        views: tuple[tuple[int, int], ...],
        launches: tuple[_Launch, ...],
    ) -> None:
        self._made = made
        self._num_results = num_results
        self._views = views
        self._launches = launches

    @classmethod
    def of(cls, operation: Operation, way: Sequence[Step], owner: Handle, given: int) -> Launches:
        """Those of an operation that was run.

        Args:
            operation: What was run.
            way: The steps that were taken.
            owner: Where.
            given: How many tensors it was given.
        """
        views = [(place, offset * descriptor.dtype.itemsize) for place, descriptor, offset in operation.views[::-1]]
        launches = [
            _Launch(
                owner.plan(step.problem),
                step.alpha,
                step.beta,
                step.operands,
                tuple(place for place in step.outputs if 0 <= place < given),
            )
            for step in way
        ]
        return cls(operation.made, operation.num_results, tuple(views), tuple(launches))

    def __call__(self, owner: Handle, given: Sequence[Tensor | None]) -> list[Tensor]:
        """Allocate and launch.

        Args:
            owner: The handle that they were made for.
            given: Tensors of this handle, of the form that they were made for.

        Raises:
            BadParamError: the handle is recording, a tensor that is written is read-only, or shares memory with another operand.
            ClosedError: a tensor, or the handle, was closed.
        """
        made = [owner.new(descriptor) for descriptor in self._made]
        pointers = [0 if tensor is None else tensor.locate() for tensor in given]
        pointers += [tensor.locate() for tensor in made]
        if self._views:
            pointers += [pointers[place] + nbytes for place, nbytes in self._views]
        for plan, alpha, beta, operands, written in self._launches:
            addresses = [pointers[place] for place in operands]
            if written:
                for place in written:
                    tensor = given[place]
                    assert tensor is not None
                    tensor.check_writable()
                check_apart(plan.problem, addresses, plan.nbytes, len(plan.problem.inputs))
            owner.enqueue(plan, alpha, beta, addresses)
        return made[: self._num_results]
