"""Opens the regions that clients register, within bounds, and has every front end know them before a client is told."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from dnnserve.catalog import shorten
from dnnserve.config import ServerConfig
from dnnserve.errors import (
    InvalidRequestError,
    RegionExistsError,
    RequestError,
    TooManyRegionsError,
    UnavailableError,
)
from dnnserve.shared_memory.posix import open_object, size_of
from dnnserve.shared_memory.requests import RegionQuestion, Registration

__all__ = ["RegionDoor", "Registry"]

_log = logging.getLogger(__name__)

_LONGEST_NAME = 256

Told = Callable[[tuple[()] | RequestError], None]
"""Called with nothing once it is done, or with why it is not."""


class RegionDoor(Protocol):
    """What is used here of the front end. Thread-safe."""

    def add_region(self, registration: Registration, fd: int) -> None:
        """Let requests speak of a region; when this returns they may, everywhere.

        Raises:
            UnavailableError: a process does not answer, or has no descriptor left; then they may nowhere.
        """
        ...

    def remove_region(self, name: str) -> None:
        """Let no further request speak of a region."""
        ...


class Registry:
    """All regions. Thread-safe: what clients ask is done by a thread of its own, one thing after another; `_regions` is
    that thread's.

    Args:
        config: How many regions there may be, and of how many bytes together.
        door: What takes calls.
    """

    def __init__(self, config: ServerConfig, door: RegionDoor) -> None:
        self._config = config
        self._door = door
        self._worker = ThreadPoolExecutor(1, "dnnserve-regions")
        self._regions: dict[str, int] = {}  # their bytes, by name

    def ask(self, question: RegionQuestion, told: Told) -> None:
        """Have a client's question answered, in any thread. Does not block."""
        try:
            self._worker.submit(self._do, question, told)
        except RuntimeError:  # closed
            told(UnavailableError("the server is stopping; ask another replica"))

    def close(self) -> None:
        """Answer nothing more."""
        self._worker.shutdown(wait=False)

    def _do(self, question: RegionQuestion, told: Told) -> None:
        try:
            if isinstance(question, Registration):
                self._register(question)
            else:
                for name in [question.name] if question.name else list(self._regions):
                    self._unregister(name)
        except RequestError as error:
            told(error)
        except Exception as error:  # noqa: BLE001 - the client is told, whatever it is
            _log.exception("%s failed", question)
            told(UnavailableError(f"the region could not be registered: {type(error).__name__}; the log has the cause"))
        else:
            told(())

    def _register(self, wanted: Registration) -> None:
        self._check(wanted)
        fd = open_object(wanted.key)
        try:
            size = size_of(fd)
            if wanted.offset + wanted.nbytes > size:
                raise InvalidRequestError(
                    f"{wanted.nbytes} bytes from {wanted.offset} on are not in {shorten(wanted.key)}, which has {size}"
                )
            self._door.add_region(wanted, fd)
        finally:
            os.close(fd)
        self._regions[wanted.name] = wanted.nbytes
        _log.info("shared memory: %s is registered as %s", shorten(wanted.key), shorten(wanted.name))

    def _check(self, wanted: Registration) -> None:
        config, total = self._config, sum(self._regions.values())
        if not 0 < len(wanted.name) <= _LONGEST_NAME:
            raise InvalidRequestError(f"the region's name has {len(wanted.name)} characters; send 1 to {_LONGEST_NAME}")
        if not wanted.nbytes:
            raise InvalidRequestError(f"region {shorten(wanted.name)} has no byte; send its byte_size")
        if wanted.name in self._regions:
            raise RegionExistsError(f"region {shorten(wanted.name)} is registered already; unregister it first")
        if len(self._regions) >= config.max_shared_memory_regions:
            raise TooManyRegionsError(
                f"{len(self._regions)} regions are registered, as many as may (--max-shared-memory-regions); unregister one"
            )
        if total + wanted.nbytes > config.max_shared_memory_mib << 20:
            raise TooManyRegionsError(
                f"regions of {total} bytes are registered, and this one has {wanted.nbytes}; together they may have "
                f"{config.max_shared_memory_mib << 20} (--max-shared-memory-mib)"
            )

    def _unregister(self, name: str) -> None:
        if self._regions.pop(name, None) is not None:
            self._door.remove_region(name)
            _log.info("shared memory: %s is unregistered", shorten(name))
