"""The benchmark of overload counts what it should."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
from dnnserve.app import Server

from benchmarks.front_end import FreeHost
from benchmarks.overload import CALM, CLIENTS, SHAPES, SPEC, Bench, Shape, SlowInstance, arrivals, seconds_to_recover
from tests.server.serving import make_config


@pytest.mark.parametrize(
    ("missed", "seconds"), [([], 0.0), ([0.5, 2.9], 0.0), ([0.5, 3.25, 3.125], 0.25), ([3.0], 0.0)], ids=str
)
def test_recovery_ends_with_the_last_request_after_the_overload_that_was_not_answered_in_time(
    missed: list[float], seconds: float
) -> None:
    assert seconds_to_recover(missed, 3.0) == seconds


def test_requests_come_at_the_rate_and_with_the_deadlines_that_were_asked_for() -> None:
    calls = arrivals(1000.0, 4.0, (15.0, 50.0), start_s=2.0)
    assert all(2.0 < at_s < 6.0 for at_s, _ in calls)
    assert abs(len(calls) - 4000) < 4 * 4000**0.5
    assert {deadline_s for _, deadline_s in calls} == {0.015, 0.05}


def test_what_the_devices_can_do() -> None:
    assert [shape.capacity for shape in SHAPES.values()] == [400.0, 1000.0, None]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_that_does_all_in_time_has_the_load_as_its_goodput_and_nothing_to_recover_from(client: str) -> None:
    server = Server(make_config(), ("cpu",), [replace(SPEC, max_batch_rows=8)], FreeHost)
    server.start()
    try:
        bench = Bench("slow", 0, server.addresses.grpc, server.addresses.metrics, os.getpid(), CLIENTS[client])
        result = bench.overload(0.5, (20_000.0,), 0.5, calm_s=0.25)
    finally:
        assert server.drain()
    sent = len(arrivals(0.5 * 400.0, 0.5, (1.0,)))
    assert result.goodput == pytest.approx(100 * sent / 400.0 / 0.5)
    assert (result.late, result.recovery_s) == (0.0, 0.0)
    assert result.server_us > 0.0
    assert result.client_us > 0.0
    assert 0.0 < CALM < 1.0


def test_batches_of_the_device_end_by_its_own_clock_whoever_hears_of_it_late(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    slept_s: list[float] = []
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    monkeypatch.setattr(time, "sleep", slept_s.append)
    instance = SlowInstance(SPEC, 4, Shape(0.5, 0.125, 4, ()))
    instance.begin(0, 4, False, ())
    instance.begin(1, 2, False, ())
    assert len(instance.finish()[0]) == 4
    now_s = 101.25
    assert len(instance.finish()[0]) == 2
    now_s = 103.0
    instance.begin(2, 4, False, ())
    instance.finish()
    assert slept_s == [1.0, 0.5, 1.0]
