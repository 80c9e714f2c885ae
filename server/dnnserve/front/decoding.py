"""Threads for what takes time, as many as there are CPUs, and what they may spend on a request and altogether: they decode images,
and copy large inputs out of shared memory.

An image file's header says how many pixels it has, so a request is weighed before any of them is decoded. Between two images it is
looked at again whether somebody still waits for them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from dnnserve.errors import InvalidRequestError, QueueFullError
from dnnserve.front.sources import Checkpoint, RowSource

__all__ = ["DecodePool", "PixelLimits"]

_log = logging.getLogger(__name__)

# Decoding takes up to 12 bytes a pixel (measured: RGBA, its copy, RGB), 600 MB for the largest image that is let in, and more
# threads than CPUs decode nothing sooner.
_MAX_THREADS = 8
_RETRY_AFTER_MS = 100  # a few photographs are decoded in the meantime


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """How many pixels are decoded. Immutable.

    Args:
        request: Of all images of a request.
        server: Of the requests that are being decoded at the same time.
    """

    request: int
    server: int


class DecodePool:
    """Does what takes time, so that threads which take calls do not. Thread-safe: `_lock` guards `_waiting` and
    `_pixels`.

    Args:
        limits: Pixels of a request, and of those at work at the same time.
        max_waiting: Requests that may wait for a thread or be at work.
        threads: None: one a CPU, at most 8.
    """

    def __init__(self, limits: PixelLimits, max_waiting: int, threads: int | None = None) -> None:
        self._limits = limits
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._waiting = 0
        self._pixels = 0
        self._pool = ThreadPoolExecutor(threads or min(os.cpu_count() or 1, _MAX_THREADS), "dnnserve-decode")

    def submit(
        self,
        source: RowSource,
        checkpoint: Checkpoint,
        done: Callable[[Sequence[np.ndarray]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Make the rows in a thread of the pool and call `done` with them, or `failed` with what went wrong.

        Args:
            source: What the rows are made of.
            checkpoint: Called before every image, and every piece of a copy; what it raises ends the work.
            done: Gets the rows, in that thread.
            failed: Gets the error, in that thread; also what `done` raised.

        Raises:
            QueueFullError: as many requests wait as may.
        """
        with self._lock:
            if self._waiting >= self._max_waiting:
                error = QueueFullError(
                    f"{self._waiting} requests wait to be decoded or copied, as many as may; retry later"
                )
                error.retry_after_ms = _RETRY_AFTER_MS
                raise error
            self._waiting += 1
        self._pool.submit(self._work, source, checkpoint, done, failed)

    def close(self) -> None:
        """Take no more work; threads end when they have finished theirs."""
        self._pool.shutdown(wait=False)

    def _work(
        self,
        source: RowSource,
        checkpoint: Checkpoint,
        done: Callable[[Sequence[np.ndarray]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        try:
            done(self._rows(source, checkpoint))
        except Exception as error:  # noqa: BLE001 - whatever a file does to its decoder is its request's error
            try:
                failed(error)
            except Exception:  # noqa: BLE001 - nobody reads the pool's futures
                _log.exception("a request that failed could not be ended")
        finally:
            with self._lock:
                self._waiting -= 1

    def _rows(self, source: RowSource, checkpoint: Checkpoint) -> Sequence[np.ndarray]:
        checkpoint()
        pixels = source.count_pixels(checkpoint)
        self._take(pixels)
        try:
            return source.rows(checkpoint)
        finally:
            with self._lock:
                self._pixels -= pixels

    def _take(self, pixels: int) -> None:
        if pixels > self._limits.request:
            raise InvalidRequestError(
                f"the request's images have {pixels} pixels; at most {self._limits.request} are decoded for a request: send fewer "
                "at once or smaller ones, or start the server with a larger --max-request-megapixels"
            )
        with self._lock:
            if self._pixels + pixels <= self._limits.server:
                self._pixels += pixels
                return
            busy = self._pixels
        error = QueueFullError(
            f"images of {busy} pixels are being decoded, and the request's have {pixels}; at most {self._limits.server} are at the "
            "same time: retry later or start the server with a larger --max-decoding-megapixels"
        )
        error.retry_after_ms = _RETRY_AFTER_MS
        raise error
