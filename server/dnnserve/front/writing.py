"""Threads that write large outputs into shared memory, so that those which learn of completed batches need not.

They do nothing else: an answer that has been computed waits for other answers only, never for images to be decoded.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["WritePool"]

_log = logging.getLogger(__name__)

_THREADS = 2  # one that writes 1 GiB does not hold up all others; memory is not much faster for more
_MOST_WAITING = 16


class WritePool:
    """Ends calls whose outputs take time to write. Thread-safe: `_lock` guards `_waiting` and `_closed`.

    A request that has been computed is in no queue any more and counts nowhere, and it holds a copy of its outputs. So only a few
    are taken at a time; whoever has one more writes it itself, and takes no further completions meanwhile.

    Args:
        max_waiting: Answers that may wait for a thread or be written.
        threads: At most, each of which is started when it is first needed.
    """

    def __init__(self, max_waiting: int = _MOST_WAITING, threads: int = _THREADS) -> None:
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = False
        self._pool = ThreadPoolExecutor(threads, "dnnserve-write")

    def hand_over(self, act: Callable[[], None]) -> bool:
        """Have a thread of the pool do something.

        Returns:
            Whether it will; not where as many wait as may, or the pool is closed.
        """
        with self._lock:
            if self._closed or self._waiting >= self._max_waiting:
                return False
            self._pool.submit(self._work, act)
            self._waiting += 1
        return True

    def close(self) -> None:
        """Take nothing more; threads end when they have done what they were given. A second call does nothing."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=False)

    def _work(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:  # noqa: BLE001 - nobody reads the pool's futures
            _log.exception("a call whose outputs were written could not be ended")
        finally:
            with self._lock:
                self._waiting -= 1
