"""Signals that ask a run to stop: taken note of here, obeyed by the loop between two iterations."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

__all__ = ["Interruption"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While entered, takes note of the first SIGINT or SIGTERM; a second one does what it did before. Owned by one thread.

    Signal handlers belong to the main thread. Entered in another one, this takes no signals and never asks to stop.
    """

    def __init__(self) -> None:
        self._signal: signal.Signals | None = None
        self._previous: dict[signal.Signals, object] = {}

    @property
    def signal(self) -> signal.Signals | None:
        """The signal that came, if one did."""
        return self._signal

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._take) for number in _SIGNALS}
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._restore()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._signal = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}
