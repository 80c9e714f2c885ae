"""One thread that receives from many links.

A thread for each would be simpler, but they would take turns at the interpreter's lock: with twenty front ends, a request of eight
images cost the scheduler's process half as much again (docs/worklog-serving.md).
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dnnserve.processes.link import Link

__all__ = ["Receiver"]

_log = logging.getLogger(__name__)


class _Listener(NamedTuple):
    """Who hears what comes over a link. Immutable; see `Receiver.add`."""

    link: Link
    hear: Callable[[Any, Sequence[int]], None]
    end: Callable[[Exception | None], None]


class Receiver:
    """Receives from links until their other ends are closed. Thread-safe: `_lock` guards `_listeners`, `_thread` and `_closed`.

    Args:
        name: Of the thread, which begins with the first link.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._listeners: dict[int, _Listener] = {}  # by their links' descriptors
        self._ready = select.epoll()
        self._stop = os.eventfd(0)
        self._ready.register(self._stop, select.EPOLLIN)
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(
        self, link: Link, hear: Callable[[Any, Sequence[int]], None], end: Callable[[Exception | None], None]
    ) -> None:
        """Receive from a link, too; nobody else does, and it is closed after its end.

        Args:
            link: Which.
            hear: Called by the thread with each message and its files. It does not wait for anybody: all links would.
            end: Called once, by the thread or by `close`, when nothing more is heard: with what `hear` raised, or None where the
                other end was closed or this was. It does not wait either.
        """
        with self._lock:
            if not self._closed:
                if self._thread is None:
                    thread = threading.Thread(target=self._receive, name=self._name, daemon=True)
                    thread.start()  # it may not, for want of memory: the next link tries again
                    self._thread = thread
                self._listeners[link.fileno()] = _Listener(link, hear, end)
                try:
                    self._ready.register(link.fileno(), select.EPOLLIN)
                except BaseException:
                    del self._listeners[link.fileno()]
                    raise
                return
        end(None)

    def close(self) -> None:
        """Receive nothing more. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        os.eventfd_write(self._stop, 1)
        if self._thread is not None:
            self._thread.join()
        for listener in self._listeners.values():
            listener.end(None)
        self._listeners.clear()
        self._ready.close()
        os.close(self._stop)

    def _receive(self) -> None:
        while True:
            try:
                for descriptor, _ in self._ready.poll():
                    if descriptor == self._stop:
                        return
                    self._receive_from(descriptor)
            except Exception:  # noqa: BLE001 - whatever it was, all links hang on this thread
                _log.exception("%s goes on", self._name)

    def _receive_from(self, descriptor: int) -> None:
        listener, failure = self._listeners[descriptor], None
        try:
            if (received := listener.link.receive()) is not None:
                listener.hear(*received)
                return
        except Exception as error:  # noqa: BLE001 - one who cannot hear must not deafen the others
            failure = error
        with self._lock:
            del self._listeners[descriptor]
        try:
            self._ready.unregister(descriptor)
        finally:
            listener.end(failure)
