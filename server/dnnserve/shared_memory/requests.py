"""What clients ask of regions: plain data, which travels between processes."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Area", "RegionQuestion", "Registration", "Unregistration"]


class Registration(NamedTuple):
    """Let requests speak of a region. Immutable.

    Args:
        name: What they call it.
        key: Of the shared memory object, as `shm_open` takes it.
        offset: Where the region begins in it, in bytes.
        nbytes: Of the region.
    """

    name: str
    key: str
    offset: int
    nbytes: int


class Unregistration(NamedTuple):
    """Requests speak of a region no more. Immutable.

    Args:
        name: Of the region; empty: of none at all.
    """

    name: str


RegionQuestion = Registration | Unregistration


class Area(NamedTuple):
    """Where a tensor lies. Immutable.

    Args:
        region: Its name.
        offset: In the region, in bytes.
        nbytes: That it may take.
    """

    region: str
    offset: int
    nbytes: int
