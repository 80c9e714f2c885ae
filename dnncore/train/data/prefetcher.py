"""A thread that makes items ready ahead of the one who takes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, TypeVar

from dnncore.errors import ClosedError

__all__ = ["Prefetcher"]

_T = TypeVar("_T")


class Prefetcher(Generic[_T]):
    """Runs an iterator in a thread of its own, at most `depth` items ahead. Thread-safe.

    Items come in the iterator's order. Its exception is raised where the item would have been. The thread runs from entering to
    leaving; leaving waits for the item that it is working on, and no longer.

    Args:
        items: Used by the thread alone.
        depth: Most items that wait.
    """

    def __init__(self, items: Iterator[_T], depth: int) -> None:
        self._items = items
        self._depth = depth
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._ready: deque[_T] = deque()
        self._end: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="dnntrain-prefetch", daemon=True)

    def __enter__(self) -> Prefetcher[_T]:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def take(self) -> _T:
        """The next item; waits for it.

        Raises:
            StopIteration: there are no more.
            ClosedError: the prefetcher was left.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._end is not None or self._closed)
            if self._closed:
                raise ClosedError("a prefetcher was asked for an item after it was left")
            if self._ready:
                item = self._ready.popleft()
                self._changed.notify_all()
                return item
            assert self._end is not None
            raise self._end

    def _work(self) -> None:
        while True:
            try:
                item = next(self._items)
            except BaseException as error:  # noqa: BLE001 - raised again, in take()
                self._finish(error)
                return
            with self._changed:
                self._changed.wait_for(lambda: len(self._ready) < self._depth or self._closed)
                if self._closed:
                    return
                self._ready.append(item)
                self._changed.notify_all()

    def _finish(self, error: BaseException) -> None:
        with self._changed:
            self._end = error
            self._changed.notify_all()
