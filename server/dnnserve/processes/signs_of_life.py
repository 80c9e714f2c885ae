"""Whether a process still does anything: it is looked at again and again, and what it says meanwhile is a sign of life."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["LOOK_S", "Regularly", "SignsOfLife"]

LOOK_S = 1.0
_LOOKS = 10


class SignsOfLife:
    """Counts looks at a process that were not answered. Operations are atomic.

    They are counted, not timed: where all processes stood still for a while, this one too, it has time to answer the next.

    Attributes:
        unanswered: Looks since the last sign of life.
    """

    def __init__(self) -> None:
        self.unanswered = 0

    def look(self) -> bool:
        """Count a look, at which the process is asked for a sign; False: it has answered none of the last ones."""
        if self.unanswered >= _LOOKS:
            return False
        self.unanswered += 1
        return True

    def seen(self) -> None:
        """It has said something."""
        self.unanswered = 0


class Regularly:
    """Does something again and again, in a thread of its own. Thread-safe.

    Args:
        name: Of the thread.
        seconds: Between two times.
        act: What is done.
    """

    def __init__(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        self._seconds = seconds
        self._act = act
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Do it no more, and wait until it is not done any more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self._act()
