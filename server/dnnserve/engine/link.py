"""Messages between a runner and its engine process: small values over a socket that keeps their boundaries, and shared memory.

The runner asks and the engine answers each question, in order. Rows and outputs lie in memory that both map and are never sent.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnncore.preprocessing import Preprocessing
from dnnserve.engine.host import HostFactory
from dnnserve.envelope import ModelKey

__all__ = ["Assignment", "Done", "Failed", "Link", "Load", "Loaded", "Message", "Opened", "Run", "SharedBuffer"]

_LARGEST = 1 << 16
_MOST_FDS = 16


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an engine process is told at its start, in a parcel. Immutable.

    Args:
        open_host: Opens the device; it is pickled, with the models that it holds.
        log_format: Of the lines on stderr: "text" or "json".
    """

    open_host: HostFactory
    log_format: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The engine has its device. Immutable."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load a model. Immutable."""

    model: ModelKey
    max_batch_rows: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model is loaded; the message comes with the files of its slots and, last, of its outputs. Immutable.

    Args:
        max_batch_rows: As `Instance` has it.
        row_shape: Extents of one row.
        output_shape: Extents of its output.
        slots: Input buffers.
        preprocessing: What makes rows of pixels, where that is known.
    """

    max_batch_rows: int
    row_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    slots: int
    preprocessing: Preprocessing | None


@dataclass(frozen=True, slots=True)
class Run:
    """Run the first rows of a model's slot, pixels or not. Immutable."""

    model: ModelKey
    slot: int
    rows: int
    pixels: bool


@dataclass(frozen=True, slots=True)
class Done:
    """They were run; the outputs are in the part of the shared outputs that belongs to the slot. Immutable."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What was asked for failed. Immutable.

    Args:
        error: Name of the error's class, of `dnncore.errors` where it is one of ours.
        text: What it says.
    """

    error: str
    text: str


Message = Opened | Load | Loaded | Run | Done | Failed


class Link:
    """One end of the socket. Owned by one thread."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @staticmethod
    def pair() -> tuple[socket.socket, socket.socket]:
        """Two ends; the second is inherited by a process that is started with its number."""
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message, and files with it.

        Raises:
            OSError: the other end is closed.
        """
        socket.send_fds(self._socket, [pickle.dumps(message)], list(fds), socket.MSG_NOSIGNAL)

    def receive(self) -> tuple[Message, Sequence[int]] | None:
        """Wait for a message and its files; None: the other end is closed."""
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, _LARGEST, _MOST_FDS)
        except ConnectionResetError:  # it ended without having read everything
            return None
        return (pickle.loads(data), fds) if data else None

    def close(self) -> None:
        """Close this end; a second call does nothing."""
        self._socket.close()


class SharedBuffer:
    """Bytes that two processes map. Owned by one thread.

    Args:
        fd: The anonymous file, which this keeps and closes.

    Attributes:
        bytes: uint8, all of them, from the beginning of a page; they stay mapped as long as an array looks into them.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.bytes = np.frombuffer(mmap.mmap(fd, 0), np.uint8)

    @classmethod
    def of(cls, nbytes: int) -> SharedBuffer:
        """Make one, of zeros."""
        fd = os.memfd_create("dnnserve-buffer")
        os.truncate(fd, max(nbytes, 1))
        return cls(fd)

    def view(self, shape: tuple[int, ...]) -> np.ndarray:
        """Its first bytes as float32 of a shape."""
        count = int(np.prod(shape))
        return self.bytes[: 4 * count].view(np.float32).reshape(shape)

    def close(self) -> None:
        """Close the file; what is mapped stays. A second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
