"""What a thread sends that may not wait.

A thread that receives from a link and sends over it waits, when the link is full, for the other end to read. Should the thread
that reads there wait likewise, for this one to read, both wait for ever. So whoever receives hands what it has to say to an outbox.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from dnnserve.processes.link import Link

__all__ = ["Outbox"]


class Outbox:
    """Sends over a link without waiting for it. Thread-safe.

    What the link takes no more of is kept, and sent by a thread of this one's own. It is bounded by what it answers: the other end
    asks, and has read the answer before it asks again, or gives up and asks in seconds; of requests there are as many as have
    blocks. What is sent once the other end has gone is lost: whoever receives from the link finds out. A link that does not take
    what it is given, for want of a descriptor, is shut down: nobody waits for an answer that does not come.

    Args:
        link: Where to.
        name: Of the thread.
    """

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self._kept: queue.SimpleQueue[tuple[object, bool] | None] = queue.SimpleQueue()  # and whether it is a note
        self._sender = threading.Thread(target=self._send, name=name, daemon=True)
        self._sender.start()

    def send(self, message: object) -> None:
        """Send a message, after those before it."""
        self._kept.put((message, False))

    def note(self, note: tuple[Any, ...]) -> None:
        """Send a note: at once where the link has room, so that it may overtake others."""
        try:
            if not self._link.note(note, wait=False):
                self._kept.put((note, True))
        except OSError:
            self._link.shut_down()

    def close(self) -> None:
        """Send what is kept, and end the thread. The other end reads, or has gone."""
        self._kept.put(None)
        self._sender.join()

    def _send(self) -> None:
        while (kept := self._kept.get()) is not None:
            what, is_note = kept
            try:
                if is_note:
                    assert isinstance(what, tuple)
                    self._link.note(what)
                else:
                    self._link.send(what)
            except OSError:
                self._link.shut_down()
