"""What is measured: a problem, the bytes that it cannot do without, and PyTorch's function of the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dnncore import Handle, MathType, Tensor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, FusedConvolutionProblem, Problem

__all__ = [
    "CONTIGUOUS_AND_CHANNELS_LAST",
    "LARGE",
    "SMALL",
    "Measurement",
    "Operations",
    "Part",
    "Sized",
    "permits_tf32",
]

LARGE, SMALL = (64, 64, 112, 112), (64, 64, 14, 14)
"""Several times an H200's L2 cache, and what shows the cost of a launch."""

Sized = Callable[[tuple[int, ...]], tuple[int, ...]]
"""Makes the shape that is measured of one; dry runs shrink it."""

CONTIGUOUS_AND_CHANNELS_LAST = ("contiguous", "channels_last")
"""How images can lie for PyTorch, which converts them before anything is timed."""

Part = tuple[Any, Callable[[Any], Any]]
"""What float64 gives for a part of the first output, and what takes that part of it."""


def _nothing(_inputs: Sequence[Any]) -> None:
    """The noise will do."""


def _none(_inputs: Sequence[Any]) -> tuple[Any, ...]:
    """PyTorch's function needs the inputs alone."""
    return ()


@dataclass(frozen=True)
class Operations:
    """Several operations as one thing to measure, as an optimizer's step is. Immutable.

    Args:
        inputs: What they read, row-major; they may write it too.
        outputs: What they change, row-major; the first is compared.
        enqueue: Given a handle, and the tensors of inputs and outputs, makes what enqueues all of it once. What it allocates for
            that stays until the handle is closed.
        macs: Multiply-adds.
    """

    inputs: tuple[TensorDescriptor, ...]
    outputs: tuple[TensorDescriptor, ...]
    enqueue: Callable[[Handle, Sequence[Tensor]], Callable[[], None]]
    macs: int = 0


def permits_tf32(problem: Problem | Operations) -> bool:
    """Whether float32 may be rounded to TF32 before it is multiplied."""
    if not isinstance(problem, ConvolutionProblem | FusedConvolutionProblem):
        return False
    return problem.convolution.math is MathType.TF32 and problem.x.dtype is DType.FLOAT32


@dataclass(frozen=True)
class Measurement:
    """One row of the table for each algorithm. Immutable.

    Args:
        name: What and where.
        problem: What is solved; or several operations.
        moved: The tensors that must be read or written.
        torch: PyTorch's function of the problem's inputs; its result, or the first of its results, is the first output. None where
            it has none.
        beta: Factor of what the output held. Where it is not 0, `torch` has that as one more argument, and writes it; of several
            operations it has all outputs.
        prepare: Writes into the inputs what must not be noise.
        kept: What PyTorch would have kept of the forward pass, of the arguments so far: more of them, made outside what is timed.
        comparable: Whether equal results are to be expected.
        length: Terms of a sum, for what errors may be (`dnncore.testing.tolerance`).
        reference: Gives float64's result for a part of the output, from the inputs; None for what `torch` gives for inputs in
            float64.
        fields: Of the row: what tells it from others.
        formats: The ways in which images lie for PyTorch; none for the one in which they lie for ours.
        searched: Whether PyTorch has cuDNN search for the fastest of its algorithms.
        rival: What ours is compared with in PyTorch's place.
        peer: What rows call whom ours is compared with.
        exact: Whether ours must give every bit of the reference.
    """

    name: str
    problem: Problem | Operations
    moved: tuple[TensorDescriptor, ...]
    torch: Callable[..., Any] | None
    beta: float = 0.0
    prepare: Callable[[Sequence[Any]], None] = field(default=_nothing)
    kept: Callable[[Sequence[Any]], tuple[Any, ...]] = field(default=_none)
    comparable: bool = True
    length: int = 1024
    reference: Callable[[Sequence[Any]], Part] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    formats: tuple[str, ...] = ()
    searched: bool = False
    rival: Measurement | None = None
    peer: str = "torch"
    exact: bool = False

    @property
    def inputs(self) -> tuple[TensorDescriptor, ...]:
        """What is read."""
        return self.problem.inputs

    @property
    def outputs(self) -> tuple[TensorDescriptor, ...]:
        """What is written; the first is compared."""
        return self.problem.outputs

    @property
    def changes_outputs(self) -> bool:
        """Whether what outputs held counts."""
        return bool(self.beta) or isinstance(self.problem, Operations)

    @property
    def nbytes(self) -> int:
        """Fewest bytes that can be moved: each tensor once, the output twice where it is blended."""
        blended = self.problem.outputs if self.beta else ()
        return sum(tensor.nbytes for tensor in (*self.moved, *blended))

    @property
    def row(self) -> dict[str, Any]:
        """What tells its row from others."""
        return dict(self.fields) or {"name": self.name}
