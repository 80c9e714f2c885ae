from __future__ import annotations

import threading

import pytest
from dnnserve.series import CounterFamily, HistogramFamily
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest

VALUES = (0.0, 0.0005, 0.00051, 0.01, 0.5, 1.0, 1.5, 300.0, -1.0)


@pytest.mark.parametrize("bounds", [(0.0005, 0.01, 1, 256), (-0.1, 0.0, 10.0)], ids=["positive", "negative"])
def test_the_page_is_the_one_that_prometheus_client_writes(bounds: tuple[float, ...]) -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    their_counter = Counter("calls", "Calls", ("model", "status"), registry=theirs)
    their_histogram = Histogram("wait_seconds", "Wait", ("model",), buckets=bounds, registry=theirs)
    our_counter = CounterFamily("calls", "Calls", ("model", "status"))
    our_histogram = HistogramFamily("wait_seconds", "Wait", ("model",), bounds)
    for family in (our_counter, our_histogram):
        ours.register(family)
    for status, count in (("OK", 3), ("CANCELLED", 0)):
        their_counter.labels("toy", status).inc(count)
        series = our_counter.labels("toy", status)
        series.count(count)
    for value in VALUES:
        their_histogram.labels("toy").observe(value)
    our_histogram.labels("toy").observe(VALUES[0])
    our_histogram.labels("toy").observe_all(VALUES[1:])
    assert generate_latest(ours) == generate_latest(theirs)


def test_no_count_is_lost_between_threads() -> None:
    histogram = HistogramFamily("wait_seconds", "Wait", (), (1.0,)).labels()

    def observe() -> None:
        for _ in range(2000):
            histogram.observe(0.5)
            histogram.observe_all((2.0, 2.0))

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert histogram.read() == ([("1.0", 8000.0), ("+Inf", 24000.0)], 4 * 2000 * 4.5)
