"""The blocking front end: from a handler thread of grpc.server to the scheduler and back.

A handler fills in an envelope, submits it and sleeps until its completion comes; a client that goes away cancels by ticket. The
scheduler knows none of this: a front end without threads (one that answers from completions directly) replaces this file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from dnnserve.envelope import Completion, InferenceRequest
from dnnserve.errors import UnavailableError

__all__ = ["CallContext", "Gate", "WaitingCalls"]


class CallContext(Protocol):
    """What is used here of grpc.ServicerContext."""

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Call back when the RPC has ended, however it did; False when it has ended already."""
        ...


class WaitingCalls:
    """Handler threads that wait for their completions, by ticket. Thread-safe: `_lock` guards `_waiting`."""

    def __init__(self, submit: Callable[[InferenceRequest], None], cancel: Callable[[int], None]) -> None:
        self._submit = submit
        self._cancel = cancel
        self._lock = threading.Lock()
        self._waiting: dict[int, _Call] = {}

    def run(self, request: InferenceRequest, context: CallContext) -> Completion:
        """Submit the request, whose sink is `deliver`, and wait for its completion, which always comes."""
        call = _Call()
        with self._lock:
            self._waiting[request.ticket] = call
        self._submit(request)
        # After submit: a cancellation by a ticket that the scheduler does not know yet would be lost. It comes too when the RPC
        # has ended well; by then the ticket is unknown again.
        if not context.add_callback(lambda: self._cancel(request.ticket)):
            self._cancel(request.ticket)
        return call.wait()

    def deliver(self, completions: Sequence[Completion]) -> None:
        """Wake the handlers of these completions; the sink of every request that is run here."""
        with self._lock:
            calls = [self._waiting.pop(completion.request.ticket) for completion in completions]
        for call, completion in zip(calls, completions, strict=True):
            call.complete(completion)


class _Call:
    """One handler's wait. Thread-safe."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._completion: Completion | None = None

    def complete(self, completion: Completion) -> None:
        self._completion = completion
        self._done.set()

    def wait(self) -> Completion:
        self._done.wait()
        assert self._completion is not None
        return self._completion


class Gate:
    """Lets inference RPCs in until it is closed, and knows when the last one has ended. Thread-safe: `_idle` guards all fields.

    An RPC counts until its answer has been sent, so whoever waits here loses no answer by stopping the server afterwards.
    """

    def __init__(self) -> None:
        self._idle = threading.Condition()
        self._inside = 0
        self._closed = False

    @property
    def inside(self) -> int:
        """RPCs that were let in and have not ended."""
        with self._idle:
            return self._inside

    def enter(self, context: CallContext) -> None:
        """Let an RPC in until it ends.

        Raises:
            UnavailableError: the gate is closed.
        """
        with self._idle:
            if self._closed:
                raise UnavailableError("the server is draining and takes no new requests; ask another replica")
            self._inside += 1
        if not context.add_callback(self._leave):
            self._leave()

    def close(self) -> None:
        """Let nobody in any more."""
        with self._idle:
            self._closed = True

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until nobody is inside; False: somebody still is."""
        with self._idle:
            return self._idle.wait_for(lambda: self._inside == 0, timeout_s)

    def _leave(self) -> None:
        with self._idle:
            self._inside -= 1
            if self._inside == 0:
                self._idle.notify_all()
