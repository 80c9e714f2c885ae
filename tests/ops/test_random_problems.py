"""Some random convolutions, small enough for the emulator; `python -m tests.random_problems` runs as many as wanted."""

from __future__ import annotations

import pytest

from tests.conftest import DEVICES, EMULATOR
from tests.ops.launches import MOST_THREADS
from tests.random_problems.run import run_batch

_BATCHES = {"cpu": (40, 50, 1 << 40), "cuda": (20, 5, 40_000)}
"""Batches, problems a batch, most multiply-adds of a problem."""


def _batches() -> list[tuple[str, int, int, int]]:
    found = []
    for device in DEVICES:
        batches, size, macs = _BATCHES[device.partition(":")[0]]
        found += [(device, batch * size, size, macs) for batch in range(batches)]
    return found


@pytest.mark.parametrize(("device", "first", "size", "macs"), _batches())
def test_random_convolutions_are_right_by_every_algorithm(device: str, first: int, size: int, macs: int) -> None:
    most_threads = MOST_THREADS if EMULATOR and device != "cpu" else None
    outcome = run_batch(device, range(first, first + size), macs, most_threads)
    assert outcome.runs.total() >= size
    assert not outcome.wrong, "\n".join(outcome.wrong)
