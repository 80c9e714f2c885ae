"""Messages between two processes of the server: small values over a socket that keeps their boundaries, and files with them.

A message is any value that can be pickled; a large one goes as a file, because a socket takes only so much at once. A note is one
of numbers, texts, None and tuples of these, which takes a tenth of the time.
"""

from __future__ import annotations

import array
import contextlib
import marshal
import os
import pickle
import socket
from collections.abc import Sequence
from typing import Any

__all__ = ["Link"]

_LARGEST = 1 << 18
_INLINE = 1 << 16  # bytes of a pickle beyond which it goes as a file
_MESSAGE, _FILE, _NOTE = b"m", b"f", b"n"
_SEND = socket.MSG_NOSIGNAL
_ROOM_FOR_FDS = socket.CMSG_SPACE(16 * array.array("i").itemsize)


class Link:
    """One end of the socket. Any thread may send, one receives. The other end is a process of ours, so nothing of it is checked.

    Args:
        end: The socket, of a pair.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = memoryview(bytearray(_LARGEST))

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
        if len(data) <= _INLINE:
            self._send([_MESSAGE, data], fds)
            return
        fd = os.memfd_create("dnnserve-message")
        try:
            with os.fdopen(fd, "wb", closefd=False) as file:
                file.write(data)
            self._send([_FILE], [*fds, fd])
        finally:
            os.close(fd)

    def _send(self, data: Sequence[bytes], fds: Sequence[int]) -> None:
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._socket.sendmsg(data, files, socket.MSG_NOSIGNAL)

    def note(self, note: tuple[Any, ...], *, wait: bool = True) -> bool:
        """Send a note.

        Args:
            note: What may be in it, see above.
            wait: Whether to wait while the other end has too much to read.

        Returns:
            Whether it was sent, which it is not where it would have had to wait.

        Raises:
            OSError: the other end is closed.
        """
        try:
            self._socket.send(_NOTE + marshal.dumps(note), _SEND if wait else _SEND | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def receive(self) -> tuple[Any, Sequence[int]] | None:
        """Wait for a message or a note, and its files; None: the other end is closed."""
        try:
            length, ancillary, _, _ = self._socket.recvmsg_into([self._buffer], _ROOM_FOR_FDS)
        except OSError:  # it ended without having read everything, or this end was shut down
            return None
        if not length:
            return None
        kind, data = self._buffer[0], self._buffer[1:length]
        if kind == _NOTE[0]:
            return marshal.loads(data), ()
        fds = array.array("i")
        for _, _, numbers in ancillary:
            fds.frombytes(numbers[: len(numbers) - len(numbers) % fds.itemsize])
        if kind == _FILE[0]:
            with os.fdopen(fds.pop(), "rb") as file:
                file.seek(0)
                return pickle.load(file), fds
        return pickle.loads(data), fds

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._socket.fileno() < 0

    def shut_down(self) -> None:
        """Let both ends find the link closed; from any thread. A second call does nothing."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end; a second call does nothing."""
        self._socket.close()
