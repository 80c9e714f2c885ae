from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
from dnnclient import ClosedLoop, InvalidArgumentError, OpenLoop, run_load
from dnnclient.arrivals import Arrivals
from dnnclient.report import Progress

from dnncore.errors import BadParamError
from tests.client.fake_server import FakeServer, image

LOOPS = pytest.mark.parametrize("arrivals", [ClosedLoop(3), OpenLoop(500), OpenLoop(500, poisson=True)], ids=str)


@LOOPS
def test_every_request_is_answered_once_and_results_are_in_order(server: FakeServer, arrivals: Arrivals) -> None:
    images = [image(index) for index in (3, 1, 4, 5, 9)]
    report = run_load(
        server.target, images, model="digits", arrivals=arrivals, requests=12, channels=2, keep_results=True
    )
    assert report.results == (3, 1, 4, 5, 9, 3, 1, 4, 5, 9, 3, 1)
    assert report.statuses == {"OK": 12}
    assert server.num_calls == 12
    assert report.num_images == 12
    assert report.latency is not None
    assert 0 < report.latency.p50 <= report.latency.max <= report.seconds
    assert (report.send_lag is None) == isinstance(arrivals, ClosedLoop)


@LOOPS
def test_a_failed_request_is_counted_and_the_others_are_answered(server: FakeServer, arrivals: Arrivals) -> None:
    images = [image(1), b"not one", image(2)]
    report = run_load(server.target, images, model="digits", arrivals=arrivals, requests=6, keep_results=True)
    assert report.results == (1, None, 2, 1, None, 2)
    assert report.statuses == {"OK": 4, "INVALID_ARGUMENT": 2}


@LOOPS
def test_requests_without_an_answer_end_with_their_deadline(arrivals: Arrivals) -> None:
    with FakeServer(gather=100) as server:
        report = run_load(
            server.target, [image(1)], model="digits", arrivals=arrivals, requests=6, deadline_s=0.1, keep_results=True
        )
    assert report.statuses == {"DEADLINE_EXCEEDED": 6}
    assert report.latency is None
    assert report.results == (None,) * 6


@LOOPS
def test_a_server_that_is_not_there_is_a_status(nobody: str, arrivals: Arrivals) -> None:
    report = run_load(nobody, [image(1)], model="digits", arrivals=arrivals, requests=4)
    assert report.statuses == {"UNAVAILABLE": 4}


@LOOPS
def test_an_answer_that_does_not_fit_is_the_servers_failure(arrivals: Arrivals) -> None:
    with FakeServer(answers_lost=1) as server:
        report = run_load(server.target, [image(1)], model="digits", arrivals=arrivals, requests=4)
    assert report.statuses == {"INTERNAL": 4}


def test_a_closed_loop_keeps_as_many_requests_under_way_as_it_has_senders() -> None:
    with FakeServer(gather=3) as server:  # three are answered together, so fewer senders would wait in vain
        report = run_load(server.target, [image(1)], model="digits", arrivals=ClosedLoop(3), requests=12)
    assert report.statuses == {"OK": 12}
    assert server.most_in_flight == 3


def test_an_open_loop_sends_whether_or_not_it_is_answered_and_charges_the_wait() -> None:
    requests, rate = 10, 50.0
    with FakeServer(gather=requests) as server:  # the first is answered when the last has come
        report = run_load(server.target, [image(1)], model="digits", arrivals=OpenLoop(rate), requests=requests)
    assert report.statuses == {"OK": requests}
    assert report.latency is not None
    assert report.latency.max >= (requests - 1) / rate


def test_overload_is_counted_by_status() -> None:
    with FakeServer(max_in_flight=2, gather=3) as server:  # two wait for a third, which is refused
        report = run_load(
            server.target, [image(1)], model="digits", arrivals=OpenLoop(1000), requests=5, deadline_s=2.0
        )
    assert report.statuses == {"RESOURCE_EXHAUSTED": 3, "DEADLINE_EXCEEDED": 2}


@LOOPS
def test_a_duration_ends_the_run(server: FakeServer, arrivals: Arrivals) -> None:
    report = run_load(server.target, [image(1)], model="digits", arrivals=arrivals, duration_s=0.4)
    assert report.num_requests == server.num_calls > 0
    if arrivals == OpenLoop(500):
        assert report.num_requests == 200


