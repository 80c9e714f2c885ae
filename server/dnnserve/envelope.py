"""What travels between a front end and the scheduler: the request's envelope, and how it was answered.

Nothing here knows gRPC, threads or devices, so a front end in another process can fill in the same envelope. Times are
nanoseconds of one monotonic clock; they travel with the request, and metrics are computed from them alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from dnnserve.errors import RequestError
from dnnserve.processes.arena import Arena

__all__ = ["Answer", "BatchTimes", "Block", "Completion", "CompletionSink", "InferenceRequest", "ModelKey", "OwnBlock"]

_tickets = itertools.count(1)


class ModelKey(NamedTuple):
    """One loaded version of one model. Immutable; a tuple, because it is looked up several times for each request.

    Args:
        name: Of the model.
        version: Its number.
        load: Tells two loads of a version apart: of other files, or by another configuration.
    """

    name: str
    version: int
    load: int = 0

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"


class BatchTimes(NamedTuple):
    """When a batch passed each stage on its device. Immutable.

    Args:
        taken_ns: A runner took it: its requests' time in the queue ends.
        staged_ns: Its rows are in the executor's input buffer.
        inferred_ns: Its outputs are on the host.
        finished_ns: Each request has its own rows.
    """

    taken_ns: int
    staged_ns: int
    inferred_ns: int
    finished_ns: int


class Block(Protocol):
    """The rows of a request and the room for its outputs, wherever they lie: an array for each input of the model's signature, in
    its order, and one for each output that is wanted. Thread-safe: rows are not changed while somebody may read them, and outputs
    are written by one device at a time.
    """

    def __len__(self) -> int:
        """How many rows."""
        ...

    @property
    def pixels(self) -> bool:
        """Whether rows are uint8 [n, H, W, C] that the device makes the net's only input of; else they are the inputs."""
        ...

    @property
    def wanted(self) -> tuple[int, ...]:
        """Numbers of the outputs that are wanted, in the signature."""
        ...

    @property
    def place(self) -> tuple[Arena, int] | None:
        """Where other processes find it: the arena, and the offset of an `ArenaBlock`; None: in this process alone."""
        ...

    @property
    def page_locked(self) -> bool:
        """Whether the device of this process copies the rows from where they are beside the processor, until it lets go of them."""
        ...

    def read(self) -> Sequence[np.ndarray]:
        """Views of the rows of each input."""
        ...

    def write(self, outputs: Mapping[int, np.ndarray], first: int = 0) -> None:
        """Copy rows of those outputs that are wanted to where the front end finds them.

        Args:
            outputs: By number; of more requests than this.
            first: Where this one's rows begin.
        """
        ...

    def hold(self) -> None:
        """A device has the block from now on, which may read and write it whatever becomes of the request."""
        ...

    def release(self) -> None:
        """It has not any more."""
        ...


class OwnBlock:
    """A block in this process's memory, which lasts as long as anybody refers to it. Thread-safe, as `Block` says.

    Args:
        rows: [n, ...] of each input; not to be changed until the request is answered.
        pixels: Whether they are uint8 [n, H, W, C] in place of the only input.
        wanted: Numbers of the outputs that are wanted.

    Attributes:
        outputs: [n, ...] of each output that is wanted, by its number, once they have been written.
    """

    __slots__ = ("_rows", "outputs", "pixels", "wanted")

    place = None
    page_locked = False

    def __init__(self, rows: Sequence[np.ndarray], *, pixels: bool = False, wanted: tuple[int, ...] = (0,)) -> None:
        self._rows = rows
        self.pixels = pixels
        self.wanted = wanted
        self.outputs: Mapping[int, np.ndarray]

    def __len__(self) -> int:
        return len(self._rows[0])

    def read(self) -> Sequence[np.ndarray]:
        """The rows."""
        return self._rows

    def write(self, outputs: Mapping[int, np.ndarray], first: int = 0) -> None:
        """Keep copies of the outputs."""
        end = first + len(self._rows[0])
        self.outputs = {number: outputs[number][first:end].copy() for number in self.wanted}

    def hold(self) -> None:
        """Nobody gives the memory to another request."""

    def release(self) -> None:
        """As `hold`."""


class Answer(NamedTuple):
    """That the outputs of a request are in its block. Immutable; one for all requests of a batch.

    Args:
        device: Name of the device that computed them.
        batch_rows: Rows of the whole batch, without padding.
        times: Of the batch.
    """

    device: str
    batch_rows: int
    times: BatchTimes


@dataclass(slots=True, eq=False)
class InferenceRequest:
    """Envelope of one request. Not changed once it is made; not frozen, because that would make it three times as dear.

    Args:
        model: The loaded version that shall answer.
        block: Its rows, at least 1, and the room for its outputs.
        arrival_ns: When the front end got it.
        deadline_ns: It is not answered from this moment on; None: it waits as long as it takes.
        sink: Gets this request's only completion, in a list with the others of its batch.
        priority: 1 is the most important level, 0 stands for the default one; see `dnnserve.scheduling.entry`.
        ticket: Its number in this process, by which it is cancelled.
    """

    model: ModelKey
    block: Block
    arrival_ns: int
    deadline_ns: int | None
    sink: CompletionSink
    priority: int = 0
    ticket: int = field(default_factory=lambda: next(_tickets))


class Completion(NamedTuple):
    """How one request ended: with an answer, or with the error that its client gets. Immutable; a tuple, as it is quick to make."""

    request: InferenceRequest
    outcome: Answer | RequestError
    finished_ns: int


CompletionSink = Callable[[Sequence[Completion]], None]
"""Called once per batch, from the thread that completed it; must not block and must not raise."""
