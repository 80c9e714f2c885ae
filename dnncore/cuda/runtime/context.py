"""One primary context a device for the whole process, pushed only while an operation runs.

PyCUDA's hazards decide the form. It aborts the process when a thread ends with a context pushed, so a context is only ever current
inside a `with`. It frees a resource only where the very Context object that it was made with is current, so there is one object a
device, made once and kept until the process ends. A daemon thread that the interpreter kills inside such a `with` still aborts the
process: threads that use a device must be joined. A forked child may call nothing of the driver's, nor may a destructor of PyCUDA's
there: it would abort the child at its exit.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from types import TracebackType
from typing import Protocol

from dnncore.cuda.runtime import driver
from dnncore.errors import DeviceError, DeviceFaultError, DeviceNotFoundError

__all__ = ["Context", "Releasable", "retained"]


class Releasable(Protocol):
    """Something that holds device resources and can let go of them in any thread."""

    def release(self) -> None:
        """Give everything back; a second call does nothing."""


class Context:
    """A device's primary context. Thread-safe.

    `with context:` makes it current for the calling thread and maps what the driver raises inside to our errors. It may be nested.

    Attributes:
        handle: The CUcontext.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = f"cuda:{index}"
        self.compute_capability = driver.compute_capability(index)
        self._driver_context = driver.retain_context(index)
        self.handle = int(self._driver_context.handle)
        self._driver_errors = driver.driver_error_types()
        self.forked = False  # written once, by a forked child
        self._lock = threading.RLock()  # guards _users; a collection inside it may let go of a user in the same thread
        self._users: set[Releasable] = set()
        self._fault: str | None = None  # written once, by whoever meets the fault first

    def __enter__(self) -> Context:
        try:
            self._driver_context.push()
        except self._driver_errors as error:
            raise DeviceFaultError(
                f"{self.name} is lost: {self._fault or error}; the process must be replaced"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, self._driver_errors):
                raise self.mapped(error) from error
        finally:
            self._driver_context.pop()

    def mapped(self, error: Exception) -> DeviceError:
        """One of our errors for one of the driver's, whichever context is current.

        It tells a refused call from a lost context: after a sticky fault the next call fails too, whatever it is.
        """
        try:
            self._driver_context.push()
            try:
                self._driver_context.synchronize()
            finally:
                self._driver_context.pop()
        except self._driver_errors as again:
            self._fault = self._fault or str(again)
            return DeviceFaultError(f"{self.name} is lost: {self._fault}; the process must be replaced")
        return driver.driver_error(error)

    def add_user(self, user: Releasable) -> None:
        """Keep `user` until it is removed, at the latest until the interpreter's exit, which lets go of its resources.

        What nobody closed must not be collected before: its destructor would run where this context is not current.
        """
        with self._lock:
            self._users.add(user)

    def remove_user(self, user: Releasable) -> None:
        """Forget a user that has let go of its resources; a second call does nothing."""
        with self._lock:
            self._users.discard(user)

    def release(self) -> None:
        """Let go of every resource, at the interpreter's exit: PyCUDA's destructors would run too late and complain."""
        if self.forked:
            return
        with self._lock:
            users = list(self._users)
        first: DeviceError | None = None
        for user in users:
            try:
                user.release()
            except DeviceError as error:  # of a lost device; the others are let go of all the same
                first = first or error
        if first is not None:
            raise first

    def disown(self) -> None:
        """Refuse every use from now on, in a forked child: nothing there belongs to it, and no destructor may run there."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object((self._driver_context, self._users)))
        self._lock = threading.RLock()
        self.forked, self._fault, self._driver_context = True, driver.FORKED, _ForkedContext(self.name)


class _ForkedContext:
    """Stands for the context in a forked child."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.handle = 0

    def push(self) -> None:
        raise DeviceFaultError(f"{self._name} cannot be used: {driver.FORKED}")

    pop = synchronize = push


_lock = threading.Lock()  # guards _contexts
_contexts: dict[int, Context] = {}


def retained(index: int) -> Context:
    """Return the process's one context of a device, made by the first who asks.

    Raises:
        DeviceNotFoundError: there is no such device; the message says how many there are.
        BackendUnavailableError: PyCUDA or the driver is missing.
    """
    with _lock:
        context = _contexts.get(index)
        if context is None:
            count = driver.device_count()
            if not 0 <= index < count:
                raise DeviceNotFoundError(f"there is no cuda:{index}; the driver shows {count} devices, cuda:0 first")
            if not _contexts:
                atexit.register(_release_all)
                os.register_at_fork(after_in_child=_disown_all)
            context = _contexts[index] = Context(index)
        return context


def _release_all() -> None:
    with _lock:
        contexts = list(_contexts.values())
    for context in contexts:
        context.release()


def _disown_all() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    for context in _contexts.values():
        context.disown()