@LOOPS
def test_warmup_is_sent_and_not_counted(server: FakeServer, arrivals: Arrivals) -> None:
    images = [image(index) for index in range(5)]
    report = run_load(
        server.target, images, model="digits", arrivals=arrivals, requests=5, warmup_s=0.4, keep_results=True
    )
    assert report.num_requests == 5 < server.num_calls
    assert report.results == (0, 1, 2, 3, 4)


def test_images_are_sent_several_a_request(server: FakeServer) -> None:
    pixels = [np.full((2, 3, 1), index, np.uint8) for index in range(5)]
    report = run_load(
        server.target,
        pixels,
        model="digits",
        arrivals=ClosedLoop(2),
        requests=4,
        images_per_request=2,
        keep_results=True,
    )
    assert report.results == (0, 1, 2, 3, 4, 0, 1)
    assert report.num_images == 7
    assert sorted(request.tensor.shape[0] for request in server.requests) == [1, 2, 2, 2]


def test_several_deadlines_take_turns_and_answers_in_time_are_goodput(server: FakeServer) -> None:
    report = run_load(
        server.target, [image(1)], model="digits", arrivals=ClosedLoop(2), requests=9, deadline_s=[1e-6, 20.0, 30.0]
    )
    assert [(d.deadline_s, d.num_requests, d.num_good) for d in report.deadlines] == [
        (1e-6, 3, 0),
        (20.0, 3, 3),
        (30.0, 3, 3),
    ]
    assert report.num_good == 6
    assert sum(count for _, count in report.histogram) == report.num_answered


def test_an_open_loop_sends_to_the_schedule_whatever_the_server_does() -> None:
    arrivals, stall_s = OpenLoop(1000.0, poisson=True, seed=5), 0.3
    with FakeServer(gather=1_000_000) as server:  # answers nothing
        report = run_load(
            server.target, [image(1)], model="digits", arrivals=arrivals, duration_s=0.2, deadline_s=stall_s
        )
    due = sum(1 for _ in itertools.takewhile(lambda offset_s: offset_s < 0.2, arrivals.offsets()))
    assert report.num_requests == due
    assert report.seconds >= stall_s


def test_progress_is_told_and_a_stall_of_the_generator_is_charged_to_the_requests_that_were_due(
    server: FakeServer,
) -> None:
    seen: list[Progress] = []
    stall_s = 0.3

    def stall(progress: Progress) -> None:
        seen.append(progress)
        if not progress.warming_up:
            time.sleep(stall_s)  # in the event loop

    report = run_load(
        server.target,
        [image(1)],
        model="digits",
        arrivals=OpenLoop(100),
        # Progress is told every 1.0 to 1.2 s, later on a machine under load: once before the warm-up ends, then before the end.
        duration_s=1.7,
        warmup_s=1.8,
        on_progress=stall,
    )
    assert report.latency is not None
    assert report.send_lag is not None
    assert report.latency.max >= report.send_lag.max >= 0.8 * stall_s
    assert [progress.warming_up for progress in seen[:2]] == [True, False]
    assert seen[0].requests_per_s > 0
    assert seen[0].p99_s is not None
    assert "(warm-up): " in str(seen[0])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"requests": 1, "duration_s": 1.0},
        {"requests": 0},
        {"requests": 1, "images_per_request": 0},
        {"requests": 1, "channels": 0},
        {"duration_s": 0.0},
        {"requests": 1, "deadline_s": 0.0},
        {"requests": 1, "deadline_s": [1.0, -1.0]},
        {"requests": 1, "warmup_s": -1.0},
    ],
    ids=str,
)
def test_options_that_contradict_are_refused_before_anything_is_sent(
    server: FakeServer, options: dict[str, Any]
) -> None:
    with pytest.raises(BadParamError):
        run_load(server.target, [image(1)], model="digits", arrivals=ClosedLoop(1), **options)
    assert server.num_calls == 0


def test_no_images_and_images_that_no_model_takes_are_refused(server: FakeServer) -> None:
    with pytest.raises(BadParamError, match="number of images is 0"):
        run_load(server.target, [], model="digits", arrivals=ClosedLoop(1), requests=1)
    with pytest.raises(InvalidArgumentError, match="float64"):
        run_load(server.target, [np.zeros((2, 3, 1))], model="digits", arrivals=ClosedLoop(1), requests=1)
