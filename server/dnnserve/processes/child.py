"""A process of the server's own, from both sides.

Nothing of gRPC, CUDA or this process's threads is in it: it is started by name, or forked before there is any of them. Signals for
the server are not for it; it ends when the server closes its end of their link, and the kernel kills it should the server be
killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

from dnnserve.processes.link import Link
from dnnserve.processes.parcel import Parcel, unpack
from dnnserve.signals import hold

__all__ = ["ENGINE", "FRONT_END", "Child", "Children", "begin", "told"]

ENGINE, FRONT_END = "dnnserve.engine.child", "dnnserve.front.child"
"""What processes run; here, because they are begun before what they run has been imported."""

_END_S = 5.0
_STDIN, _STDERR = 0, 2
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


class _Process(Protocol):
    """What is used here of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class _Forked:
    """A process that was forked, with as much of `subprocess.Popen` as is used here. Thread-safe: `_lock` guards `_code`.

    Its descriptor lasts as long as the object, so that whoever waits needs none, nor waits for another process by its number.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)
        self._lock = threading.Lock()
        self._code: int | None = None

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # there was no descriptor for it
            os.close(self._fd)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        ended = select.poll()
        ended.register(self._fd, select.POLLIN)
        if not ended.poll(None if timeout is None else timeout * 1e3):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        with self._lock:
            if self._code is None:
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self._code


class Child:
    """A child process and our end of its link. Owned by one thread, but for `kill` and what `link` allows.

    Args:
        process: The process.
        link: Our end.
    """

    def __init__(self, process: _Process, link: Link) -> None:
        self._process = process
        self.link = link

    @classmethod
    def start(cls, module: str, *arguments: str) -> Child:
        """Start a program.

        Args:
            module: What it runs; its `main` calls `begin` with its last argument, and then `told`.
            arguments: What comes before that on its command line.
        """
        ours, theirs = Link.pair()
        command = [sys.executable, "-m", module, *arguments, str(theirs.fileno())]
        with theirs:
            process = _starter().submit(_start, command, theirs.fileno()).result()
        return cls(process, Link(ours))

    @classmethod
    def fork(cls, main: Callable[[str], int]) -> Child:
        """Have a copy of this process go on with a module's `main`, as `start` has it, but without importing anything again.

        This process has one thread yet, which lasts, and has used nothing of gRPC, whose threads a copy would lack.

        Raises:
            OSError: no more processes, or descriptors, for now.
        """
        ours, theirs = Link.pair()
        gc.freeze()  # who collects garbage would write to every page of what both have
        with theirs:
            pid = os.fork()  # noqa: TID251 - the ban is for tests, whose process has threads
            if not pid:
                _go_on(main, theirs.fileno())
        return cls(_Forked(pid), Link(ours))

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


def can_fork() -> bool:
    """Whether `Child.fork` is for this process now: nobody has begun threads in it, or may have used gRPC, and the kernel lets
    processes be followed by a descriptor (from Linux 5.3 on, where a container does not forbid it).
    """
    if threading.active_count() > 1 or "grpc" in sys.modules:
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class Children:
    """Processes of one program, some of them begun before anybody needs them. Thread-safe.

    Args:
        program: What they run, as `Child.start` takes it.
        begun: Those that were.
    """

    def __init__(self, *program: str, begun: Iterable[Child] = ()) -> None:
        self._program = program
        self._begun = deque(begun)  # its operations are atomic

    def take(self) -> Child:
        """One that was begun, or else a new one."""
        try:
            return self._begun.pop()
        except IndexError:
            return Child.start(*self._program)

    def close(self) -> None:
        """End those that nobody took. A second call does nothing."""
        while self._begun:
            self._begun.pop().close()


@cache
def _starter() -> ThreadPoolExecutor:
    """One thread that starts all children and lasts: a child is killed when the thread that started it ends, not the process.

    A signal for the whole group of processes (^C, `systemctl stop`) waits in a child until `begin`, which ignores it.
    """
    return ThreadPoolExecutor(1, "dnnserve-starter", initializer=hold)


def _start(command: Sequence[str], channel: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, pass_fds=(channel,), stdin=subprocess.DEVNULL)


def _go_on(main: Callable[[str], int], channel: int) -> NoReturn:
    """What a forked process does, and nothing behind it: what stands on the stack is its parent's."""
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), _STDIN)
        # Ends of other links, too: while a copy of one is open, nobody is told that it was closed. What is open, not all numbers
        # that may be: a container may allow 2**30.
        for fd in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
            if fd > _STDERR and fd != channel:
                with contextlib.suppress(OSError):  # that of the list itself
                    os.close(fd)
        status = main(str(channel))
    except BaseException:  # noqa: BLE001 - it must not unwind its parent's stack
        traceback.print_exc()
    finally:
        logging.shutdown()
        os._exit(status)


def begin(channel: str, name: str) -> Link:
    """What a child does first; its end of the link.

    Args:
        channel: The descriptor, in decimal.
        name: What the kernel calls the process, up to 15 characters: `ps -o comm` shows it.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server drains first
    # If the server is killed while a kernel here does not end, nobody else would end it.
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(_PR_SET_NAME, name.encode())
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
