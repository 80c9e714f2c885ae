"""The thread that answers requests which expire while all devices are busy."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dnnserve.envelope import Completion

__all__ = ["Sweeper", "seconds_until"]

_LONGEST_WAIT_S = 3600.0
_SHORTEST_WAIT_S = 0.001


class Sweeper:
    """Sleeps until something expires. Its methods are called with the scheduler's lock, but for `start` and `join`.

    Args:
        lock: The scheduler's.
        clock: Monotonic nanoseconds.
        expire: Takes out what has expired; called with the lock.
        next_expiry_ns: When something does, None while nothing has a deadline; called with the lock.
        deliver: Delivers what `expire` gives; called without it.
    """

    def __init__(
        self,
        lock: threading.Lock,
        clock: Callable[[], int],
        expire: Callable[[], list[Completion]],
        next_expiry_ns: Callable[[], int | None],
        deliver: Callable[[list[Completion]], None],
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._expire = expire
        self._next_expiry_ns = next_expiry_ns
        self._deliver = deliver
        self._sooner = threading.Condition(lock)
        self._stopped = False
        self.wakes_ns: int | None = None
        """Until when it sleeps; None: until it is woken."""
        self._thread = threading.Thread(target=self._sweep, name="dnnserve-expiry", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether it sweeps."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to sweep."""
        self._thread.start()

    def hear_of(self, deadline_ns: int) -> None:
        """Something was queued that is due at a moment."""
        if self.wakes_ns is None or deadline_ns < self.wakes_ns:
            self._sooner.notify()

    def wake(self) -> None:
        """Look again at what is queued."""
        self._sooner.notify()

    def stop(self) -> None:
        """Sweep no more."""
        self._stopped = True
        self._sooner.notify()

    def join(self) -> None:
        """Wait for the end, after `stop`."""
        if self._thread.is_alive():
            self._thread.join()

    def _sweep(self) -> None:
        while True:
            with self._lock:
                if self._stopped:
                    return
                expired = self._expire()
                if not expired:
                    self.wakes_ns = self._next_expiry_ns()
                    self._sooner.wait(seconds_until(self.wakes_ns, self._clock))
                    continue
            self._deliver(expired)


def seconds_until(moment_ns: int | None, clock: Callable[[], int]) -> float | None:
    """How long a condition waits for a moment; None: until it is notified.

    A client may set any deadline, and waiting for longer than an hour at a time helps nobody: an interval that the platform cannot
    hold would end the thread that waits.
    """
    if moment_ns is None:
        return None
    return min(max(_SHORTEST_WAIT_S, (moment_ns - clock()) / 1e9), _LONGEST_WAIT_S)
