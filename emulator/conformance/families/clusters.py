"""Clusters and distributed shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from emulator.conformance import values
from emulator.conformance.checks import Family
from emulator.conformance.families.barriers import simple

if TYPE_CHECKING:
    from emulator.conformance.values import Array

SOURCE = values.bits("clusters", "u32", 256)
T = np.arange(64)


def _pairs() -> Array:
    """The input as [cluster, block, thread]."""
    return SOURCE.reshape(2, 2, 64)


def _exchange() -> Array:
    # Block r reads the other's values mirrored, adds r and puts them at t ^ 5 of the other block.
    read = _pairs()[:, ::-1, ::-1] + np.arange(2, dtype=np.uint32)[:, None]
    return read[:, ::-1][:, :, T ^ 5]


def _generic() -> Array:
    other = _pairs()[:, ::-1, ::-1]
    rank = np.array([1, 0], np.uint32)[:, None] * np.uint32(100000)
    found: Array = other + (63 - T).astype(np.uint32) * np.uint32(1000) + rank + np.uint32(7)
    return found


def _atomics(source: Array) -> Array:
    # Only block 0's totals exist: block 1 keeps its own zeros.
    clusters = source.reshape(2, 128)
    found = np.zeros((2, 2, 64), np.uint32)
    found[:, 0] = (clusters.sum(1) + clusters.max(1)).astype(np.uint32)[:, None]
    return found


def _ranks() -> Array:
    rows = []
    for block in range(4):
        rank, cluster = block % 2, block // 2
        rows.append([rank, 2, cluster, 2, rank, 2, 1, rank ^ 1, rank, rank ^ 1, 1, 0])
    return np.array(rows, np.uint32)


def _store_async() -> Array:
    value = _pairs()[:, ::-1].astype(np.uint64)
    words = [value + np.uint64(i) for i in range(4)]
    words += [value * np.uint64(3), (value * np.uint64(3)) >> np.uint64(32), ~value]
    found = np.zeros_like(value)
    for word in words:
        found = (found * np.uint64(31) + (word & np.uint64(0xFFFFFFFF))) & np.uint64(0xFFFFFFFF)
    return found.astype(np.uint32)


def _reduce_async(source: Array) -> Array:
    found = []
    for block in range(4):
        value = source.reshape(4, 8, 8)[block ^ 1]  # [thread / 8, cell]
        start = (np.uint32(0x00FF0F30) + np.arange(96, dtype=np.uint32)).reshape(12, 8)
        cells = start.copy()
        total = value.sum(0, dtype=np.uint32)
        cells[0], cells[1] = start[0] + total, start[1] + total
        cells[2], cells[3] = np.minimum(start[2], value.min(0)), np.maximum(start[3], value.max(0))
        signed = value.view(np.int32)
        cells[4] = np.minimum(start[4].view(np.int32), signed.min(0)).view(np.uint32)
        cells[5] = np.maximum(start[5].view(np.int32), signed.max(0)).view(np.uint32)
        cells[6] = start[6] & np.bitwise_and.reduce(value | np.uint32(0xFF000000))
        cells[7] = start[7] | np.bitwise_or.reduce(value & np.uint32(0xF0F))
        cells[8] = start[8] ^ np.bitwise_xor.reduce(value)
        for _ in range(8):
            cells[9] = np.where(cells[9] >= 0x00FF0F90, 0, cells[9] + 1)
        wide = np.uint64(0xFFFFFFFF00000000) + value.sum(0, dtype=np.uint64)
        found += [cells.reshape(-1), wide.view(np.uint32)]
    return np.concatenate(found)


def _reductions() -> str:
    rows = "add.u32 add.s32 min.u32 max.u32 min.s32 max.s32 and.b32 or.b32 xor.b32 inc.u32 add.u64"
    return " ".join(
        f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{row}" for row in rows.split()
    )


def family() -> Family:
    """The checks."""
    made = Family("clusters")

    def add(name: str, covers: str, source: Array, outputs: int, expected: object) -> None:
        simple(made, "clusters", name, covers, source, outputs, expected, block=64, grid=4, cluster=2)  # type: ignore[arg-type]

    sync = "barrier.cluster.arrive barrier.cluster.wait mapa"
    add("exchange", f"{sync} ld.shared::cluster st.shared::cluster", SOURCE, 256, _exchange)
    add("generic_exchange", sync, SOURCE, 256, _generic)
    small = SOURCE >> np.uint32(8)
    add("atomics", f"{sync} atom red", small, 256, lambda: _atomics(small))
    add("ranks", f"{sync} getctarank isspacep mov", SOURCE, 48, _ranks)
    swapped = lambda: _pairs()[:, ::-1, ::-1]  # noqa: E731
    add("remote_arrive", f"{sync} mbarrier.arrive mbarrier.try_wait fence.mbarrier_init", SOURCE, 256, swapped)
    add("store_async", f"{sync} st.async mbarrier.try_wait", SOURCE, 256, _store_async)
    add("reduce_async", f"{sync} {_reductions()}", SOURCE, 448, lambda: _reduce_async(SOURCE))
    crossed = lambda: _pairs()[:, ::-1] ^ _pairs()[:, :, T ^ 1]  # noqa: E731
    add("deferred", sync, SOURCE, 256, crossed)
    return made
