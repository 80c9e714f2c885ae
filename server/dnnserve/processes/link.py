"""Messages between two processes of the server: small values over a socket that keeps their boundaries, and files with them."""

from __future__ import annotations

import contextlib
import pickle
import socket
from collections.abc import Sequence
from typing import Any

__all__ = ["Link"]

_LARGEST = 1 << 18
_MOST_FDS = 16


class Link:
    """One end of the socket. Any thread may send, one receives. The other end is a process of ours, and so messages are pickles."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @staticmethod
    def pair() -> tuple[socket.socket, socket.socket]:
        """Two ends; the second is inherited by a process that is started with its number."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def send(self, message: object, fds: Sequence[int] = ()) -> None:
        """Send a message, and files with it; waits while the other end has too much to read.

        Raises:
            OSError: the other end is closed.
        """
        data = pickle.dumps(message)
        if fds:
            socket.send_fds(self._socket, [data], list(fds), socket.MSG_NOSIGNAL)
        else:
            self._socket.send(data, socket.MSG_NOSIGNAL)

    def receive(self) -> tuple[Any, Sequence[int]] | None:
        """Wait for a message and its files; None: the other end is closed."""
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, _LARGEST, _MOST_FDS)
        except OSError:  # it ended without having read everything, or this end was shut down
            return None
        return (pickle.loads(data), fds) if data else None

    def shut_down(self) -> None:
        """Let both ends find the link closed; from any thread. A second call does nothing."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end; a second call does nothing."""
        self._socket.close()
