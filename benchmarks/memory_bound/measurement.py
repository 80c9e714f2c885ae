"""What is measured: a problem, the bytes that it cannot do without, and PyTorch's function of the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dnncore import TensorDescriptor
from dnncore.problems import Problem

__all__ = ["LARGE", "SMALL", "Measurement"]

LARGE, SMALL = (64, 64, 112, 112), (64, 64, 14, 14)
"""Several times an H200's L2 cache, and what shows the cost of a launch."""


def _nothing(_inputs: Sequence[Any]) -> None:
    """The noise will do."""


@dataclass(frozen=True)
class Measurement:
    """One row of the table for each algorithm. Immutable.

    Args:
        name: What and where.
        problem: What is solved.
        moved: The tensors that must be read or written.
        torch: PyTorch's function of the problem's inputs; its result, or the first of its results, is the first output.
        beta: Factor of what the output held. Where it is not 0, `torch` has that as one more argument, and writes it.
        prepare: Writes into the inputs what must not be noise.
        comparable: Whether equal results are to be expected.
    """

    name: str
    problem: Problem
    moved: tuple[TensorDescriptor, ...]
    torch: Callable[..., Any]
    beta: float = 0.0
    prepare: Callable[[Sequence[Any]], None] = field(default=_nothing)
    comparable: bool = True

    @property
    def nbytes(self) -> int:
        """Fewest bytes that can be moved: each tensor once, the output twice where it is blended."""
        blended = self.problem.outputs if self.beta else ()
        return sum(tensor.nbytes for tensor in (*self.moved, *blended))
