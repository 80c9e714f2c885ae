"""How much workspace the backward-filter kernels of sm_90 get for the parts of tiles. No device."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dnncore.cuda.convolution.filter_schedule import Schedule
from dnncore.cuda.convolution.filter_tile import Tile

TILE = Tile(64, 256, 5)


def _slots(schedule: Schedule) -> dict[int, list[int]]:
    """Of each tile that is shared, those of its parts: the arithmetic of `convolution/filter_feed.cuh`."""
    total, found = schedule.tiles * schedule.steps, dict[int, list[int]]()
    for block in range(schedule.blocks):
        step, end = (total * which // schedule.blocks for which in (block, block + 1))
        while step < end:
            tile, first = divmod(step, schedule.steps)
            steps = min(end - step, schedule.steps - first)
            if steps < schedule.steps:
                found.setdefault(tile, []).append(block + min(tile, block + (first == 0)))
            step += steps
    return found


@given(tiles=st.integers(1, 40), steps=st.integers(1, 30), blocks=st.integers(1, 60))
def test_each_part_of_a_tile_has_a_slot_of_the_workspace(tiles: int, steps: int, blocks: int) -> None:
    schedule = Schedule(TILE, 1, tiles, steps, min(blocks, tiles * steps))
    found = _slots(schedule)
    used = [slot for slots in found.values() for slot in slots]
    assert len(set(used)) == len(used)
    assert all(slots == list(range(slots[0], slots[0] + len(slots))) for slots in found.values())
    assert max((len(slots) for slots in found.values()), default=1) <= schedule.parts
    assert max(used, default=-1) < schedule.slots
    assert schedule.workspace_bytes == schedule.slots * 64 * 256 * 4
    assert schedule.slots < 2 * schedule.blocks


def test_more_tiles_than_blocks_take_no_more_than_two_slots_for_a_block() -> None:
    assert [Schedule(TILE, 1, tiles, 7, 132).slots for tiles in (66, 132, 133, 1000)] == [197, 0, 263, 263]
