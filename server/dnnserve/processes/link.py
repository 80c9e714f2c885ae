"""Messages between two processes of the server: small values over a socket that keeps their boundaries, and files with them.

A message is any value that can be pickled. A note is one of numbers, texts, None and tuples of these, which takes a tenth of the
time. What is large goes as a file, because a socket takes only so much at once.
"""

from __future__ import annotations

import array
import contextlib
import errno
import marshal
import os
import pickle
import socket
from collections.abc import Sequence
from typing import Any

__all__ = ["Link"]

_INLINE = 1 << 16  # bytes beyond which a message or a note goes as a file
_MESSAGE, _NOTE, _FILE = b"m", b"n", b"f"  # a file says behind that what is in it
_LARGEST = len(_NOTE) + _INLINE
# As numbers: flags of the standard library take microseconds to be combined.
_SEND = int(socket.MSG_NOSIGNAL)
_SEND_OR_FAIL = _SEND | int(socket.MSG_DONTWAIT)
_ROOM_FOR_FDS = socket.CMSG_SPACE(16 * array.array("i").itemsize)


class Link:
    """One end of the socket. Any thread may send, one receives. The other end is a process of ours, so nothing of it is checked.

    Args:
        end: The socket, of a pair.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = memoryview(bytearray(_LARGEST))  # of zeros, so that all of it is memory at once

    @staticmethod
    def pair() -> tuple[socket.socket, socket.socket]:
        """Two ends; the second is inherited by a process that is started with its number."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def send(self, message: object, fds: Sequence[int] = ()) -> None:
        """Send a message, and files with it; waits while the other end has too much to read.

        Raises:
            OSError: the other end is closed, or there is no descriptor for what is large.
        """
        data = pickle.dumps(message)
        if len(data) <= _INLINE:
            self._send([_MESSAGE, data], fds, _SEND)
        else:
            self._send_file(_MESSAGE, data, fds, _SEND)

    def _send_file(self, kind: bytes, data: bytes, fds: Sequence[int], flags: int) -> None:
        fd = os.memfd_create("dnnserve-message")
        try:
            with os.fdopen(fd, "wb", closefd=False) as file:
                file.write(data)
            self._send([_FILE, kind], [fd, *fds], flags)  # first: should there be room for some alone, it is there
        finally:
            os.close(fd)

    def _send(self, data: Sequence[bytes], fds: Sequence[int], flags: int) -> None:
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self._socket.sendmsg(data, files, flags)

    def note(self, note: tuple[Any, ...], *, wait: bool = True) -> bool:
        """Send a note.

        Args:
            note: What may be in it, see above.
            wait: Whether to wait while the other end has too much to read.

        Returns:
            Whether it was sent, which it is not where it would have had to wait.

        Raises:
            OSError: the other end is closed, or there is no descriptor for what is large.
        """
        data, flags = marshal.dumps(note), _SEND if wait else _SEND_OR_FAIL
        try:
            if len(data) <= _INLINE:
                self._socket.send(_NOTE + data, flags)
            else:
                self._send_file(_NOTE, data, (), flags)
        except BlockingIOError:
            return False
        return True

    def receive(self) -> tuple[Any, Sequence[int]] | None:
        """Wait for a message or a note, and its files, as many as there are descriptors for; None: the other end is closed.

        Raises:
            OSError: there is no descriptor for what is large.
        """
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
            if not fds:
                raise OSError(errno.EMFILE, "no descriptor for a large message")
            with os.fdopen(fds.pop(0), "rb") as file:
                file.seek(0)
                kind, data = data[0], memoryview(file.read())
        return (marshal if kind == _NOTE[0] else pickle).loads(data), fds

    def fileno(self) -> int:
        """The descriptor of this end; negative: it is closed."""
        return self._socket.fileno()

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self.fileno() < 0

    def shut_down(self) -> None:
        """Let both ends find the link closed; from any thread. A second call does nothing."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end; a second call does nothing."""
        self._socket.close()
