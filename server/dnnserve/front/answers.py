"""Answers leave at once, but for the moment in which the server says goodbye."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Answers"]


class Answers:
    """Sends answers, or holds them back for a while. Thread-safe: `_lock` guards `_held` and the writing of `holding`.

    Attributes:
        holding: Whether answers are held back; while they are not, who has one may as well send it without asking here.
    """

    def __init__(self) -> None:
        self.holding = False
        self._lock = threading.Lock()
        self._held: list[Callable[[], None]] = []

    def send(self, answer: Callable[[], None]) -> None:
        """Send an answer by calling it, now or when answers are let go."""
        if self.holding:
            with self._lock:
                if self.holding:
                    self._held.append(answer)
                    return
        answer()

    def hold_back(self) -> None:
        """Keep answers from now on."""
        with self._lock:
            self.holding = True

    def let_go(self) -> None:
        """Send what was kept, and everything at once from now on."""
        with self._lock:
            held, self._held, self.holding = self._held, [], False
        for answer in held:
            answer()
