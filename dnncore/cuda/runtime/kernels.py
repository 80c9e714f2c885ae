"""Kernels of compiled units, loaded into a device's context: once in the process, by the first who asks."""

from __future__ import annotations

import logging
import threading
from typing import Any, Protocol

from dnncore.cuda.runtime import driver_launch, jit
from dnncore.cuda.runtime.context import Context
from dnncore.cuda.runtime.driver_launch import DriverFunction
from dnncore.cuda.unit import Unit
from dnncore.errors import NotSupportedError

__all__ = ["Kernels", "LoadedKernels", "of_context"]

_log = logging.getLogger(__name__)

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

    Attributes:
        architecture: What they are compiled for, as nvcc names it: "sm_90a"; "compute_80" where the driver compiles PTX.

    Raises:
        NotSupportedError: the device is older than all that kernels are made for.
    """

    def __init__(self, context: Context) -> None:
        if context.compute_capability < jit.OLDEST:
            raise NotSupportedError(
                f"{context.name} has compute capability {_dotted(context.compute_capability)}; kernels are made for "
                f'{_dotted(jit.OLDEST)} and newer: use another device, or device "cpu"'
            )
        self._context = context
        self.architecture = jit.target(context.compute_capability)
        if jit.is_ptx(self.architecture):
            native = jit.architecture(context.compute_capability)
            _log.warning(
                "%s has compute capability %s, for which nothing was built: its driver compiles PTX for %s, each kernel at its "
                "first use, and kernels of other architectures alone are left out; python -m dnncore.cuda.build --arch %s makes "
                "machine code",
                context.name,
                _dotted(context.compute_capability),
                self.architecture,
                native,
            )
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
            BackendUnavailableError: there is neither a compiler nor a prebuilt cubin, nor PTX.
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
        reason = unit.why_not_on(self.architecture)
        if reason is not None:
            raise NotSupportedError(f"{self._context.name}: {reason}")
        with self._lock:
            is_loaded = unit.source in self._modules
        image = b"" if is_loaded else self._image(unit)  # outside the lock: it takes seconds
        with self._lock, self._context:
            found = self._functions.get(unit)
            if found is None:
                if unit.source not in self._modules:
                    self._modules[unit.source] = self._module(image, unit)
                found = self._functions[unit] = driver_launch.load_function(self._modules[unit.source], unit.entry)
        return found

    def _image(self, unit: Unit) -> bytes:
        return jit.ptx(unit) if jit.is_ptx(self.architecture) else jit.cubin(unit, self.architecture)

    def _module(self, image: bytes, unit: Unit) -> Any:
        if jit.is_ptx(self.architecture):
            return driver_launch.load_ptx(image, unit.entry)
        return driver_launch.load_module(image)


def _dotted(compute_capability: tuple[int, int]) -> str:
    return "{}.{}".format(*compute_capability)


_lock = threading.Lock()  # guards _loaded
_loaded: dict[int, LoadedKernels] = {}


def of_context(context: Context) -> LoadedKernels:
    """The process's one set of kernels for a device."""
    with _lock:
        found = _loaded.get(context.index)
        if found is None:
            found = _loaded[context.index] = LoadedKernels(context)
    return found
