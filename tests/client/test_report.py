from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import pytest
from dnnclient.report import LoadReport, Sample, Tally


def _sample(
    index: int,
    status: str = "OK",
    *,
    latency: float = 1.0,
    lag: float = 0.0,
    images: int = 1,
    deadline: float | None = None,
) -> Sample:
    predicted = tuple(range(index, index + images)) if status == "OK" else ()
    return Sample(index, float(index), index + lag, index + latency, status, images, deadline, predicted)


def _report(
    samples: Iterable[Sample], load: str = "", *, open_loop: bool = False, keep_results: bool = False
) -> LoadReport:
    tally = Tally(keep_results=keep_results)
    for sample in samples:
        tally.add(sample)
    return tally.report(load, open_loop=open_loop)


def test_latency_counts_from_the_arrival_and_not_from_sending() -> None:
    assert Sample(0, arrival_s=1.0, sent_s=3.0, finished_s=4.0, status="OK").latency_s == 3.0
    report = _report([_sample(0, latency=5.0, lag=4.0)], open_loop=True)
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
    report = _report(samples, "test")
    assert report.statuses == {"OK": 2, "UNAVAILABLE": 2, "NOT_FOUND": 1}
    assert (report.num_requests, report.num_answered, report.num_failed) == (5, 2, 3)
    assert report.latency is not None
    assert report.latency.p50 == pytest.approx(1.0, rel=0.01)
    assert report.latency.max == 3.0
    assert report.seconds == 101.0
    assert report.images_per_s == pytest.approx(4 / 101)
    assert report.requests_per_s == pytest.approx(2 / 101)
    assert report.send_lag is None


def test_goodput_is_what_was_answered_within_its_deadline_as_counted_from_its_arrival() -> None:
    samples = [
        _sample(0, latency=1.0, deadline=1.0),
        _sample(1, latency=2.0, lag=1.5, deadline=1.0),  # answered half a second after it was sent
        _sample(2, "UNAVAILABLE", latency=0.5, deadline=1.0),
        _sample(3, latency=2.0, deadline=3.0),
        _sample(4, "DEADLINE_EXCEEDED", latency=3.0, deadline=3.0),
        _sample(5, latency=5.0),
    ]
    report = _report(samples, open_loop=True)
    assert (report.num_good, report.num_late, report.num_answered) == (3, 1, 4)
    assert report.goodput_per_s == pytest.approx(3 / 10)
    assert report.requests_per_s == pytest.approx(4 / 10)
    assert [(d.deadline_s, d.num_requests, d.num_good) for d in report.deadlines] == [(1.0, 3, 1), (3.0, 2, 1)]
    assert _report(samples[:3]).deadlines == ()


def test_memory_does_not_grow_with_the_number_of_requests() -> None:
    def size(count: int) -> int:
        tally = Tally()
        for index in range(count):
            tally.add(_sample(index, ("OK", "UNAVAILABLE")[index % 2], deadline=(0.5, 2.0)[index // 2 % 2]))
        return len(tally._results) + len(tally._by_deadline) + sys.getsizeof(tally.latency._counts)

    assert size(10_000) == size(10)


def test_results_are_one_an_image_in_the_order_sent() -> None:
    samples = [_sample(2, images=2), _sample(0, images=2), _sample(1, "INTERNAL", images=3)]
    report = _report(samples, keep_results=True)
    assert report.results == (0, 1, None, None, None, 2, 3)
    assert _report(samples).results == ()


def test_a_run_in_which_nothing_was_answered_has_a_report() -> None:
    for samples in ([], [_sample(0, "UNAVAILABLE")]):
        report = _report(samples, "closed loop")
        assert report.latency is None
        assert (report.images_per_s, report.num_images) == (0.0, 0)
        assert "nothing was answered" in str(report)


def test_a_report_is_json_and_text_with_every_figure() -> None:
    samples = [_sample(0, latency=0.0125, deadline=0.001), _sample(1, "ABORTED", deadline=0.5)]
    report = _report(samples, "open loop, 1/s", open_loop=True)
    values = json.loads(json.dumps(report.to_dict()))
    assert values["latency"]["p99_9"] == pytest.approx(0.0125)
    assert values["histogram"] == [[pytest.approx(0.0125, rel=0.01), 1]]
    assert (values["num_good"], values["num_late"], values["goodput_per_s"]) == (0, 1, 0.0)
    assert [found["deadline_s"] for found in values["deadlines"]] == [0.001, 0.5]
    assert values["statuses"] == {"OK": 1, "ABORTED": 1}
    assert values["num_requests"] == 2
    assert "results" not in values
    text = str(report)
    for part in (
        "open loop, 1/s: 2 requests",
        "p99.9 12.5 ms",
        "the scheduled arrival",
        "OK 1  ABORTED 1",
        "goodput   0.0 requests/s answered in time, 1 late",
        "deadline  1 ms: 0 of 1 good, 0.0%",
        "to   20 ms          1  100.0%  ###",
    ):
        assert part in text
