from __future__ import annotations

import json
import math
import random

import pytest
from dnnclient.report import LatencySummary, Sample, percentile, summarize
from hypothesis import given
from hypothesis import strategies as st

from dnncore.errors import BadParamError

VALUES = st.lists(st.floats(0, 1e3), min_size=1, max_size=200).map(sorted)


@given(VALUES, st.sampled_from([0.1, 1.0, 50.0, 90.0, 99.0, 99.9, 100.0]))
def test_a_percentile_is_the_smallest_value_that_enough_values_do_not_exceed(
    values: list[float], percent: float
) -> None:
    found = percentile(values, percent)
    assert found in values
    needed = percent / 100 * len(values) - 1e-6
    assert sum(value <= found for value in values) >= needed
    assert sum(value < found for value in values) < needed + 2e-6


@pytest.mark.parametrize(
    ("percent", "rank"), [(50, 500), (99, 990), (99.9, 999), (99.95, 1000), (100, 1000), (0.01, 1)]
)
def test_percentiles_of_the_first_thousand_integers_are_their_ranks(percent: float, rank: int) -> None:
    assert percentile(range(1, 1001), percent) == rank


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], 0), ([1.0], 100.1), ([1.0], math.nan)])
def test_a_percentile_that_is_undefined_is_refused(values: list[float], percent: float) -> None:
    with pytest.raises(BadParamError):
        percentile(values, percent)


@given(VALUES)
def test_a_summarys_percentiles_are_in_order_and_of_the_values(values: list[float]) -> None:
    shuffled = random.Random(0).sample(values, len(values))
    summary = LatencySummary.of(shuffled)
    assert summary.p50 <= summary.p90 <= summary.p99 <= summary.p99_9 <= summary.max == values[-1]
    assert summary.mean == pytest.approx(sum(values) / len(values))


def _sample(index: int, status: str = "OK", *, latency: float = 1.0, lag: float = 0.0, images: int = 1) -> Sample:
    predicted = tuple(range(index, index + images)) if status == "OK" else ()
    return Sample(index, float(index), index + lag, index + latency, status, images, predicted)


def test_latency_counts_from_the_arrival_and_not_from_sending() -> None:
    assert Sample(0, arrival_s=1.0, sent_s=3.0, finished_s=4.0, status="OK").latency_s == 3.0
    report = summarize([_sample(0, latency=5.0, lag=4.0)], load="", open_loop=True)
    assert report.latency is not None
    assert report.send_lag is not None
    assert (report.latency.max, report.send_lag.max) == (5.0, 4.0)


def test_only_answers_count_for_rates_and_latency_but_every_request_for_its_status() -> None:
    samples = [
        _sample(0, latency=1.0, images=2),
        _sample(1, "UNAVAILABLE", latency=100.0),
        _sample(2, latency=3.0, images=2),
        _sample(3, "UNAVAILABLE", latency=1.0),
        _sample(4, "NOT_FOUND", latency=6.0),
    ]
    report = summarize(samples, load="test", open_loop=False)
    assert report.statuses == {"OK": 2, "UNAVAILABLE": 2, "NOT_FOUND": 1}
    assert (report.num_requests, report.num_answered, report.num_failed) == (5, 2, 3)
    assert report.latency is not None
    assert (report.latency.p50, report.latency.max) == (1.0, 3.0)
    assert report.seconds == 101.0
    assert report.images_per_s == pytest.approx(4 / 101)
    assert report.requests_per_s == pytest.approx(2 / 101)
    assert report.send_lag is None


def test_answers_after_their_deadline_are_counted_as_late() -> None:
    samples = [_sample(0, latency=1.0), _sample(1, latency=2.0), _sample(2, "UNAVAILABLE", latency=9.0)]
    assert summarize(samples, load="", open_loop=True, deadline_s=1.0).num_late == 1
    assert summarize(samples, load="", open_loop=True).num_late == 0


def test_results_are_one_an_image_in_the_order_sent() -> None:
    samples = [_sample(2, images=2), _sample(0, images=2), _sample(1, "INTERNAL", images=3)]
    report = summarize(samples, load="", open_loop=False, keep_results=True)
    assert report.results == (0, 1, None, None, None, 2, 3)
    assert summarize(samples, load="", open_loop=False).results == ()


def test_a_run_in_which_nothing_was_answered_has_a_report() -> None:
    for samples in ([], [_sample(0, "UNAVAILABLE")]):
        report = summarize(samples, load="closed loop", open_loop=False)
        assert report.latency is None
        assert (report.images_per_s, report.num_images) == (0.0, 0)
        assert "nothing was answered" in str(report)


def test_a_report_is_json_and_text_with_every_figure() -> None:
    report = summarize(
        [_sample(0, latency=0.0125), _sample(1, "ABORTED")], load="open loop, 1/s", open_loop=True, deadline_s=0.001
    )
    values = json.loads(json.dumps(report.to_dict()))
    assert values["latency"]["p99_9"] == pytest.approx(0.0125)
    assert values["statuses"] == {"OK": 1, "ABORTED": 1}
    assert values["num_requests"] == 2
    assert "results" not in values
    text = str(report)
    for part in (
        "open loop, 1/s: 2 requests",
        "p99.9 12.5 ms",
        "the scheduled arrival",
        "OK 1  ABORTED 1",
        "late      1",
    ):
        assert part in text
