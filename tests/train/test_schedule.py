from __future__ import annotations

import math

import pytest

from dnncore.errors import BadParamError
from dnncore.train.config import ScheduleConfig
from dnncore.train.schedule import Constant, Cosine, Multistep, Schedule, Step, Warmup, make_schedule

TABLE: list[tuple[Schedule, dict[int, float]]] = [
    (Constant(0.1), {0: 0.1, 1000: 0.1}),
    (Step(1.0, 10, 0.5), {0: 1.0, 9: 1.0, 10: 0.5, 19: 0.5, 20: 0.25}),
    (Multistep(1.0, (5, 8), 0.1), {0: 1.0, 4: 1.0, 5: 0.1, 7: 0.1, 8: 0.01, 99: 0.01}),
    (Cosine(1.0, 0, 100), {0: 1.0, 25: 0.5 + math.sqrt(2) / 4, 50: 0.5, 100: 0.0, 150: 0.0}),
    (Cosine(1.0, 20, 120, 0.2), {0: 1.0, 20: 1.0, 70: 0.6, 120: 0.2, 121: 0.2}),
    (Cosine(1.0, 5, 5), {5: 1.0, 6: 0.0}),
    (Warmup(Constant(0.4), 4), {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.4}),
    (Warmup(Step(1.0, 2, 0.5), 4), {0: 0.25, 1: 0.5, 2: 0.375, 3: 0.5, 4: 0.25}),
]


@pytest.mark.parametrize(("schedule", "rates"), TABLE, ids=lambda value: type(value).__name__)
def test_rates_are_those_of_the_table(schedule: Schedule, rates: dict[int, float]) -> None:
    assert {iteration: schedule.rate(iteration) for iteration in rates} == pytest.approx(rates, abs=1e-15)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ScheduleConfig("constant"), Constant(0.1)),
        (ScheduleConfig("step", step_epochs=2.5, gamma=0.5), Step(0.1, 25, 0.5)),
        (ScheduleConfig("multistep", milestones=(1.0, 3.05)), Multistep(0.1, (10, 30), 0.1)),
        (ScheduleConfig("cosine", final_lr=0.01), Cosine(0.1, 0, 100, 0.01)),
        (ScheduleConfig("cosine", warmup_epochs=0.5), Warmup(Cosine(0.1, 5, 100), 5)),
    ],
    ids=lambda value: value.kind if isinstance(value, ScheduleConfig) else "",
)
def test_epochs_become_iterations(config: ScheduleConfig, expected: Schedule) -> None:
    assert make_schedule(config, 0.1, iterations_per_epoch=10, iterations=100) == expected


def test_a_step_of_no_iterations_is_refused() -> None:
    with pytest.raises(BadParamError, match="every 0 iterations"):
        Step(1.0, 0, 0.5)
