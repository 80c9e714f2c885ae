from __future__ import annotations

import math
import sys

import pytest
from dnnclient.histogram import Histogram
from hypothesis import given
from hypothesis import strategies as st

from dnncore.errors import BadParamError

DURATIONS = st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=200)


def histogram_of(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(DURATIONS, st.sampled_from([0.1, 1.0, 50.0, 90.0, 99.0, 99.9, 100.0]))
def test_a_percentile_is_the_smallest_duration_that_enough_do_not_exceed_or_1_percent_more(
    values: list[float], percent: float
) -> None:
    exact = sorted(values)[math.ceil(round(percent / 100 * len(values), 6)) - 1]
    found = histogram_of(values).percentile(percent)
    assert exact * (1 - 1e-9) <= found <= exact * (1.01 + 1e-9)


@pytest.mark.parametrize("percent", [0.0, 100.1, math.nan])
def test_a_percentile_that_is_undefined_is_refused(percent: float) -> None:
    with pytest.raises(BadParamError):
        histogram_of([1.0]).percentile(percent)
    with pytest.raises(BadParamError):
        Histogram().percentile(50)


@given(DURATIONS)
def test_a_summary_is_in_order_with_exact_mean_and_maximum(values: list[float]) -> None:
    summary = histogram_of(values).summary()
    assert summary is not None
    assert summary.p50 <= summary.p90 <= summary.p99 <= summary.p99_9 <= summary.max == max(values)
    assert summary.mean == pytest.approx(sum(values) / len(values))
    assert Histogram().summary() is None


def test_durations_out_of_range_are_counted_at_its_ends() -> None:
    histogram = histogram_of([-1.0, 0.0, 1e-9, 1e6, math.nextafter(1e6, math.inf)])
    assert [count for _, count in histogram.buckets()] == [3, 2]
    assert histogram.percentile(100) == math.nextafter(1e6, math.inf)
    assert histogram.percentile(1) <= 1e-6


def test_memory_does_not_grow_with_what_is_counted() -> None:
    few, many = histogram_of([1e-6, 1e6]), histogram_of([index * 1e-4 for index in range(100_000)])
    assert sys.getsizeof(few._counts) == sys.getsizeof(many._counts)
    assert many.count == sum(count for _, count in many.buckets()) == 100_000


def test_the_picture_has_steps_of_1_2_5_without_gaps_and_every_duration() -> None:
    lines = str(histogram_of([0.0011, 0.0019, 0.0021, 0.045])).splitlines()
    assert [line.split()[1:5] for line in lines] == [
        ["2", "ms", "2", "50.0%"],
        ["5", "ms", "1", "25.0%"],
        ["10", "ms", "0", "0.0%"],
        ["20", "ms", "0", "0.0%"],
        ["50", "ms", "1", "25.0%"],
    ]
    assert [line.count("#") for line in lines] == [40, 20, 0, 0, 20]
    assert str(Histogram()) == ""
