"""Places for streams, each of which holds a thread of grpcio's public server for as long as its client likes.

Every kind of stream has threads of its own, one more than there are places: that one refuses. Streams that waited for a thread
would count towards the limit that all calls of the public server share, and keep other kinds out.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

__all__ = ["Places", "StreamsObserver"]

StreamsObserver = Callable[[str, grpc.StatusCode], None]
"""Told of a stream that was refused: its method, and the status that its client is told."""


class Places:
    """Places for streams of one kind. Thread-safe: `_lock` guards `_taken`.

    Args:
        number: Of streams that may have one at the same time.
        refusal: What the client of one more is told.
        name: Of the threads.

    Attributes:
        threads: In which the streams' handlers run.
    """

    def __init__(self, number: int, refusal: str, name: str) -> None:
        self._number = number
        self._refusal = refusal
        self._lock = threading.Lock()
        self._taken = 0
        self.threads = ThreadPoolExecutor(number + 1, name)

    @contextlib.contextmanager
    def take(self, context: grpc.ServicerContext, on_refused: Callable[[], None]) -> Iterator[None]:
        """Have a place for the time of the block.

        Args:
            context: The stream.
            on_refused: Called where there is none.

        Raises:
            Exception: there is none; grpc.server tells the client RESOURCE_EXHAUSTED.
        """
        with self._lock:
            full = self._taken >= self._number
            self._taken += not full
        if full:
            on_refused()
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, self._refusal)
        try:
            yield
        finally:
            with self._lock:
                self._taken -= 1

    def close(self) -> None:
        """Let the threads end once their streams have."""
        self.threads.shutdown(wait=False)
