"""The regions that a front end knows, and how tensors are read and written there.

A tensor is copied out of a region once, before anything is made of it, and into one when its request is answered, by `preadv` and
`pwritev` on the descriptor. So a client that changes its memory afterwards changes nothing that was read, and one that makes it
shorter gets an error.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Sequence

import numpy as np

from dnnserve.catalog import shorten
from dnnserve.errors import InvalidRequestError, RegionNotFoundError, UnsupportedError
from dnnserve.shared_memory.copies import CopyBudget
from dnnserve.shared_memory.posix import size_of
from dnnserve.shared_memory.requests import Area, Registration

__all__ = ["Destination", "Origin", "Region", "Regions"]

_MOST_COPIED_BYTES = 1 << 30
_PIECE_BYTES = 8 << 20  # a few milliseconds


class Region:
    """An object's part that was registered. Thread-safe: `_lock` guards `_users`.

    It is kept open by those who use it: the table of regions, until it is unregistered, and requests with tensors there.

    Args:
        registration: What the client has said of it.
        fd: Of the object; duplicated.
    """

    def __init__(self, registration: Registration, fd: int) -> None:
        self.registration = registration
        self.fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)
        self._writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        self._lock = threading.Lock()
        self._users = 1

    def hold(self) -> None:
        """Use it; whoever calls this knows that somebody does already."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """Use it no more."""
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            os.close(self.fd)

    def check(self, area: Area, *, written: bool) -> None:
        """See whether an area lies in the region.

        Raises:
            InvalidRequestError: it does not, or it is to be written and must not be.
        """
        if area.offset + area.nbytes > self.registration.nbytes:
            raise InvalidRequestError(
                f"{area.nbytes} bytes from {area.offset} on are not in shared memory region {shorten(area.region)}, which has "
                f"{self.registration.nbytes}"
            )
        if written and not self._writable:
            raise InvalidRequestError(
                f"shared memory region {shorten(area.region)} is for reading alone: the server may not write to "
                f"{shorten(self.registration.key)}"
            )

    def read(self, area: Area, checkpoint: Callable[[], None]) -> memoryview:
        """A copy of an area.

        Args:
            area: Which.
            checkpoint: Called before every piece of it; what it raises ends the work.

        Raises:
            InvalidRequestError: the object ends before it.
        """
        copy = np.empty(area.nbytes, np.uint8).data
        self._transfer(os.preadv, copy, area, checkpoint)
        return copy

    def write(self, area: Area, data: memoryview, checkpoint: Callable[[], None]) -> None:
        """Fill an area.

        Args:
            area: Which.
            data: What with.
            checkpoint: Called before every piece of it; what it raises ends the work.

        Raises:
            InvalidRequestError: the object ends before it, or it cannot be written.
        """
        end = self.registration.offset + area.offset + len(data)

        def check() -> None:
            checkpoint()
            if size_of(self.fd) < end:  # each time: a client may cut it off between two pieces
                raise self._cut(area)  # it would grow

        self._transfer(os.pwritev, data, area, check)

    def _transfer(
        self,
        act: Callable[[int, Sequence[memoryview], int], int],
        data: memoryview,
        area: Area,
        checkpoint: Callable[[], None],
    ) -> None:
        position = self.registration.offset + area.offset
        while data:
            checkpoint()
            try:
                done = act(self.fd, [data[:_PIECE_BYTES]], position)
            except OSError as error:
                name = shorten(area.region)
                raise InvalidRequestError(f"shared memory region {name} cannot be used: {error.strerror}") from error
            if not done:
                raise self._cut(area)
            position += done
            data = data[done:]

    def _cut(self, area: Area) -> InvalidRequestError:
        return InvalidRequestError(
            f"shared memory region {shorten(area.region)} has been made shorter since it was registered: "
            f"{shorten(self.registration.key)} has {size_of(self.fd)} bytes"
        )


class Destination:
    """Where an output goes: an area of a region that is held until the request has ended. Owned by one thread at a time."""

    __slots__ = ("_area", "_region")

    def __init__(self, region: Region, area: Area) -> None:
        self._region = region
        self._area = area

    def write(self, output: np.ndarray, checkpoint: Callable[[], None]) -> Area:
        """Put an output there; what it takes of the area.

        Args:
            output: It.
            checkpoint: As `Region.write` has it.

        Raises:
            InvalidRequestError: it cannot be.
        """
        area = self._area._replace(nbytes=output.nbytes)
        self._region.write(area, np.ascontiguousarray(output).reshape(-1).view(np.uint8).data, checkpoint)
        return area

    def release(self) -> None:
        """The request has ended."""
        self._region.release()


class Origin:
    """Where an input comes from: an area of a region that is held until the request has ended, and room for a copy of it. Owned by
    one thread at a time.
    """

    __slots__ = ("_area", "_budget", "_region")

    def __init__(self, region: Region, area: Area, budget: CopyBudget) -> None:
        self._region = region
        self._area = area
        self._budget = budget

    @property
    def nbytes(self) -> int:
        """What is read."""
        return self._area.nbytes

    def read(self, checkpoint: Callable[[], None]) -> memoryview:
        """A copy of what lies there now.

        Args:
            checkpoint: As `Region.read` has it.

        Raises:
            InvalidRequestError: the object ends before it.
        """
        return self._region.read(self._area, checkpoint)

    def release(self) -> None:
        """The request has ended, and its copy with it."""
        self._budget.give_back(self._area.nbytes)
        self._region.release()


class Regions:
    """Regions by name. Thread-safe: `_lock` guards `_regions`.

    Args:
        taken: Whether the server takes any.
        most_image_bytes: That are read at once where no model says how many there are.
        most_copied_bytes: Of all inputs that were read for requests which have not ended.
    """

    def __init__(
        self, *, taken: bool = False, most_image_bytes: int = 0, most_copied_bytes: int = _MOST_COPIED_BYTES
    ) -> None:
        self.taken = taken
        self.most_image_bytes = most_image_bytes
        self._budget = CopyBudget(most_copied_bytes)
        self._lock = threading.Lock()
        self._regions: dict[str, Region] = {}

    def check_taken(self) -> None:
        """Raise where the server takes none.

        Raises:
            UnsupportedError: it does not.
        """
        if not self.taken:
            raise UnsupportedError(
                "this server takes no shared memory; start it with --shared-memory, or send tensors in requests"
            )

    def add(self, registration: Registration, fd: int) -> None:
        """Let requests speak of a region, whose object's descriptor is duplicated."""
        region = Region(registration, fd)
        with self._lock:
            before = self._regions.get(registration.name)
            self._regions[registration.name] = region
        if before is not None:
            before.release()

    def remove(self, name: str) -> None:
        """Let no further request speak of a region. One that is not there is no error."""
        with self._lock:
            region = self._regions.pop(name, None)
        if region is not None:
            region.release()

    def all(self) -> tuple[Region, ...]:
        """Those that are there."""
        with self._lock:
            return tuple(self._regions.values())

    def close(self) -> None:
        """Remove all."""
        for region in self.all():
            self.remove(region.registration.name)

    def registrations(self, name: str) -> tuple[Registration, ...]:
        """What is registered by this name; by an empty one, all.

        Raises:
            RegionNotFoundError: nothing is.
        """
        found = tuple(region.registration for region in self.all() if name in ("", region.registration.name))
        if name and not found:
            raise _unknown(name)
        return found

    def origin(self, area: Area) -> Origin:
        """Where an input may be read until it is released; nothing is read yet.

        Raises:
            RegionNotFoundError: there is no such region.
            InvalidRequestError: the area is not in it, or larger than inputs may be.
            QueueFullError: there is no room for a copy of it now.
        """
        region = self._hold(area, written=False)
        try:
            self._budget.take(area.nbytes)
        except BaseException:
            region.release()
            raise
        return Origin(region, area, self._budget)

    def destination(self, area: Area) -> Destination:
        """Where an output may go until it is released.

        Raises:
            RegionNotFoundError: there is no such region.
            InvalidRequestError: the area is not in it, or must not be written.
        """
        return Destination(self._hold(area, written=True), area)

    def _hold(self, area: Area, *, written: bool) -> Region:
        with self._lock:
            region = self._regions.get(area.region)
            if region is None:
                raise _unknown(area.region)
            region.check(area, written=written)
            region.hold()
        return region


def _unknown(name: str) -> RegionNotFoundError:
    return RegionNotFoundError(
        f"shared memory region {shorten(name)} is not registered; SystemSharedMemoryRegister does so"
    )
