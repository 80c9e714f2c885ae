"""A process of the server's own, from both sides.

It is started by name, not forked: nothing of gRPC, CUDA or this process's threads is in it. Signals for the server are not for it;
it ends when the server closes its end of their link, and the kernel kills it should the server be killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from dnnserve.processes.link import Link
from dnnserve.processes.parcel import Parcel, unpack

__all__ = ["FRONT_END", "Child", "Children", "begin", "told"]

FRONT_END = "dnnserve.front.child"
"""What a front end's process runs; here, because processes are begun before what they run has been imported."""

_END_S = 5.0
_PR_SET_PDEATHSIG = 1


class Child:
    """A child process and our end of its link. Owned by one thread, but for `kill` and what `link` allows.

    Args:
        module: What it runs; its `main` calls `begin` with its last argument, and then `told`.
        arguments: What comes before that on its command line.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        ours, theirs = Link.pair()
        command = [sys.executable, "-m", module, *arguments, str(theirs.fileno())]
        with theirs:
            self._process = _starter().submit(_start, command, theirs.fileno()).result()
        self.link = Link(ours)

    def tell(self, parcel: Parcel) -> None:
        """Hand over what it waits for.

        Raises:
            OSError: it has ended.
        """
        self.link.send(None, [parcel.fd])

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def wait(self) -> str:
        """Wait for the process, whose link is closed, killing it when it does not end; how it ended."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"status {code}"

    def close(self) -> None:
        """Close the link and let the process end. A second call does nothing."""
        self.link.close()
        self.wait()


class Children:
    """Processes of one program, begun before anybody needs them. Thread-safe.

    Args:
        program: What they run, as `Child` takes it.
        count: How many are begun now.
    """

    def __init__(self, *program: str, count: int = 0) -> None:
        self._program = program
        self._begun = deque(Child(*program) for _ in range(count))  # its operations are atomic

    def take(self) -> Child:
        """One that was begun, or else a new one."""
        try:
            return self._begun.pop()
        except IndexError:
            return Child(*self._program)

    def close(self) -> None:
        """End those that nobody took. A second call does nothing."""
        while self._begun:
            self._begun.pop().close()


@cache
def _starter() -> ThreadPoolExecutor:
    """One thread that starts all children and lasts: a child is killed when the thread that started it ends, not the process."""
    return ThreadPoolExecutor(1, "dnnserve-starter")


def _start(command: Sequence[str], channel: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, pass_fds=(channel,), stdin=subprocess.DEVNULL)


def begin(channel: str) -> Link:
    """What a child does first; its end of the link."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server drains first
    # If the server is killed while a kernel here does not end, nobody else would end it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return Link(socket.socket(fileno=int(channel)))


def told(link: Link) -> Any:
    """Wait for what the child is told; None: it is not needed any more."""
    received = link.receive()
    if received is None:
        return None
    (fd,) = received[1]
    value = unpack(fd)
    os.close(fd)
    return value
