"""Kernels of compiled units, loaded into a device's context: once in the process, by the first who asks."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from dnncore.cuda.runtime import driver_launch, jit
from dnncore.cuda.runtime.context import Context
from dnncore.cuda.runtime.driver_launch import DriverFunction
from dnncore.cuda.unit import Unit
from dnncore.errors import NotSupportedError

__all__ = ["Kernels", "LoadedKernels", "of_context"]

_ALLOWED_SHARED_BYTES = 48 * 1024
"""Dynamic shared memory that every launch may have; more needs a word to the driver (CUDA C++ Programming Guide, 16.8.3)."""


class Kernels(Protocol):
    """Where the binder gets the kernel of a unit from."""

    def function(self, unit: Unit, shared_bytes: int = 0) -> DriverFunction:
        """The kernel, ready to be launched with so much dynamic shared memory."""
        ...


class LoadedKernels:
    """The kernels of one device. Thread-safe.

    Args:
        context: Of the device, with `with` around what needs it current.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._architecture = jit.architecture(context.compute_capability)
        self._lock = threading.Lock()  # guards the dictionaries
        self._modules: dict[str, Any] = {}
        self._functions: dict[Unit, DriverFunction] = {}
        self._shared_bytes: dict[Unit, int] = {}

    def function(self, unit: Unit, shared_bytes: int = 0) -> DriverFunction:
        """The kernel of a unit, compiled and loaded by the first in the process who asks.

        Args:
            unit: The kernel.
            shared_bytes: Dynamic shared memory that it will be launched with.

        Raises:
            NotSupportedError: the unit does not exist for this device's architecture.
            CompilationError: it does not compile.
            BackendUnavailableError: there is neither a compiler nor a prebuilt cubin.
        """
        with self._lock:
            found = self._functions.get(unit)
        if found is None:
            found = self._load(unit)
        if shared_bytes > _ALLOWED_SHARED_BYTES:
            with self._lock, self._context:
                if shared_bytes > self._shared_bytes.get(unit, 0):
                    driver_launch.allow_shared_bytes(found, shared_bytes)
                    self._shared_bytes[unit] = shared_bytes
        return found

    def _load(self, unit: Unit) -> DriverFunction:
        reason = unit.why_not_on(self._architecture)
        if reason is not None:
            raise NotSupportedError(f"{self._context.name}: {reason}")
        with self._lock:
            is_loaded = unit.source in self._modules
        image = b"" if is_loaded else jit.cubin(unit, self._architecture)  # outside the lock: it takes seconds
        with self._lock, self._context:
            found = self._functions.get(unit)
            if found is None:
                if unit.source not in self._modules:
                    self._modules[unit.source] = driver_launch.load_module(image)
                found = self._functions[unit] = driver_launch.load_function(self._modules[unit.source], unit.entry)
        return found


_lock = threading.Lock()  # guards _loaded
_loaded: dict[int, LoadedKernels] = {}


def of_context(context: Context) -> LoadedKernels:
    """The process's one set of kernels for a device."""
    with _lock:
        found = _loaded.get(context.index)
        if found is None:
            found = _loaded[context.index] = LoadedKernels(context)
    return found
