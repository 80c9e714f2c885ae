from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from dnnserve.engine.net import NetHost, ServedModel
from dnnserve.engine.slot import Apart, Slot
from dnnserve.engine.warm_up import time_batches
from dnnserve.envelope import ModelKey
from dnnserve.signature import Signature, TensorSpec

from dnncore.dtypes import DType
from tests.server.fakes import FakeClock
from tests.server.packages import make_package

KEY = ModelKey("digits", 1)
SIGNATURE = Signature(
    (TensorSpec("left", DType.FLOAT32, (1, 1, 1)), TensorSpec("right", DType.INT32, ())),
    (TensorSpec("scores", DType.FLOAT32, (1,)),),
)


class Timed:
    """An instance whose batches take milliseconds of a clock set by hand; the first of a size takes one longer."""

    signature = SIGNATURE
    computed_ns = 0

    def __init__(self, costs_ms: dict[int, int]) -> None:
        self.clock, self.costs_ms, self.begun = FakeClock(), costs_ms, list[int]()
        self.max_batch_rows = max(costs_ms)
        self.slots = [Slot(np.ones(Slot.nbytes(8, SIGNATURE), np.uint8), 8, SIGNATURE, None)]

    def begin(
        self, slot: int, rows: int, pixels: bool, wanted: Sequence[int], apart: Sequence[Sequence[Apart]] = ()
    ) -> None:
        assert not any(apart), "memory that this device has not locked"
        assert not any(array[:rows].any() for array in self.slots[slot].inputs)
        self.clock.advance_ms(self.costs_ms[rows] + (rows not in self.begun))
        self.begun.append(rows)

    def finish(self) -> Mapping[int, np.ndarray]:
        return {0: np.zeros((self.begun[-1], 1), np.float32)}


def test_every_size_is_timed_twice_and_the_faster_run_counts() -> None:
    instance = Timed({1: 3, 2: 5, 4: 9})
    assert time_batches(instance, 1_000_000_000, instance.clock) == {
        1: 3_000_000,
        2: 5_000_000,
        4: 9_000_000,
    }


def test_a_size_for_which_there_is_no_time_is_left_out() -> None:
    instance = Timed({1: 10, 2: 20, 4: 40, 8: 80})
    assert time_batches(instance, 100_000_000, instance.clock) == {1: 10_000_000, 2: 20_000_000}
    assert instance.clock() < FakeClock()() + 100_000_000


def test_no_time_times_nothing() -> None:
    instance = Timed({1: 1})
    assert time_batches(instance, 0, instance.clock) == {}
    assert not instance.begun


def test_a_net_runs_batches_of_each_of_its_sizes_before_it_has_requests() -> None:
    package = make_package()
    host = NetHost("cpu", {KEY: ServedModel(package.serving_model, None)})
    timings = time_batches(host.load(KEY, 4).instance, 1000, iter(range(1000)).__next__)
    host.close()
    assert timings == {1: 1, 2: 1, 4: 1}
