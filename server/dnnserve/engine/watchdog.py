"""Notices devices that hang and engines that stand still: in threads of its own, because those that wait for a device cannot."""

from __future__ import annotations

from collections.abc import Sequence

from dnnserve.engine.runner import Runner
from dnnserve.processes.signs_of_life import LOOK_S, Regularly

__all__ = ["Watchdog"]


class Watchdog:
    """Looks at every runner from time to time. Thread-safe.

    Args:
        runners: Whom to look at.
        limit_s: How long a batch may run on a GPU; its device is out of service at most an eighth later. 0: as long as it takes.
    """

    def __init__(self, runners: Sequence[Runner], limit_s: float) -> None:
        self._runners = tuple(runners)
        self._limit_ns = int(limit_s * 1e9)
        self._watches = [Regularly("dnnserve-engine-watch", LOOK_S, self._look)]
        if limit_s:
            self._watches.append(Regularly("dnnserve-watchdog", limit_s / 8, self._give_up))

    def start(self) -> None:
        """Begin to look."""
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """Look no more."""
        for watch in self._watches:
            watch.stop()

    def _look(self) -> None:
        for runner in self._runners:
            runner.look()

    def _give_up(self) -> None:
        for runner in self._runners:
            if runner.device != "cpu":  # which does not hang: a batch that takes long there is a long batch
                runner.give_up_when_stuck(self._limit_ns)
