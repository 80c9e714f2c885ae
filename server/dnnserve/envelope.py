"""What travels between a front end and the scheduler: the request's envelope, and how it was answered.

Nothing here knows gRPC, threads or devices, so a front end in another process can fill in the same envelope. Times are
nanoseconds of one monotonic clock; they travel with the request, and metrics are computed from them alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dnnserve.errors import RequestError

__all__ = ["Answer", "BatchTimes", "Completion", "CompletionSink", "InferenceRequest", "ModelKey"]

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


@dataclass(frozen=True, slots=True)
class BatchTimes:
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


@dataclass(frozen=True, slots=True)
class Answer:
    """Outputs of one request. Immutable.

    Args:
        outputs: float32 [rows, K], owned by the request.
        device: Name of the device that computed them.
        batch_rows: Rows of the whole batch, without padding.
        times: Of the batch.
    """

    outputs: np.ndarray
    device: str
    batch_rows: int
    times: BatchTimes


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """Envelope of one request. Immutable.

    Args:
        model: The loaded version that shall answer.
        rows: float32 [n, C, H, W], or uint8 [n, H, W, C] pixels that the device normalises, n at least 1; read once, when the batch
            is staged, and until then not to be changed.
        arrival_ns: When the front end got it.
        deadline_ns: It is not answered from this moment on; None: it waits as long as it takes.
        sink: Gets this request's only completion, in a list with the others of its batch.
        id: The client's name for it, for logs.
        priority: 1 is the most important level, 0 stands for the default one; see `dnnserve.scheduling.entry`.
        ticket: Its number in this process, by which it is cancelled.
    """

    model: ModelKey
    rows: np.ndarray
    arrival_ns: int
    deadline_ns: int | None
    sink: CompletionSink
    id: str = ""
    priority: int = 0
    ticket: int = field(default_factory=lambda: next(_tickets))


@dataclass(frozen=True, slots=True)
class Completion:
    """How one request ended: with an answer, or with the error that its client gets. Immutable."""

    request: InferenceRequest
    outcome: Answer | RequestError
    finished_ns: int


CompletionSink = Callable[[Sequence[Completion]], None]
"""Called once a batch, from the thread that completed it; must not block and must not raise."""
