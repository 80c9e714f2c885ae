"""The model of PyTorch's allocator hands out memory as that does, and what comes again in it is replayed."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from torch import nn

import dnncore.torch as dt
from benchmarks.addresses import Allocator, Block, replayed_in_steps

MIB = 1 << 20


def test_the_smallest_block_that_is_large_enough_is_taken_and_cut() -> None:
    allocator = Allocator()
    large, small = allocator.take(30 * MIB), allocator.take(12 * MIB)
    addresses = large.address, small.address
    allocator.give_back(large)
    allocator.give_back(small)
    assert allocator.take(11 * MIB).address == addresses[1]  # what is left is no more than 1 MB
    first, second = allocator.take(10 * MIB), allocator.take(10 * MIB)
    assert (first.address, second.address) == (addresses[0], addresses[0] + 10 * MIB)
    assert allocator.num_segments == 2


def test_what_comes_back_is_joined_with_its_neighbours() -> None:
    allocator = Allocator()
    blocks = [allocator.take(nbytes) for nbytes in (600, 100, 512)]
    assert [block.address - blocks[0].address for block in blocks] == [0, 1024, 1536]
    for block in (blocks[0], blocks[2], blocks[1]):
        allocator.give_back(block)
    assert allocator.take(MIB).address == blocks[0].address
    assert allocator.take(MIB).address == blocks[0].address + MIB
    assert allocator.num_segments == 1


def test_blocks_never_overlap() -> None:
    rng, allocator = random.Random(0), Allocator()
    held: list[Block] = []
    for _ in range(3000):
        if held and rng.random() < 0.5:
            allocator.give_back(held.pop(rng.randrange(len(held))))
        else:
            nbytes = int(2 ** rng.uniform(3, 26))
            held.append(allocator.take(nbytes))
            assert held[-1].nbytes >= nbytes
        spans = sorted((block.address, block.address + block.nbytes) for block in held)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("in_turn", [False, True])
def test_steps_come_to_a_cycle_in_which_chains_are_replayed(in_turn: bool) -> None:
    def make() -> nn.Module:
        blocks = [layer for _ in range(3) for layer in (nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.ReLU())]
        return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10))

    nets = [dt.convert(make()).model, *([make()] if in_turn else [])]
    ours, *theirs = replayed_in_steps(nets, 4, "NCHW", 12)
    assert [step.in_graphs for step in ours[:3]] == [0, 0, 0]
    assert ours[-1].graphs == 2
    assert 0 < ours[-1].in_graphs <= ours[-1].launches == ours[0].launches
    assert all(step.launches == 0 for steps in theirs for step in steps)
