"""One front end's process, from the server's side: what it is told and asked, and what it asks for."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dnnserve import errors
from dnnserve.catalog import ModelSpec
from dnnserve.channel import messages
from dnnserve.channel.port import Port, Scheduling
from dnnserve.connections import RefusalsObserver
from dnnserve.envelope import ModelKey
from dnnserve.errors import RequestError, StartError
from dnnserve.front.service import CallsObserver, Counters
from dnnserve.processes.arena import Arena
from dnnserve.processes.child import Child
from dnnserve.processes.outbox import Outbox
from dnnserve.processes.receiver import Receiver
from dnnserve.processes.signs_of_life import SignsOfLife
from dnnserve.questions import Answer, Control

__all__ = ["FrontProcess", "Shared"]

_log = logging.getLogger(__name__)

_START_S = 60.0
_ANSWER_S = 2.0
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What all processes share here. Immutable, but for `models`, whose operations are atomic.

    Args:
        scheduler: Where requests go.
        statistics: Counters of the models.
        on_calls_end: Told of the ends of calls.
        on_refused: Told of connections that are closed again.
        control: The server.
        models: Those there are, by number.
        receiver: Hears what they say.
    """

    scheduler: Scheduling
    statistics: Counters
    on_calls_end: CallsObserver
    on_refused: RefusalsObserver
    control: Control
    models: dict[int, ModelSpec]
    receiver: Receiver


