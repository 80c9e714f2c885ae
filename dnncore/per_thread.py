"""Handles that nobody opened by hand: one set per thread, given back when the thread ends."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Generic, Protocol, TypeVar

__all__ = ["PerThread"]


class _Abandonable(Protocol):
    def abandon(self) -> None: ...


_Key = TypeVar("_Key")
_Value = TypeVar("_Value", bound=_Abandonable)


class _Life:
    """Lasts as long as the thread in whose storage it is."""


class PerThread(threading.local, Generic[_Key, _Value]):
    """What the calling thread has opened, and nobody else sees: each thread finds a dictionary of its own. Thread-safe.

    When a thread ends, `abandon` is called for what it had; threads that never end, PyTorch's autograd threads among them, keep
    theirs until the process ends, when the contexts give everything back.

    Attributes:
        opened: The calling thread's.
    """

    def __init__(self) -> None:
        self.opened: dict[_Key, _Value] = {}
        self._life = _Life()
        finalizer = weakref.finalize(self._life, _abandon, self.opened, os.getpid())
        finalizer.atexit = False


def _abandon(opened: dict[_Key, _Value], process: int) -> None:
    if os.getpid() != process:
        return  # a forked child has lost the parent's other threads; what they had is the parent's still
    for value in opened.values():
        value.abandon()
    opened.clear()
