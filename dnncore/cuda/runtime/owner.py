"""The owner rule of everything that holds device memory: one thread uses it, the one that made it until another adopts it."""

from __future__ import annotations

import threading

from dnncore.errors import OwnerError

__all__ = ["Owner"]


class Owner:
    """Remembers the thread that made it, or that adopted it last. Thread-safe.

    Args:
        what: How the owned object calls itself in a message: "stream of cuda:0".
    """

    __slots__ = ("_ident", "_name", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self.adopt()

    def adopt(self) -> None:
        """Belong to the calling thread from now on."""
        self._ident = threading.get_ident()
        self._name = threading.current_thread().name

    def check(self) -> None:
        """Raise unless the calling thread is the owner.

        Raises:
            OwnerError: it is not; the message names both threads.
        """
        if threading.get_ident() != self._ident:
            raise OwnerError(
                f"the {self._what} belongs to thread {self._name!r} and was used from "
                f"{threading.current_thread().name!r}; open a handle of its own in each thread"
            )
