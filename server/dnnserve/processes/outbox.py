"""What a thread sends that may not wait.

A thread that receives from a link and sends over it waits, when the link is full, for the other end to read. Should the thread
that reads there wait likewise, for this one to read, both wait for ever. So whoever receives hands what it has to say to an outbox.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Sequence
from typing import Any

from dnnserve.processes.link import Link

__all__ = ["Outbox"]

_log = logging.getLogger(__name__)


class Outbox:
    """Sends over a link without waiting for it. Thread-safe: `_lock` guards `_closed`.

    What the link takes no more of is kept, and sent by a thread of this one's own. It is bounded by what it answers: the other end
    asks, and has read the answer before it asks again, or gives up and asks in seconds; of requests there are as many as have
    blocks; and a process that reads nothing is ended. What is sent once the other end has gone is lost: whoever receives from the
    link finds out. A link that does not take what it is given, for want of a descriptor or because it cannot be packed, is shut
    down: nobody waits for an answer that does not come.

    Args:
        link: Where to.
        name: Of the thread.
    """

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        # With the files of a message; None: it is a note.
        self._kept: queue.SimpleQueue[tuple[object, Sequence[int] | None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._sender = threading.Thread(target=self._send, name=name, daemon=True)
        self._sender.start()

    def send(self, message: object, fds: Sequence[int] = ()) -> None:
        """Send a message, after those before it, and files with it, whose descriptors are duplicated.

        Raises:
            OSError: there is no descriptor for a file.
        """
        with self._lock:
            if not self._closed:
                self._kept.put((message, _duplicated(fds)))

    def note(self, note: tuple[Any, ...]) -> None:
        """Send a note: at once where the link has room, so that it may overtake others."""
        try:
            if not self._link.note(note, wait=False):
                self._kept.put((note, None))
        except OSError:
            self._link.shut_down()

    def close(self) -> None:
        """Send what is kept, and end the thread. The other end reads, or has gone."""
        with self._lock:
            self._closed = True
        self._kept.put(None)
        self._sender.join()

    def _send(self) -> None:
        while (kept := self._kept.get()) is not None:
            what, fds = kept
            try:
                if fds is None:
                    assert isinstance(what, tuple)
                    self._link.note(what)
                else:
                    self._link.send(what, fds)
            except OSError:
                self._link.shut_down()
            except Exception:  # noqa: BLE001 - else the thread would end, and what waits for answers would not be told
                _log.exception("%s cannot be sent; its link is closed", type(what).__name__)
                self._link.shut_down()
            finally:
                _close(fds or ())


def _duplicated(fds: Sequence[int]) -> Sequence[int]:
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))  # noqa: PERF401 - those before one that fails are closed
    except OSError:
        _close(copies)
        raise
    return copies


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
