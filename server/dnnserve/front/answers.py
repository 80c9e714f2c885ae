"""Answers leave at once, but for the moment in which the server says goodbye."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Answers"]


class Answers:
    """Sends answers, or holds them back for a while. Thread-safe: `_lock` guards `_held`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[Callable[[], None]] | None = None

    @property
    def leave_at_once(self) -> bool:
        """Whether `send` would call an answer at once, so that who has one may do without it."""
        return self._held is None

    def send(self, answer: Callable[[], None]) -> None:
        """Send an answer by calling it, now or when answers are let go."""
        if self._held is not None:
            with self._lock:
                if self._held is not None:
                    self._held.append(answer)
                    return
        answer()

    def hold_back(self) -> None:
        """Keep answers from now on."""
        with self._lock:
            self._held = []

    def let_go(self) -> None:
        """Send what was kept, and everything at once from now on."""
        with self._lock:
            held, self._held = self._held, None
        for answer in held or ():
            answer()
