"""Addresses without bytes behind them: memory for operations that are planned and never run."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Addresses"]


class Addresses:
    """A range of numbers that stands for a block of memory (`backend.Memory`). Owned by one thread.

    Args:
        start: The first.
        nbytes: How many.
    """

    def __init__(self, start: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._start = start
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether its owner has given it back."""
        return self._closed

    @property
    def reusable(self) -> bool:
        """No: there are as many as are wanted."""
        return False

    def at(self, offset_bytes: int) -> int:
        """The number of a byte."""
        return self._start + offset_bytes

    pointer = at

    def hold(self) -> Callable[[], None]:
        """Keep nothing, since there is nothing."""
        return lambda: None

    def close(self) -> None:
        """Say that it was closed."""
        self._closed = True

    abandon = close
