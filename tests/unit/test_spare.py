"""Blocks that are kept for the results to come."""

from __future__ import annotations

from typing import Any

from dnncore.spare import MOST_BLOCK_BYTES, MOST_BYTES, Spare


class _Memory:
    def __init__(self, nbytes: int, *, reusable: bool = True) -> None:
        self.nbytes, self.reusable, self.abandoned = nbytes, reusable, False

    def abandon(self) -> None:
        self.abandoned = True


def _memory(nbytes: int, *, reusable: bool = True) -> Any:
    return _Memory(nbytes, reusable=reusable)


def test_a_block_is_had_by_its_size_once() -> None:
    spare, block = Spare(), _memory(64)
    assert spare.take(64) is None
    assert spare.keep(block)
    assert spare.take(65) is None
    assert spare.take(64) is block
    assert spare.take(64) is None


def test_what_others_have_seen_what_is_large_and_what_is_too_much_is_not_kept() -> None:
    spare = Spare()
    assert not spare.keep(_memory(64, reusable=False))
    assert not spare.keep(_memory(MOST_BLOCK_BYTES + 1))
    blocks = [_memory(MOST_BLOCK_BYTES) for _ in range(MOST_BYTES // MOST_BLOCK_BYTES)]
    assert all(map(spare.keep, blocks))
    assert not spare.keep(_memory(1))
    spare.take(MOST_BLOCK_BYTES)
    assert spare.keep(_memory(1))


def test_all_of_it_is_given_back() -> None:
    spare, blocks = Spare(), [_memory(nbytes) for nbytes in (8, 8, 16)]
    assert all(map(spare.keep, blocks))
    spare.abandon()
    assert all(block.abandoned for block in blocks)
    assert spare.take(8) is None
    assert spare.keep(_memory(MOST_BLOCK_BYTES))
