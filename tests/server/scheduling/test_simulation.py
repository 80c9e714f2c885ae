"""The real policy on made-up devices and a virtual clock: what must hold for any traffic, and goodput under overload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from dnnserve.envelope import ModelKey
from dnnserve.scheduling.entry import LAST_PRIORITY, PATIENCE_NS, Limits
from dnnserve.scheduling.outlook import Outlook
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduling import merged
from benchmarks.simulator import SECOND_NS, Arrival, Device, Outcome, Simulation, linear, poisson, with_hiccups

MS = 1_000_000
TOY, OTHER = ModelKey("toy", 1), ModelKey("other", 1)
MAX_ROWS = 4


def timings(base_ms: float, row_ms: float, max_rows: int) -> dict[int, int]:
    return {rows: int((base_ms + rows * row_ms) * MS) for rows in range(1, max_rows + 1)}


def simulate(simulation: Simulation, arrivals: Sequence[Arrival]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    simulation.run(arrivals, outcomes.append)
    return outcomes


@st.composite
def traffic(draw: st.DrawFn) -> list[Arrival]:
    """Bursts and pauses of requests of all kinds."""
    at_ns, arrivals = 0, []
    for _ in range(draw(st.integers(1, 25))):
        at_ns += draw(st.sampled_from([0, 0, 1, 3, 40])) * MS
        slack_ns = draw(st.none() | st.integers(1, 80).map(lambda ms: ms * MS))
        arrivals.append(
            Arrival(
                at_ns,
                draw(st.sampled_from([TOY, OTHER])),
                draw(st.integers(1, MAX_ROWS)),
                slack_ns,
                draw(st.sampled_from([0, 0, 1, 9])),
            )
        )
    return arrivals


@st.composite
def simulations(draw: st.DrawFn, jitter: float = 0.0) -> Simulation:
    """One to three devices of different speed, of which all but one may be lost."""
    devices, timed = [], {}
    for index in range(draw(st.integers(1, 3))):
        base_ms, row_ms = draw(st.sampled_from([(4, 2), (0, 3), (8, 0), (1, 1)]))
        lost = draw(st.none() | st.integers(0, 100)) if index else None
        devices.append(Device(f"d{index}", linear(base_ms, row_ms, jitter, index), None if lost is None else lost * MS))
        timed[f"d{index}"] = {model: timings(base_ms, row_ms, MAX_ROWS) for model in (TOY, OTHER)}
    return Simulation(devices, dict.fromkeys((TOY, OTHER), Limits(MAX_ROWS, 12)), timed)


@settings(max_examples=60, deadline=None)
@given(simulations(), traffic())
def test_every_request_ends_exactly_once_and_with_exact_costs_none_is_answered_late(
    simulation: Simulation, arrivals: list[Arrival]
) -> None:
    outcomes = simulate(simulation, arrivals)
    assert Counter(o.arrival for o in outcomes) == Counter(arrivals)
    assert all(rows <= MAX_ROWS for _, _, rows in simulation.batches)
    lost = any(device.lost_at_ns is not None for device in simulation.devices)
    assert not [o for o in outcomes if o.late]
    assert not [o for o in outcomes if o.end == "dropped" and o.arrival.slack_ns is None]
    if not lost:
        assert sum(rows for _, _, rows in simulation.batches) == sum(
            o.arrival.rows for o in outcomes if o.end == "answered"
        )


@settings(max_examples=60, deadline=None)
@given(
    traffic(),
    st.integers(0, 60).map(lambda ms: ms * MS),
    st.integers(1, 60).map(lambda ms: ms * MS),
    st.none() | st.integers(0, 120).map(lambda ms: ms * MS),
)
def test_while_the_only_device_is_away_requests_wait_for_it_within_their_deadlines(
    arrivals: list[Arrival], lost_ns: int, away_ns: int, expected_ns: int | None
) -> None:
    back_ns, told_ns = lost_ns + away_ns, lost_ns + (away_ns if expected_ns is None else expected_ns)
    device = Device("d", linear(4, 2), lost_ns, away_ns, expected_ns)
    models = dict.fromkeys((TOY, OTHER), Limits(MAX_ROWS, 100))
    simulation = Simulation([device], models, {"d": dict.fromkeys(models, timings(4, 2, MAX_ROWS))})
    outcomes = simulate(simulation, arrivals)
    assert Counter(o.arrival for o in outcomes) == Counter(arrivals)
    assert not [o for o in outcomes if o.late]
    assert all(o.end == "answered" for o in outcomes if o.arrival.slack_ns is None)
    hopeless = [
        o
        for o in outcomes
        if lost_ns < o.arrival.at_ns < min(back_ns, told_ns)
        and o.arrival.slack_ns is not None
        and o.arrival.at_ns + o.arrival.slack_ns <= told_ns
    ]
    assert all((o.end, o.latency_ns) == ("refused", 0) for o in hopeless), "they are told at once"
    overdue = [
        o
        for o in outcomes
        if told_ns <= o.arrival.at_ns < back_ns
        and o.arrival.slack_ns is not None
        and o.arrival.slack_ns <= max(o.arrival.at_ns - told_ns, (told_ns - lost_ns) // 4)
    ]
    assert all((o.end, o.latency_ns) == ("refused", 0) for o in overdue), "so are those that come when it is overdue"


def test_a_request_that_comes_while_the_only_device_is_away_is_let_in_if_there_is_time_after_its_return() -> None:
    device = Device("d", linear(4, 2), 10 * MS, 50 * MS)
    known = {"d": {TOY: timings(4, 2, MAX_ROWS)}}
    ends = []
    for slack_ms in (30, 46, 47, 100):  # back after 40 ms, and the batch takes 6 and a margin
        arrivals = [Arrival(20 * MS, TOY, 1, slack_ms * MS)]
        ends += [o.end for o in simulate(Simulation([device], {TOY: Limits(MAX_ROWS, 100)}, known), arrivals)]
    assert ends == ["refused", "refused", "answered", "answered"]


def test_what_waits_when_the_only_device_is_lost_and_has_no_time_until_its_return_is_told_at_once() -> None:
    device = Device("d", linear(4, 2), 5 * MS, 50 * MS)
    known = {"d": {TOY: timings(4, 2, MAX_ROWS)}}
    arrivals = [Arrival(0, TOY, MAX_ROWS, 40 * MS), Arrival(1 * MS, TOY, 1, 40 * MS), Arrival(1 * MS, TOY, 1)]
    outcomes = simulate(Simulation([device], {TOY: Limits(MAX_ROWS, 100)}, known), arrivals)
    ended = {o.arrival: (o.end, o.end_ns // MS) for o in outcomes}
    assert [ended[arrival] for arrival in arrivals] == [("dropped", 5), ("dropped", 5), ("answered", 61)]


@settings(max_examples=30, deadline=None)
@given(simulations(jitter=0.2), traffic())
def test_whatever_batches_take_every_request_ends_exactly_once(simulation: Simulation, arrivals: list[Arrival]) -> None:
    outcomes = simulate(simulation, arrivals)
    assert Counter(o.arrival for o in outcomes) == Counter(arrivals)


@settings(max_examples=30, deadline=None)
@given(traffic())
def test_a_device_is_never_idle_while_a_request_waits(arrivals: list[Arrival]) -> None:
    patient = [Arrival(a.at_ns, a.model, a.rows) for a in arrivals]
    simulation = Simulation([Device("d", linear(4, 2))], dict.fromkeys((TOY, OTHER), Limits(MAX_ROWS, 100)))
    outcomes = simulate(simulation, patient)
    end_ns = 0
    for at_ns in sorted({a.at_ns for a in patient}):
        if at_ns > end_ns:  # idle until here: then nothing may wait from before
            assert all(o.end_ns <= end_ns for o in outcomes if o.arrival.at_ns < at_ns)
        busy = [o.end_ns for o in outcomes if o.arrival.at_ns <= at_ns]
        end_ns = max([end_ns, *busy])
    assert simulation.busy_ns["d"] == sum((4 + 2 * rows) * MS for _, _, rows in simulation.batches)


@pytest.mark.parametrize(
    ("deadlines_ms", "load", "goodput"),
    [((50.0,), 1.5, 97), ((100.0,), 1.5, 97), ((15.0, 50.0, 100.0), 1.5, 97), ((50.0,), 3.0, 90), ((100.0,), 3.0, 90)],
    ids=str,
)
def test_overload_costs_no_goodput_and_hardly_an_answer_is_late(
    deadlines_ms: tuple[float, ...], load: float, goodput: float
) -> None:
    seconds, capacity = 20.0, 400.0
    simulation = Simulation(
        [Device("d", linear(4, 2, jitter=0.05))], {TOY: Limits(8, 1000)}, {"d": {TOY: timings(4, 2, 8)}}
    )
    outcomes = simulate(simulation, list(poisson(TOY, capacity * load, seconds, deadlines_ms)))
    assert sum(o.good for o in outcomes) >= goodput / 100 * capacity * seconds
    assert sum(o.late for o in outcomes) < 0.001 * len(outcomes)


def test_hiccups_of_the_host_do_not_keep_out_what_most_batches_answer_in_time() -> None:
    seconds, capacity = 10.0, 2 / 7 * 1e3
    device = Device("d", with_hiccups(linear(6, 0), 0.1, 10.0))  # 7 ms on average
    simulation = Simulation([device], {TOY: Limits(2, 1000)}, {"d": {TOY: timings(6, 0, 2)}})
    outcomes = simulate(simulation, list(poisson(TOY, 3 * capacity, seconds, (15.0,))))
    assert sum(o.good for o in outcomes) > 0.75 * capacity * seconds
    assert sum(o.late for o in outcomes) < 0.03 * len(outcomes)


def test_the_server_is_normal_again_within_a_second_after_overload() -> None:
    arrivals = [*poisson(TOY, 1200, 3.0, (200.0,)), *poisson(TOY, 100, 3.0, (200.0,), seed=1, start_s=3.0)]
    simulation = Simulation([Device("d", linear(4, 2, jitter=0.05))], {TOY: Limits(8, 1000)})
    outcomes = simulate(simulation, arrivals)
    assert all(o.good for o in outcomes if o.arrival.at_ns > 4 * SECOND_NS)
    assert any(not o.good for o in outcomes if o.arrival.at_ns < 3 * SECOND_NS)


def test_a_flood_on_one_model_delays_another_by_little_more_than_a_batch() -> None:
    arrivals = merged(poisson(TOY, 1200, 3.0), poisson(OTHER, 20, 3.0, seed=1))
    simulation = Simulation([Device("d", linear(4, 2))], dict.fromkeys((TOY, OTHER), Limits(8, 10_000)))
    outcomes = simulate(simulation, arrivals)
    waits_ms = sorted(o.latency_ns / MS for o in outcomes if o.arrival.model == OTHER)
    assert waits_ms[-1] < 2 * 20 + 8
    assert max(o.latency_ns / MS for o in outcomes if o.arrival.model == TOY) > 1000


def test_under_any_flood_of_important_or_urgent_requests_the_others_are_answered_in_the_end() -> None:
    flood = poisson(TOY, 600, 12.0, (50.0, 50.0, 50.0, None), seed=1, priorities=(1, 0))
    rare = [Arrival(int(second * SECOND_NS), TOY, priority=LAST_PRIORITY) for second in range(4)]
    simulation = Simulation([Device("d", linear(4, 2))], {TOY: Limits(8, 100_000)})
    outcomes = simulate(simulation, merged(flood, rare))
    waits_ns = [o.latency_ns for o in outcomes if o.arrival.priority == LAST_PRIORITY]
    assert len(waits_ns) == 4
    assert max(waits_ns) < (LAST_PRIORITY + 2) * PATIENCE_NS
    urgent = [o for o in outcomes if o.arrival.slack_ns is not None and o.arrival.at_ns > 2 * SECOND_NS]
    assert sum(o.good for o in urgent) > 0.2 * len(urgent), (
        "those without deadlines have taken the device for themselves"
    )


def test_costs_that_warm_up_had_wrong_are_right_after_a_few_seconds() -> None:
    wrong = {rows: 5 * took_ns for rows, took_ns in timings(4, 2, 8).items()}
    simulation = Simulation([Device("d", linear(4, 2))], {TOY: Limits(8, 1000)}, {"d": {TOY: wrong}})
    outcomes = simulate(simulation, list(poisson(TOY, 600, 30.0, (50.0,))))
    settled = [o for o in outcomes if o.arrival.at_ns > 20 * SECOND_NS]
    assert sum(o.good for o in settled) > 0.95 * 400 * 10


@pytest.mark.parametrize("hiccups", [0.0, 0.03], ids=["steady", "busy_host"])
@pytest.mark.parametrize(
    ("base_ms", "row_ms", "rows", "deadlines_ms"),
    [(2, 0.5, 4, (15,)), (2, 0.5, 4, (15, 50, 100)), (4, 2, 8, (50, 100)), (0.2, 0.1, 8, (15,))],
    ids=str,
)
def test_what_is_refused_unread_costs_no_goodput(
    base_ms: float, row_ms: float, rows: int, deadlines_ms: tuple[float, ...], hiccups: float
) -> None:
    capacity = rows / (base_ms + rows * row_ms) * 1e3
    arrivals = list(poisson(TOY, 3 * capacity, 4.0, deadlines_ms, seed=1))
    in_time, late, unread = [], [], 0
    for outlook in (None, Outlook()):
        device = Device("d", with_hiccups(linear(base_ms, row_ms, 0.03), hiccups, 10.0))
        timed = {"d": {TOY: timings(base_ms, row_ms, rows)}}
        simulation = Simulation([device], {TOY: Limits(rows, 1000)}, timed, outlook=outlook)
        outcomes = simulate(simulation, arrivals)
        assert len(outcomes) == len(arrivals)
        in_time.append(sum(outcome.good for outcome in outcomes))
        late.append(sum(outcome.late for outcome in outcomes))
        unread = simulation.unread
    assert in_time[1] > 0.99 * in_time[0]
    assert late[1] <= late[0] + 0.01 * len(arrivals)
    assert unread > 0.3 * len(arrivals)
