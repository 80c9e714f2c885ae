"""How much memory the copies of what clients have in regions may take."""

from __future__ import annotations

import threading

from dnnserve.errors import InvalidRequestError, QueueFullError

__all__ = ["CopyBudget"]

_RETRY_AFTER_MS = 100  # requests that have been read are answered in the meantime


class CopyBudget:
    """Bytes that inputs in shared memory may take altogether, from when their requests come until these have ended.

    A request that speaks of a region has a few dozen bytes, so neither the messages' size nor the number of requests that may wait
    bounds what is read for them. Thread-safe: `_lock` guards `_taken`.

    Args:
        most: Bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken = 0

    def take(self, nbytes: int) -> None:
        """Count an input in, before it is read.

        Raises:
            InvalidRequestError: it is larger than all of them may be.
            QueueFullError: there is no room for it beside the others now.
        """
        if nbytes > self._most:
            raise InvalidRequestError(
                f"an input has {nbytes} bytes in shared memory; at most {self._most} are read (--max-shared-memory-input-mib)"
            )
        with self._lock:
            taken = self._taken
            if taken + nbytes <= self._most:
                self._taken = taken + nbytes
                return
        error = QueueFullError(
            f"{taken} bytes of inputs in shared memory are held for requests that wait or run, and this one has {nbytes}; at most "
            f"{self._most} are (--max-shared-memory-input-mib): retry later"
        )
        error.retry_after_ms = _RETRY_AFTER_MS
        raise error

    def give_back(self, nbytes: int) -> None:
        """Count an input out, once."""
        with self._lock:
            self._taken -= nbytes
