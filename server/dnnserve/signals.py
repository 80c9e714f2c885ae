"""What the server is told by signals: SIGTERM and SIGINT to stop, SIGHUP to read the configuration again.

They hold from the command's first line on. The kernel forgets a signal that PID 1 of a container has no handler for, and a SIGHUP
that nobody handles ends the process; so signals are held until there is a thread that hears them.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Signals", "held", "hold"]

_log = logging.getLogger(__name__)

_NUMBERS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


def hold() -> None:
    """Have signals for the calling thread wait, and for the threads and processes that it begins."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)


@contextmanager
def held() -> Iterator[None]:
    """Have signals wait until `Signals.listen`; where it is not called, they take their course at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Signals:
    """Who is told of signals. Thread-safe: `_lock` guards `_stop`, `_read_again` and `_asked_to_read`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop: Callable[[int], None] | None = None
        self._read_again: Callable[[], None] | None = None
        self._asked_to_read = False

    def listen(self) -> None:
        """Hear signals in a thread of its own, those that were held first. Called by the main thread.

        Before `tell`, a signal to stop ends the process: it serves nobody yet, its children end with it, and whatever it reads may
        take long.

        Python runs a signal's handler in the main thread, and that one sleeps: the signal may have gone to another thread, and then
        nothing wakes it. The byte that the interpreter writes into its wakeup descriptor, the signal's number, comes at once,
        whoever got the signal.
        """
        receiver, sender = socket.socketpair()
        sender.setblocking(False)
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        for number in _NUMBERS:
            signal.signal(number, lambda _number, _frame: None)

        def hear(_kept_open: socket.socket) -> None:
            while number := receiver.recv(1):
                self._hear(number[0])

        threading.Thread(target=hear, args=(sender,), name="dnnserve-signals", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)

    def tell(self, stop: Callable[[int], None], read_again: Callable[[], None]) -> None:
        """Have signals told to the server that there is now.

        Args:
            stop: Called with the number of a SIGTERM or SIGINT.
            read_again: Called once a SIGHUP, and now where one has come before.
        """
        with self._lock:
            self._stop, self._read_again = stop, read_again
            asked = self._asked_to_read
        if asked:
            read_again()

    def _hear(self, number: int) -> None:
        with self._lock:
            stop, read_again = self._stop, self._read_again
            self._asked_to_read |= number == signal.SIGHUP
        if number == signal.SIGHUP:
            if read_again is not None:
                read_again()
        elif stop is not None:
            stop(number)
        else:
            _log.info("told to stop before anything was served")
            logging.shutdown()
            os._exit(0)
