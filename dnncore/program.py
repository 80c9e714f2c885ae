"""A recorded sequence of launches, and one launch made of it.

Recording costs one pass through the ordinary operations. A program is data: it can be printed, run launch by launch, and captured
as a CUDA graph, which costs the host one call however long it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from dnncore.backend import TICKET_BYTES, Address, Bound, BoundGraph, Memory, Move, Stream
from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError, ClosedError
from dnncore.plan import Plan, summary
from dnncore.workspace import allocate

if TYPE_CHECKING:
    from dnncore.handle import Handle
    from dnncore.tensor import Tensor

__all__ = ["SCRATCH", "CapturedProgram", "Program", "Span", "Step", "WiredStep"]

SCRATCH = -1
"""What a wired step calls the scratch memory that it is launched with: the last of the addresses."""


class Span(Protocol):
    """Memory that programs use: a `Tensor` or an `Arena`."""

    @property
    def handle(self) -> Handle:
        """Its owner."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether operations refuse to write it."""
        ...

    @property
    def pointer(self) -> int:
        """Where it begins, as a number."""
        ...

    @property
    def address(self) -> Address:
        """Where it begins, for a backend's launches."""
        ...

    @property
    def nbytes(self) -> int:
        """How many bytes of it are used."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One launch with its operands' addresses. Immutable; valid as long as the tensors it was recorded with.

    Args:
        plan: What runs.
        alpha: Factor of the operation's result.
        beta: Factor of what the outputs held.
        addresses: Of the inputs and the outputs, in the problem's order.
    """

    plan: Plan
    alpha: float
    beta: float
    addresses: Sequence[Address] = field(repr=False)


@dataclass(frozen=True, slots=True)
class WiredStep:
    """One launch whose operands are named by their places among addresses that come later. Immutable.

    Args:
        plan: What runs.
        alpha: Factor of the operation's result.
        beta: Factor of what the outputs held.
        operands: Of the inputs and the outputs, in the problem's order: the number of an address, or `SCRATCH`, and bytes from
            there.
    """

    plan: Plan
    alpha: float
    beta: float
    operands: tuple[tuple[int, int], ...]


@dataclass
class Program:
    """Launches in the order in which they were recorded by `Handle.record`. Owned by one thread; its handle checks.

    Args:
        handle: Whose launches they are.
        steps: What was recorded.
    """

    handle: Handle = field(repr=False)
    steps: list[Step] = field(default_factory=list)

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory that the largest step takes: they run one after the other."""
        return max((step.plan.workspace_bytes for step in self.steps), default=0)

    def run(self) -> None:
        """Enqueue every step on the handle's stream."""
        for step in self.steps:
            self.handle.enqueue(step.plan, step.alpha, step.beta, step.addresses)

    def capture(self, moves: Mapping[Span, Span] | None = None, workspace: Tensor | None = None) -> CapturedProgram:
        """Make one launch of all steps, a CUDA graph on CUDA.

        A program that is captured twice can run on two streams at a time, if what it writes is moved elsewhere for one of them.

        Args:
            moves: Other memory for tensors, or arenas, that the program was recorded with.
            workspace: `TICKET_BYTES` zeros and then `workspace_bytes` or more, which others on the handle's stream may use too, and
                which stays as long as the capture; None for a workspace of its own.

        Raises:
            BadParamError: what takes the place of something is smaller, of another handle, or read-only; or the workspace is.
            OutOfMemoryError: the device has no room for the workspace or the graph.
        """
        return CapturedProgram(self, moves or {}, workspace)

    def describe(self) -> str:
        """What runs, as a table to read: for each step its algorithm, time, bytes, FLOPs, kernels, grids and blocks."""
        lines = []
        for number, step in enumerate(self.steps):
            lines.append(f"{number:4d}  {summary(step.plan)}")
            lines += [f"        {line}" for line in step.plan.device.describe(step.plan.work)]
        plans = [step.plan for step in self.steps]
        nbytes, macs = sum(sum(plan.nbytes) for plan in plans), sum(plan.problem.macs for plan in plans)
        seconds, measured = sum(plan.offer.seconds for plan in plans), sum(plan.offer.is_measured for plan in plans)
        known = f" ({measured} of them measured)" if measured else ""
        lines.append(
            f"{len(plans)} steps{known}: {seconds * 1e3:.3f} ms estimated, {nbytes / 1e6:.3g} MB of operands, "
            f"{2 * macs / 1e9:.3g} GFLOP, {self.workspace_bytes} B of workspace"
        )
        return "\n".join(lines)


