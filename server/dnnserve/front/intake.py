"""Requests on their way to the queue: those that come together are queued together, and wake a device once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from dnnserve.envelope import InferenceRequest
from dnnserve.front.call import Call

__all__ = ["Intake", "Queue"]

_MOST_TOGETHER = 32
"""Requests that may wait for those behind them: to wake a device costs as much as a few of them do."""


class Queue(Protocol):
    """What is used here of the scheduler."""

    def submit(self, *requests: InferenceRequest) -> None:
        """Queue requests, whose completions go to their sinks."""
        ...

    def cancel(self, ticket: int) -> None:
        """Complete a request as cancelled, if it has not been completed."""
        ...


class Intake:
    """Gives requests to the queue, and cancels them there. Thread-safe: `_gathered` belongs to the thread that gathers.

    An idle device that is woken for the first of many requests runs it alone, and the next few meanwhile cost a batch of their own.
    One thread, that which takes calls, knows what else has come already: it gathers, and flushes when there is no more.

    Args:
        queue: Where requests go.
        take_back: Given each request that the queue failed to take, and why.
        hurries: Whether nothing is to be gathered now: what becomes of a request says what is done with calls that have come.

    Attributes:
        holds: Whether something has been gathered.
    """

    def __init__(
        self,
        queue: Queue,
        take_back: Callable[[InferenceRequest, Exception], None],
        hurries: Callable[[], bool] = lambda: False,
    ) -> None:
        self.holds = False
        self._queue = queue
        self._take_back = take_back
        self._hurries = hurries
        self._gathering: int | None = None
        self._gathered: list[tuple[InferenceRequest, Call]] = []

    def submit(self, request: InferenceRequest, call: Call) -> None:
        """Queue a request, which is cancelled with its call."""
        if threading.get_ident() != self._gathering:
            self._submit([(request, call)])
            return
        self._gathered.append((request, call))
        self.holds = True
        if len(self._gathered) >= _MOST_TOGETHER or self._hurries():
            self.flush()

    def flush(self) -> None:
        """Queue what the calling thread has gathered; what it submits from now on waits for its next call, or until there are many.

        No other thread calls this.
        """
        self._gathering = threading.get_ident()
        if self._gathered:
            gathered, self._gathered, self.holds = self._gathered, [], False
            self._submit(gathered)

    def _submit(self, requests: list[tuple[InferenceRequest, Call]]) -> None:
        try:
            self._queue.submit(*[request for request, _ in requests])
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for an answer
            for request, _ in requests:
                self._take_back(request, error)
            return
        # After submit: a cancellation by a ticket that the scheduler does not know yet would be lost. One that comes after the
        # completion meets an unknown ticket again.
        for request, call in requests:
            call.on_cancel(partial(self._queue.cancel, request.ticket))
