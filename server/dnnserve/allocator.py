"""How glibc's allocator treats the memory of large messages."""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_BY_ENVIRONMENT = ("GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
_FROM_HEAP_BYTES = (
    32 << 20
)  # the most that glibc takes for a threshold; images of 11 megapixels and more go back at once
_KEPT_BYTES = 128 << 20
_GROWTH_BYTES = 64 << 20


def keep_freed_memory() -> bool:
    """Let freed blocks of up to 32 MiB stay with the process, up to 128 MiB of them.

    By default glibc gives blocks of 128 KiB and more back to the kernel when they are freed, and each message of that size then
    waits for hundreds of pages to be mapped and cleared again: a third of the server's time for requests of 600 KB.

    Returns:
        Whether it was done; it is not where the environment sets these parameters, or where there is no glibc.
    """
    if any(name in os.environ for name in _BY_ENVIRONMENT):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    settings = (
        (_M_MMAP_THRESHOLD, _FROM_HEAP_BYTES),
        (_M_TRIM_THRESHOLD, _KEPT_BYTES),
        (_M_TOP_PAD, _GROWTH_BYTES),
    )
    return all(mallopt(parameter, value) for parameter, value in settings)
