"""Transitions of an mbarrier's packed state against a model in Python, and what is no transition."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pytest

from emulator.tests.async_units import address, units

MAX = (1 << 20) - 1


class Step(IntEnum):
    """Operations on an mbarrier."""

    ARRIVE = 0
    DROP = 1
    ANNOUNCE = 2
    EXPECT = 3
    COMPLETE = 4


class Barrier:
    """The C++ state."""

    def __init__(self, count: int) -> None:
        self.word = ctypes.c_uint64(units().mbarrier_init(count))

    def step(self, what: Step, amount: int = 1) -> str:
        """What was wrong."""
        said: bytes = units().mbarrier_step(ctypes.byref(self.word), int(what), amount)
        return said.decode()

    @property
    def fields(self) -> tuple[int, ...]:
        """Phase, expected, pending, tx."""
        found = np.zeros(4, np.int32)
        units().mbarrier_fields(self.word, address(found))
        return tuple(int(n) for n in found)


@dataclass
class Model:
    """The rules of PTX ISA 9.7.13.15, written down once more."""

    expected: int
    pending: int
    phase: int = 0
    tx: int = 0

    def step(self, what: Step, amount: int) -> None:
        """A legal one."""
        if what in (Step.ARRIVE, Step.DROP):
            self.pending -= amount
        if what is Step.DROP:
            self.expected -= amount
        if what is Step.ANNOUNCE:
            self.pending += 1
        if what is Step.EXPECT:
            self.tx += amount
        if what is Step.COMPLETE:
            self.tx -= amount
        if self.pending == 0 and self.tx == 0:
            self.phase = (self.phase + 1) % 8
            self.pending = self.expected


@pytest.mark.parametrize("seed", range(6))
def test_random_legal_steps(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 9))
    barrier, model = Barrier(count), Model(count, count)
    phases = 0
    for _ in range(400):
        what = Step(int(random.choice(5, p=[0.5, 0.02, 0.08, 0.2, 0.2])))
        amount = int(random.integers(1, 4096))
        if what in (Step.ARRIVE, Step.DROP):
            amount = int(random.integers(1, 3))
            if amount > model.pending or (what is Step.DROP and amount >= model.expected):
                continue
        if what is Step.COMPLETE and model.tx > 0:
            amount = model.tx
        if what is Step.EXPECT and model.tx < 0:
            amount = -model.tx
        before = model.phase
        model.step(what, amount)
        phases += model.phase != before
        assert barrier.step(what, amount) == ""
        assert barrier.fields == (model.phase, model.expected, model.pending, model.tx)
    assert phases > 5


def test_extremes_fit_in_the_word() -> None:
    barrier = Barrier(MAX)
    assert barrier.step(Step.EXPECT, MAX) == ""
    assert barrier.fields == (0, MAX, MAX, MAX)
    assert barrier.step(Step.COMPLETE, MAX) == ""
    assert barrier.step(Step.COMPLETE, MAX) == ""
    assert barrier.fields == (0, MAX, MAX, -MAX)
    assert barrier.step(Step.EXPECT, MAX) == ""
    assert barrier.step(Step.ARRIVE, MAX) == ""
    assert barrier.fields == (1, MAX, MAX, 0)


def test_bytes_hold_the_phase() -> None:
    barrier = Barrier(1)
    barrier.step(Step.EXPECT, 8192)
    barrier.step(Step.ARRIVE)
    assert barrier.fields == (0, 1, 0, 8192)
    barrier.step(Step.COMPLETE, 4096)
    assert barrier.fields == (0, 1, 0, 4096)
    barrier.step(Step.COMPLETE, 4096)
    assert barrier.fields == (1, 1, 1, 0)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([(Step.ARRIVE, 3)], "3 more arrivals in a phase that misses 2 of 2"),
        ([(Step.EXPECT, 16), (Step.ARRIVE, 2), (Step.ARRIVE, 1)], "1 more arrival in a phase that misses 0 of 2"),
        ([(Step.ARRIVE, 0)], "count 0"),
        ([(Step.DROP, 3)], "arrive_drop of 3 of 2"),
        ([(Step.EXPECT, MAX), (Step.EXPECT, 1)], "its tx-count becomes 1048576"),
        ([(Step.COMPLETE, MAX), (Step.COMPLETE, 1)], "its tx-count becomes -1048576"),
        ([(Step.EXPECT, MAX + 1)], "its tx-count becomes 1048576"),
    ],
)
def test_misuse(steps: list[tuple[Step, int]], said: str) -> None:
    barrier = Barrier(2)
    *legal, wrong = steps
    assert [barrier.step(*step) for step in legal] == [""] * len(legal)
    before = barrier.fields
    assert said in barrier.step(*wrong)
    assert barrier.fields == before


def test_announcements_overflow() -> None:
    barrier = Barrier(MAX)
    assert "overflows" in barrier.step(Step.ANNOUNCE)