def _constants(program: Program) -> list[frozenset[int]]:
    """For each step the operands that no step writes, by number; none where addresses are no numbers."""
    steps = program.steps
    if not program.handle.device.addresses_are_pointers:
        return [frozenset()] * len(steps)
    spans = [
        [(start, start + nbytes) for start, nbytes in zip(step.addresses, step.plan.nbytes, strict=True)]
        for step in steps
    ]
    written = sorted(
        span for step, of_step in zip(steps, spans, strict=True) for span in of_step[len(step.plan.problem.inputs) :]
    )
    starts = [start for start, _ in written]
    ends = list(accumulate((end for _, end in written), max))  # of those up to each

    def is_written(start: int, end: int) -> bool:
        before = bisect_left(starts, end)
        return before > 0 and ends[before - 1] > start

    return [frozenset(i for i, span in enumerate(of_step) if not is_written(*span)) for of_step in spans]


class CapturedProgram:
    """A program as one launch, at addresses that stay. Owned by one thread; its handle checks. Made by `Program.capture`.

    It holds its own workspace, where it has one, until `close`, at the latest until its handle is closed. The tensors that it reads
    and writes are the caller's to keep.
    """

    def __init__(self, program: Program, moves: Mapping[Span, Span], workspace: Tensor | None) -> None:
        self._handle = handle = program.handle
        handle.check_not_recording("a capture")
        self._memory: Memory | None = None
        with ExitStack() as undo:
            scratch: Address | None = None
            if workspace is not None:
                _check_takes_the_place(
                    workspace, handle, TICKET_BYTES + program.workspace_bytes, "the workspace needed"
                )
                if program.workspace_bytes:
                    behind = TensorDescriptor.packed((program.workspace_bytes,), "int8")
                    scratch = workspace.view(behind, TICKET_BYTES).address
            elif program.workspace_bytes:
                self._memory = allocate(handle.device, program.workspace_bytes)
                undo.callback(self._memory.close)
                scratch = self._memory.at(TICKET_BYTES)
            steps = [
                Bound(
                    step.plan.work,
                    step.alpha,
                    step.beta,
                    (*step.addresses, scratch if step.plan.workspace_bytes else None),
                    constants,
                )
                for step, constants in zip(program.steps, _constants(program), strict=True)
            ]
            self._graph: BoundGraph | None = handle.device.capture(steps)
            undo.callback(self._graph.close)
            self.move(moves)
            handle.keep(self)
            undo.pop_all()

    def _open(self) -> BoundGraph:
        self._handle.check_not_recording("a captured program")
        if self._graph is None:
            raise ClosedError("a captured program was used after close()")
        return self._graph

    def run(self, stream: Stream | None = None) -> None:
        """Enqueue it: one launch.

        Args:
            stream: Where: one of the handle's device (`handle.device.create_stream()`), which the caller orders after what wrote
                the inputs; None for the handle's own. Two captures that share no memory run side by side on two streams.
        """
        self._open().launch(self._handle.stream if stream is None else stream)

    def move(self, moves: Mapping[Span, Span]) -> None:
        """Let the launches from now on use other memory; those under way keep what they have.

        Args:
            moves: Other memory for what the program was recorded with, whatever took its place since; what is not named stays
                where it is. As large or larger, and laid out alike: strides and offsets are those that were recorded. That memory
                which must keep apart still does is the caller's to see.

        Raises:
            BadParamError: what takes the place of something is smaller, of another handle, or read-only.
        """
        graph = self._open()
        found: list[Move] = []
        for old, new in moves.items():
            _check_takes_the_place(new, self._handle, old.nbytes, f"{old}, whose place it would take,")
            found.append((old.pointer, old.pointer + old.nbytes, new.address))
        graph.move(found)

    def close(self) -> None:
        """Give graph and workspace back; a second call does nothing."""
        if self._graph is None:
            return
        self._handle.let_go(self)
        graph, memory, self._graph, self._memory = self._graph, self._memory, None, None
        graph.close()
        if memory is not None:
            self._handle.stream.synchronize()
            memory.close()

    def abandon(self) -> None:
        """`close`, from whichever thread, for an owner that has ended and whose stream has nothing left to do."""
        graph, memory, self._graph, self._memory = self._graph, self._memory, None, None
        if graph is not None:
            graph.abandon()
        if memory is not None:
            memory.abandon()


def _check_takes_the_place(new: Span, handle: Handle, nbytes: int, what: str) -> None:
    if new.handle is not handle or new.read_only:
        raise BadParamError(f"{new} {'is read-only' if new.read_only else 'belongs to another handle'}")
    if new.nbytes < nbytes:
        raise BadParamError(f"{new} has {new.nbytes} B; {what} has {nbytes} B")
