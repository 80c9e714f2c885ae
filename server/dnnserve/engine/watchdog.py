"""Notices devices that hang: a thread of its own, because the one that waits for the device cannot."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from dnnserve.engine.runner import Runner

__all__ = ["Watchdog"]


class Watchdog:
    """Looks at every runner from time to time. Thread-safe.

    Args:
        runners: Whom to look at.
        limit_s: How long a batch may run; its device is out of service at most an eighth later.
    """

    def __init__(self, runners: Sequence[Runner], limit_s: float) -> None:
        self._runners = tuple(runners)
        self._limit_s = limit_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dnnserve-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._limit_s / 8):
            for runner in self._runners:
                runner.give_up_when_stuck(int(self._limit_s * 1e9))
