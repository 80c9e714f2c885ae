"""mbarrier objects: PTX ISA 9.7.13.15."""

from __future__ import annotations

import numpy as np

from emulator.conformance import values
from emulator.conformance.checks import Family
from emulator.conformance.families.barriers import simple
from emulator.conformance.values import Array


def _rounds(source: Array) -> Array:
    total = source.copy()
    for _ in range(8):
        total = total + total[(np.arange(128) + 33) % 128]
    return total


def family() -> Family:
    """The checks."""
    made = Family("mbarrier")
    source = values.bits("mbarrier", "u32", 128)
    one = np.array([0x1234], np.uint32)
    # Pending counts are those before the arrival (PTX ISA 9.7.13.15.15, pending_count).
    walked = np.array([0, 1, 3, 2, 0, 1, 1, 1, 1, 0, 3, 0, 2, 1, 1, 0x1234], np.uint32)
    covers = "mbarrier.init mbarrier.arrive mbarrier.arrive.noComplete mbarrier.test_wait mbarrier.test_wait.parity"
    covers += " mbarrier.pending_count mbarrier.inval"
    simple(made, "mbarrier", "phases", covers, one, 16, lambda: walked, block=1)
    dropped = np.array([4, 3, 1, 2, 0, 1, 0x1234], np.uint32)
    covers = "mbarrier.arrive_drop mbarrier.pending_count mbarrier.test_wait"
    simple(made, "mbarrier", "dropping", covers, one, 7, lambda: dropped, block=1)
    transferred = np.array([0, 0, 1, 0, 1, 0, 1, 0x1234], np.uint32)
    covers = "mbarrier.arrive.expect_tx mbarrier.expect_tx mbarrier.complete_tx"
    simple(made, "mbarrier", "transactions", covers, one, 8, lambda: transferred, block=1)
    covers = "mbarrier.try_wait mbarrier.try_wait.parity mbarrier.arrive"
    simple(made, "mbarrier", "rounds", covers, source, 128, lambda: _rounds(source))
    covers = "mbarrier.try_wait mbarrier.arrive.release.cta"
    simple(made, "mbarrier", "states", covers, source, 128, lambda: source[::-1].copy())
    covers = "mbarrier.init mbarrier.arrive mbarrier.test_wait"
    simple(made, "mbarrier", "generic", covers, one, 1, lambda: one + np.uint32(1), block=1)
    return made
