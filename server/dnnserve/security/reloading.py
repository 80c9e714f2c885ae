"""Values that are read from files, and read again when those change: certificates and tokens are renewed under a running server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from dnncore.errors import DnncoreError

__all__ = ["Reloading"]

_log = logging.getLogger(__name__)
_Value = TypeVar("_Value")
_Stamp = tuple[tuple[int, int, int], ...]


class Reloading(Generic[_Value]):
    """A value from files. Thread-safe: `_lock` guards all other fields; who finds it taken gets the value that there is.

    Files are looked at when the value is asked for, once in `period_s` at most. Where the new ones cannot be read (a certificate
    whose key has not come yet), the old value stays, the log says so once, and the files are tried again.

    Args:
        paths: The files.
        read: Makes the value of them; raises DnncoreError or OSError.
        period_s: How old the look at the files may be.
        clock: Monotonic seconds.

    Raises:
        DnncoreError: the files cannot be used at the start.
        OSError: they cannot be read.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[], _Value],
        period_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._period_s = period_s
        self._clock = clock
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._failed: _Stamp | None = None
        self._value = read()
        self._looked_s = clock()

    @property
    def current(self) -> _Value:
        """The value of the files as they are now, or were a moment ago."""
        if self._clock() - self._looked_s >= self._period_s and self._lock.acquire(blocking=False):
            try:
                self._update()
            finally:
                self._lock.release()
        return self._value

    def _update(self) -> None:
        self._looked_s = self._clock()
        names = ", ".join(map(str, self._paths))
        stamp: _Stamp | None = None
        try:
            stamp = self._look()
            if stamp == self._stamp:
                return
            self._value = self._read()
        except (DnncoreError, OSError) as error:
            if self._failed != (stamp or ()):
                _log.error("%s: what has changed cannot be used, so the old holds: %s", names, error)
            self._failed = stamp or ()
            return
        self._stamp, self._failed = stamp, None
        _log.info("%s: read again", names)

    def _look(self) -> _Stamp:
        # Through links: Kubernetes exchanges the folder that they lead into.
        found = (path.stat() for path in self._paths)
        return tuple((status.st_mtime_ns, status.st_ino, status.st_size) for status in found)
