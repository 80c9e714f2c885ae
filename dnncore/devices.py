"""Names of devices, and the way from a name to a backend's Device: "cpu" is the reference backend, "cuda:N" a CUDA device.

Nothing here falls back from one backend to another behind the caller's back: a name that cannot be served is an error.
"""

from __future__ import annotations

import logging
import re

from dnncore.backend import Device, DeviceInfo
from dnncore.errors import BackendUnavailableError, BadParamError, DeviceNotFoundError

__all__ = ["cuda_count", "info", "limit_cpu_threads", "open_device", "resolve"]

_log = logging.getLogger(__name__)
_NAME = re.compile(r"cpu|cuda:(0|[1-9][0-9]{0,3})")


def _cuda_index(name: str) -> int | None:
    """N of "cuda:N", None for "cpu"."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise BadParamError(f'device {name!r} is not a device name; use "cpu" or "cuda:0", "cuda:1", ...')
    if match[1] is None:
        return None
    index, count = int(match[1]), cuda_count()
    if index >= count:
        there = ", ".join(f"cuda:{i}" for i in range(count)) or "none"
        raise DeviceNotFoundError(f"device {name} does not exist; CUDA devices of this machine: {there}")
    return index


def cuda_count() -> int:
    """Number of CUDA devices that the driver shows.

    Raises:
        BackendUnavailableError: PyCUDA or the driver is not there; the message says what to install.
    """
    from dnncore.cuda import device

    return device.count()


def resolve(spec: str | None) -> tuple[str, ...]:
    """Turn what a user asked for into checked device names.

    Args:
        spec: Names separated by commas, the same name as often as wanted; None for every CUDA device of the machine, or "cpu" where
            there is none.

    Raises:
        BadParamError: a name is malformed.
        DeviceNotFoundError: no such device; the message lists those there are.
        BackendUnavailableError: a CUDA device is named but PyCUDA or the driver is missing.
    """
    if spec is None:
        try:
            count = cuda_count()
        except BackendUnavailableError as error:
            _log.info("no CUDA device is used: %s", error)
            count = 0
        return tuple(f"cuda:{index}" for index in range(count)) or ("cpu",)
    names = tuple(name.strip() for name in spec.split(","))
    for name in names:
        _cuda_index(name)
    return names


def info(name: str) -> DeviceInfo:
    """What a device is; errors as `resolve`."""
    index = _cuda_index(name)
    if index is None:
        from dnncore.reference import device as reference

        return reference.info()
    from dnncore.cuda import device

    return device.info(index)


def open_device(name: str) -> Device:
    """Open a device for the calling thread; errors as `resolve`."""
    index = _cuda_index(name)
    if index is None:
        from dnncore.reference import ReferenceDevice

        return ReferenceDevice()
    from dnncore.cuda import device

    return device.open_device(index)


def limit_cpu_threads(count: int) -> None:
    """Let the matrix products of "cpu" use at most so many threads each, in this whole process; for programs, not libraries.

    BLAS starts a thread a core by default, and these spin: for the small products of one batch that costs more than it gains
    (LeNet on two cores trained at 3,900 images/s with two threads and 6,700 with one), and several runners fight for the cores.
    """
    try:
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise BackendUnavailableError(
            "threadpoolctl is not installed: pip install 'dnncore[server]' or 'dnncore[train]'"
        ) from error
    threadpool_limits(count, user_api="blas")
