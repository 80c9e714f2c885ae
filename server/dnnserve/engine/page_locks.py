"""Arenas whose pages are locked, so that the device of this process copies rows from where front ends have put them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dnncore import devices
from dnncore.backend import Device
from dnncore.errors import DeviceFaultError, DnncoreError, NotSupportedError
from dnnserve.processes.arena import Arena

__all__ = ["PageLocks"]

_log = logging.getLogger(__name__)


class PageLocks:
    """Locks arenas and unlocks them, in a thread of its own: all pages of an arena are made for it, which takes a while. Owned by
    one thread; not checked.

    `Arena.page_locked` says which are locked. The rows of others are copied into slots by the processor: those of arenas whose turn
    has not come, and, once the device has refused one, of all that follow. The log has that once; the server's metrics count bytes
    either way.

    Args:
        device: "cpu" or "cuda:N"; it is open by the time that there is an arena.
    """

    def __init__(self, device: str) -> None:
        self._name = device
        self._thread = ThreadPoolExecutor(1, "dnnserve-page-locks")
        self._wanted: set[Arena] = set()
        # Of that thread alone.
        self._device: Device | None = None
        self._refused = False
        self._unlock: dict[Arena, Callable[[], None]] = {}

    def lock(self, arena: Arena) -> None:
        """Lock an arena when its turn comes. Does not wait. A second call does nothing."""
        if arena not in self._wanted:
            self._wanted.add(arena)
            self._thread.submit(self._lock, arena)

    def unlock(self, arena: Arena) -> None:
        """Unlock an arena that no batch has a block of, if it is locked, and let go of its memory then. Does not wait."""
        if arena in self._wanted:
            self._wanted.remove(arena)
            self._thread.submit(self._undo, arena)

    def close(self) -> None:
        """Unlock all, and wait for it; no batch is left, or the device is lost."""
        self._thread.submit(self._undo_all)
        self._thread.shutdown()

    def _lock(self, arena: Arena) -> None:
        if self._refused:
            return
        try:
            if self._device is None:
                self._device = devices.open_device(self._name)
            self._unlock[arena] = self._device.lock_pages(arena.bytes)
        except Exception as error:  # noqa: BLE001 - whatever it is, rows reach the device as they always have
            self._refused = True
            level = logging.INFO if isinstance(error, NotSupportedError) else logging.WARNING
            reason = error if isinstance(error, DnncoreError) else repr(error)
            text = "%s does not read rows where front ends put them; they are copied into memory of its own first: %s"
            _log.log(level, text, self._name, reason)
            return
        arena.page_locked = True

    def _undo(self, arena: Arena) -> None:
        arena.page_locked = False
        unlock = self._unlock.pop(arena, None)
        try:
            if unlock is not None:
                unlock()
        except DeviceFaultError:
            pass  # a lost device reads nothing any more
        except Exception:  # noqa: BLE001 - arenas that follow get their turn
            _log.exception("memory of a front end stays locked on %s", self._name)

    def _undo_all(self) -> None:
        for arena in list(self._unlock):
            self._undo(arena)
        if self._device is not None:
            self._device.close()
