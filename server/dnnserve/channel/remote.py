"""The front end's end of the channel: it stands where the scheduler would, and where its statistics would."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from dnnserve.channel import messages
from dnnserve.channel.blocks import Blocks
from dnnserve.envelope import Answer, BatchTimes, Completion, CompletionSink, InferenceRequest, ModelKey
from dnnserve.errors import InvalidRequestError, QueueFullError, RequestError, UnavailableError
from dnnserve.processes.arena import Arena, ArenaBlock
from dnnserve.processes.link import Link
from dnnserve.questions import Answer as Told
from dnnserve.questions import Question
from dnnserve.signature import Signature
from dnnserve.statistics import ModelSnapshot

__all__ = ["RemoteControl", "RemoteScheduler", "RemoteStatistics"]

_RETRY_MS = 20
_PATIENCE_S = 2.0
_MOST_TOGETHER = 256
_CROWD = 16
_PAUSE_S = 2e-3
_TOLD_EVERY_S = 0.05
_MOST_TOLD = 4096


class RemoteScheduler:
    """Submits to the scheduler in another process. Thread-safe: `_lock` guards `_blocks`, `_waiting` and `_held`.

    A request's rows are copied once, into the arena that all processes map; its outputs come back in the same block, which is given
    to another request when nobody else has it any more. A thread of its own sends what has been collected since it did so last: at
    once while few requests are on their way, else five hundred times a second, because each message costs the other process more
    than the requests in it.

    Args:
        link: To the other process.
        arena: The shared memory, a power of two of bytes.
        clock: Monotonic nanoseconds, which both processes count alike.
    """

    def __init__(self, link: Link, arena: Arena, clock: Callable[[], int]) -> None:
        self._link = link
        self._arena = arena
        self._clock = clock
        self._lock = threading.Lock()
        self._blocks = Blocks(len(arena.bytes))
        self._waiting: dict[int, tuple[InferenceRequest, ArenaBlock]] = {}
        self._held: dict[int, ArenaBlock] = {}  # of requests that were given up while a device had them
        self._freed: set[int] = set()  # of such requests, whose refusal comes behind the word that their block is free
        self._lost = ""  # why nobody answers any more
        self._models: dict[ModelKey, tuple[int, Signature]] = {}  # its number, and what it reads and gives
        self._outbox: queue.SimpleQueue[tuple[Any, ...] | int | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, name="dnnserve-requests", daemon=True)
        self._sender.start()

    def serve(self, models: messages.Models) -> None:
        """Take requests for these models too."""
        self._models |= {spec.key: (number, spec.signature) for number, spec in models}

    def forget(self, model: ModelKey) -> None:
        """A model is gone; no request for it comes any more."""
        self._models.pop(model, None)

    def submit(self, *requests: InferenceRequest) -> None:
        """Queue requests, whose completions go to their sinks; a full arena refuses them at once."""
        for request in requests:
            self._submit(request)

    def _submit(self, request: InferenceRequest) -> None:
        own = request.block
        rows, pixels, wanted = len(own), own.pixels, own.wanted
        model, signature = self._models[request.model]
        layout = signature.layout(rows, pixels=pixels, wanted=wanted)
        block: ArenaBlock | None = None
        with self._lock:
            offset = self._blocks.take(layout.nbytes)
            if offset is not None:
                block = ArenaBlock(self._arena, offset, layout, pixels=pixels)
                self._waiting[request.ticket] = request, block
        if block is None:
            request.sink([Completion(request, self._no_room(layout.nbytes), self._clock())])
            return
        block.fill(own.read())
        times = request.arrival_ns, request.deadline_ns
        fields = (request.ticket, model, block.offset, rows, pixels, wanted, *times, request.priority)
        self._outbox.put(tuple(messages.Submit(*fields)))
        if self._lost:
            self.lose(self._lost)

    def cancel(self, ticket: int) -> None:
        """Complete a request as cancelled, if it has not been completed."""
        if ticket in self._waiting:
            self._outbox.put(ticket)

    def complete(self, note: tuple[Any, ...]) -> None:
        """Deliver what the scheduler has completed: the fields of `Outcomes`."""
        answered, refused, freed = messages.Outcomes(*note)
        by_sink: dict[CompletionSink, list[Completion]] = {}
        back: list[ArenaBlock] = []
        for fields in answered:
            tickets, device, batch_rows, times, finished_ns = messages.Answered(*fields)
            answer = Answer(device, batch_rows, BatchTimes(*times))
            for ticket in tickets:
                request, block = self._waiting.pop(ticket)
                request.block.write(block.outputs())
                by_sink.setdefault(request.sink, []).append(Completion(request, answer, finished_ns))
                back.append(block)
        for fields in refused:
            refusal = messages.Refused(*fields)
            request, block = self._waiting.pop(refusal.ticket)
            by_sink.setdefault(request.sink, []).append(Completion(request, refusal.error, refusal.finished_ns))
            if refusal.held and refusal.ticket not in self._freed:
                self._held[refusal.ticket] = block
            else:
                self._freed.discard(refusal.ticket)
                back.append(block)
        for ticket in freed:
            held = self._held.pop(ticket, None)
            if held is None:  # two threads tell, and neither waits for the other
                self._freed.add(ticket)
            else:
                back.append(held)
        with self._lock:
            for block in back:
                self._blocks.give_back(block.offset)
        for sink, completions in by_sink.items():
            sink(completions)

    def lose(self, reason: str) -> None:
        """Answer everything that waits as unavailable, and what still comes: nobody else will."""
        self._lost = reason
        self._outbox.put(None)
        with self._lock:
            lost, self._waiting = list(self._waiting.values()), {}
        now_ns = self._clock()
        for request, _ in lost:
            request.sink([Completion(request, UnavailableError(f"{reason}; retry"), now_ns)])

    def _no_room(self, nbytes: int) -> RequestError:
        there = len(self._arena.bytes)
        if nbytes > there:
            return InvalidRequestError(
                f"the request and its answer take {nbytes} bytes, and a front end has {there >> 20} MiB for all that wait: send "
                "fewer rows, or start the server with a larger --front-memory-mib"
            )
        error = QueueFullError(f"requests that wait fill this front end's {there >> 20} MiB; retry later")
        error.retry_after_ms = _RETRY_MS
        return error

    def _send(self) -> None:
        while True:
            items = [self._outbox.get()]
            items += [self._outbox.get() for _ in range(min(self._outbox.qsize(), _MOST_TOGETHER))]
            submits = tuple(item for item in items if isinstance(item, tuple))
            cancels = tuple(item for item in items if isinstance(item, int))
            try:
                self._link.note(tuple(messages.Requests(submits, cancels)))
            except OSError:  # the other process has ended, or there is no descriptor for what is large
                self._link.shut_down()  # whoever listens finds out, and nobody waits for what was not sent
                return
            if None in items:
                return
            if len(self._waiting) >= _CROWD:
                time.sleep(_PAUSE_S)


class RemoteStatistics:
    """Counters that are kept in another process. Thread-safe.

    Calls that end are told in bundles, twenty times a second, by a thread of its own: no answer waits for a message about it.

    Args:
        link: To the other process.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._ended: queue.SimpleQueue[tuple[ModelKey | None, str, str, Sequence[int]]] = queue.SimpleQueue()
        self._refused: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._away: queue.SimpleQueue[tuple[ModelKey, str, str, int]] = queue.SimpleQueue()
        self._snapshots: queue.SimpleQueue[messages.SnapshotOf] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._closing = threading.Event()
        self._teller = threading.Thread(target=self._tell, name="dnnserve-counts", daemon=True)
        self._teller.start()

    def record_calls(self, model: ModelKey | None, method: str, status: str, taken_ns: Sequence[int]) -> None:
        """Count calls that ended alike."""
        self._ended.put((model, method, status, taken_ns))

    def record_refused_connections(self, port: str, count: int) -> None:
        """Count connections that were closed again."""
        self._refused.put((port, count))

    def record_refusal(self, model: ModelKey, error: Exception, total_ns: int) -> None:
        """Count a request that failed before it was submitted."""
        with contextlib.suppress(OSError):
            self._link.send(messages.Refusal(model, type(error).__name__, str(error), total_ns))

    def record_turned_away(self, model: ModelKey, error: RequestError, count: int) -> None:
        """Count requests that were refused unread."""
        self._away.put((model, type(error).__name__, str(error), count))

    def snapshot(self, model: ModelKey) -> ModelSnapshot:
        """The counters of one model now.

        Raises:
            UnavailableError: the other process does not answer.
        """
        with self._asking:
            try:
                self._link.send(messages.Snapshot(model))
                while (answer := self._snapshots.get(timeout=_PATIENCE_S)).model != model:
                    pass  # the answer to a question that was given up
            except (OSError, queue.Empty):
                raise UnavailableError("the counters are in another process, which does not answer; retry") from None
            return answer.counters

    def deliver(self, snapshot: messages.SnapshotOf) -> None:
        """Hand over the answer to `snapshot`."""
        self._snapshots.put(snapshot)

    def close(self) -> None:
        """Tell what has not been told yet."""
        self._closing.set()
        self._teller.join()

    def _tell(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(_TOLD_EVERY_S)
            alike: dict[tuple[ModelKey | None, str, str], list[int]] = {}
            for model, method, status, taken_ns in [self._ended.get() for _ in range(self._ended.qsize())]:
                alike.setdefault((model, method, status), []).extend(taken_ns)
            for call, taken in alike.items():
                for first in range(0, len(taken), _MOST_TOLD):
                    with contextlib.suppress(OSError):
                        self._link.send(messages.CallsEnded(*call, taken[first : first + _MOST_TOLD]))
            refused: Counter[str] = Counter()
            for port, count in [self._refused.get() for _ in range(self._refused.qsize())]:
                refused[port] += count
            away: Counter[tuple[ModelKey, str, str]] = Counter()
            for model, kind, text, count in [self._away.get() for _ in range(self._away.qsize())]:
                away[model, kind, text] += count
            for what, count in away.items():
                with contextlib.suppress(OSError):
                    self._link.send(messages.TurnedAway(*what, count))
            for port, count in refused.items():
                with contextlib.suppress(OSError):
                    self._link.send(messages.ConnectionsRefused(port, count))


class RemoteControl:
    """The server, which is another process. Thread-safe: operations of `_waiting` are atomic.

    Args:
        link: To the other process.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._tickets = itertools.count(1)
        self._waiting: dict[int, Callable[[Told], None]] = {}

    def ask(self, question: Question, answer: Callable[[Told], None]) -> None:
        """Have a question answered.

        Raises:
            UnavailableError: the other process has ended.
        """
        ticket = next(self._tickets)
        self._waiting[ticket] = answer
        try:
            self._link.send(messages.Asked(ticket, question))
        except OSError:
            del self._waiting[ticket]
            raise UnavailableError("the server's process has ended; retry, or ask another replica") from None

    def deliver(self, told: messages.Told) -> None:
        """Hand over an answer."""
        self._waiting.pop(told.ticket)(told.answer)
