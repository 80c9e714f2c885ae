"""cp.async: PTX ISA 9.7.9.25.2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import values
from emulator.conformance.checks import Family
from emulator.conformance.families.barriers import simple

if TYPE_CHECKING:
    from emulator.conformance.values import Array

SOURCE = values.bits("copies", "b8", 2048)


def _words(rows: Array) -> Array:
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint32)


def _partial() -> Array:
    return _words(np.where(np.arange(16) < np.arange(128)[:, None] % 17, SOURCE.reshape(128, 16), 0).astype(np.uint8))


def _partial4() -> Array:
    left = (np.arange(128)[:, None] + np.arange(4)) % 5
    kept = np.arange(4) < left[:, :, None]
    return _words(np.where(kept, SOURCE.reshape(128, 4, 4), 0).astype(np.uint8))


def _ignored() -> Array:
    return _words(np.where(np.arange(128)[:, None] % 3 == 0, 0, SOURCE.reshape(128, 16)).astype(np.uint8))


def _groups() -> Array:
    sums = np.zeros((128, 4), np.uint32)
    for step in range(6):
        start = (np.arange(128) * 16 + step * 272) % 2048
        slab = SOURCE[start[:, None] + np.arange(16)].view(np.uint32)
        sums = sums * np.uint32(5) + slab[::-1]
    return sums


def family() -> Family:
    """The checks."""
    made = Family("copies")
    rows = SOURCE.reshape(128, 16)
    groups = "cp.async.commit_group cp.async.wait_group"
    simple(
        made,
        "copies",
        "sizes",
        f"cp.async.ca cp.async.cg {groups}",
        SOURCE,
        512,
        lambda: _words(rows[::-1] * np.uint8(9)),
    )
    simple(made, "copies", "partial", "cp.async.cg cp.async.wait_all", SOURCE, 512, _partial)
    simple(made, "copies", "partial4", "cp.async.ca cp.async.wait_all", SOURCE, 512, _partial4)
    simple(made, "copies", "ignored", "cp.async.cg cp.async.wait_all", SOURCE, 512, _ignored)
    simple(made, "copies", "groups", f"cp.async.cg {groups}", SOURCE, 512, _groups)
    covers = "cp.async.mbarrier.arrive cp.async.mbarrier.arrive.noinc"
    arrived = lambda: _words(rows[np.arange(128) ^ 64] * np.uint8(4))  # noqa: E731
    simple(made, "copies", "arrivals", covers, SOURCE, 512, arrived)
    return made