class FrontProcess:
    """A process that takes calls. Thread-safe; a thread of its own waits for its end.

    Args:
        child: The process.
        shared: What it has in common with others.
        number: Its place among them.
        on_lost: Called by that thread when it has ended: with this, how it ended, and after how many seconds.

    Attributes:
        signs: Of life.
    """

    def __init__(
        self, child: Child, shared: Shared, number: int, on_lost: Callable[[FrontProcess, str, float], None]
    ) -> None:
        self.number = number
        self._child = child
        self._shared = shared
        self._on_lost = on_lost
        self._outbox = Outbox(child.link, f"dnnserve-outbox-{number}")
        self._port: Port | None = None
        self._ended = False
        self._serves = False
        self.signs = SignsOfLife()
        self._answers: dict[type, queue.SimpleQueue[Any]] = {
            kind: queue.SimpleQueue()
            for kind in (
                *(Arena, messages.Started, messages.Inside, messages.Served, messages.Held, messages.Known),
                messages.Stopped,
            )
        }
        self._why = ""
        self._began = time.monotonic()
        self._silent = threading.Event()  # nothing more is heard of it
        # Begun now: when a process is lost for want of memory, there may be no room for a thread.
        self._keeper = threading.Thread(target=self._await_end, name=f"dnnserve-front-{number}", daemon=True)
        self._keeper.start()
        shared.receiver.add(child.link, self._hear, self._end)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._child.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._ended

    def tell(self, message: object, fds: Sequence[int] = ()) -> None:
        """Send a message, and files with it, whose descriptors are duplicated; to one that has ended, nothing. Does not wait.

        Raises:
            OSError: there is no descriptor for a file.
        """
        self._outbox.send(message, fds)

    def look(self) -> None:
        """Ask for a sign of life, and kill a process that serves and has answered none of the last looks."""
        if not self._serves or self._ended:
            return
        if not self.signs.look():
            _log.error("front end %d, process %d, does not answer: it is killed", self.number, self.pid)
            self._child.kill()
        self.tell(messages.Ping())

    def start(self, models: messages.Models) -> None:
        """Have it take calls for these models.

        Raises:
            StartError: it has ended, or does not answer.
        """
        arena = self._wait(Arena, _START_S)
        self._port = Port(self._shared.scheduler, self._outbox, arena, self._shared.models)
        self.tell(messages.Start(models))

    def wait_started(self) -> str:
        """Wait until it takes calls: over which front end.

        Raises:
            StartError: it has ended, or does not answer.
        """
        kind = self._wait(messages.Started, _START_S).front_end
        self._serves = True
        return kind

    def wait_served(self) -> None:
        """Wait until it gives requests to the models that it was told.

        Raises:
            StartError: it has ended, or does not answer.
        """
        self._wait(messages.Served, _ANSWER_S)

    def wait_known(self, ticket: int) -> None:
        """Wait until it has said that it knows what it was told by this ticket.

        Raises:
            StartError: it has ended, does not answer, or cannot know it.
        """
        while (known := self._wait(messages.Known, _ANSWER_S)).ticket != ticket:
            pass  # of something that was given up, or that it was told at its start
        if known.failure:
            raise StartError(f"front end {self.number} cannot: {known.failure}")

    def holds(self, model: ModelKey) -> bool:
        """Whether a request of its was given to a model, and has no answer yet."""
        if self._ended:
            return False
        self.tell(messages.Holds(model))
        try:
            while (answer := self._wait(messages.Held, _ANSWER_S)).model != model:
                pass  # the answer to a question that was given up
        except StartError:
            return not self._ended
        return answer.held

    def inside(self) -> int:
        """Calls that it has taken in and whose answers it has not sent."""
        if self._ended:
            return 0
        self.tell(messages.Count())
        try:
            return self._wait(messages.Inside, _ANSWER_S).calls
        except StartError:
            return 0

    def close(self, grace_s: float) -> None:
        """Wait until it has stopped, which takes so long, and let it end."""
        with contextlib.suppress(StartError):
            self._wait(messages.Stopped, grace_s + _ANSWER_S)
        self._child.link.shut_down()
        if threading.current_thread() is not self._keeper:
            self._keeper.join()
        self._child.close()

    def _wait(self, kind: type[_Answer], timeout_s: float) -> _Answer:
        try:
            answer = self._answers[kind].get(timeout=timeout_s)
        except queue.Empty:
            raise StartError(f"front end {self.number} does not answer") from None
        if not isinstance(answer, kind):
            self._answers[kind].put(answer)  # whoever asks next hears the same, at once
            raise StartError(self._why or f"front end {self.number} has ended")
        return answer

    def _ask(self, asked: messages.Asked) -> None:
        def tell(answer: Answer) -> None:
            self._outbox.send(messages.Told(asked.ticket, answer))

        self._shared.control.ask(asked.question, tell)

    def _end(self, failure: Exception | None) -> None:
        if failure is not None:
            # Whatever it is, nobody reads what the process says.
            _log.error("front end %d, process %d, is given up", self.number, self.pid, exc_info=failure)
            self._child.kill()
        self._ended = True
        self._silent.set()

    def _await_end(self) -> None:
        self._silent.wait()
        how = "an end that nobody saw"
        try:
            if self._port is not None:
                self._port.close()
            self._outbox.close()
            for waiting in self._answers.values():
                waiting.put(None)  # who waits gets no other answer
            how = self._child.wait()
            self._child.close()
        finally:  # whatever could not be closed, another one takes its place
            self._on_lost(self, how, time.monotonic() - self._began)

    def _hear(self, message: Any, fds: Sequence[int]) -> None:
        """Do what the process asks. Nothing here sends: who receives must go on receiving."""
        if type(message) is tuple:
            assert self._port is not None
            self._port.take(message)
        elif isinstance(message, messages.CallsEnded):
            self._shared.on_calls_end(*message)
        elif isinstance(message, messages.ConnectionsRefused):
            self._shared.on_refused(*message)
        elif isinstance(message, messages.Refusal):
            kind = getattr(errors, message.kind, RequestError)
            self._shared.statistics.record_refusal(message.model, kind(message.text), message.taken_ns)
        elif isinstance(message, messages.TurnedAway):
            kind = getattr(errors, message.kind, RequestError)
            self._shared.statistics.record_turned_away(message.model, kind(message.text), message.calls)
        elif isinstance(message, messages.Snapshot):
            counters = self._shared.statistics.snapshot(message.model)
            self._outbox.send(messages.SnapshotOf(message.model, counters))
        elif isinstance(message, messages.Pong):
            self.signs.seen()
        elif isinstance(message, messages.Asked):
            self._ask(message)
        elif isinstance(message, messages.CannotStart):
            self._why = message.reason
        elif isinstance(message, messages.Arena):
            self._answers[Arena].put(Arena(fds[0]))
        else:
            self._answers[type(message)].put(message)
