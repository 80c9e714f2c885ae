"""Who is inside: calls that were taken in and whose answers have not been sent."""

from __future__ import annotations

import threading

__all__ = ["Gate"]


class Gate:
    """Counts calls. Thread-safe: `_lock` guards `_inside`; `_idle` is a condition on it.

    A call counts until its answer has been sent, so whoever waits here loses no answer by stopping the server afterwards.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._inside = 0

    @property
    def inside(self) -> int:
        """Calls that were taken in and whose answers have not been sent."""
        return self._inside

    def enter(self) -> None:
        """Count a call in."""
        with self._lock:
            self._inside += 1

    def leave(self) -> None:
        """Count a call out."""
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._idle.notify_all()

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until nobody is inside; False: somebody still is."""
        with self._idle:
            return self._idle.wait_for(lambda: self._inside == 0, timeout_s)
