from __future__ import annotations

import random

import pytest
from dnnserve.scheduling.costs import Curve, cost_sizes
from hypothesis import given
from hypothesis import strategies as st

S = 1_000_000_000


def test_sizes_are_powers_of_two_those_between_and_the_maximum() -> None:
    assert [cost_sizes(rows) for rows in (1, 2, 8, 20)] == [
        (1,),
        (1, 2),
        (1, 2, 3, 4, 6, 8),
        (1, 2, 3, 4, 6, 8, 12, 16, 20),
    ]


def test_what_was_not_timed_is_guessed_from_its_neighbours() -> None:
    curve = Curve.seeded(16, {2: 200, 4: 400}, 0)
    assert [curve.mean_ns(rows) for rows in (1, 2, 3, 4, 8, 16)] == [200, 200, 300, 400, 800, 1600]


def test_nothing_costs_anything_before_something_has_run() -> None:
    curve = Curve.seeded(8, {}, 0)
    assert curve.bound_ns(8) == 0
    assert curve.measured(4, 400, 1).mean_ns(4) == 400


@given(
    st.dictionaries(st.integers(1, 40), st.integers(1, 10**9)),
    st.lists(st.tuples(st.integers(1, 32), st.integers(1, 10**10))),
)
def test_more_rows_never_cost_less_and_a_bound_never_less_than_its_mean(
    timings: dict[int, int], batches: list[tuple[int, int]]
) -> None:
    curve = Curve.seeded(32, timings, 0)
    for now_ns, (rows, took_ns) in enumerate(batches):
        curve = curve.measured(rows, took_ns, now_ns).doubted(rows, now_ns * S)
    means, bounds = [[cost(rows) for rows in range(1, 33)] for cost in (curve.mean_ns, curve.bound_ns)]
    assert means == sorted(means)
    assert bounds == sorted(bounds)
    assert all(bound >= mean >= 0 for mean, bound in zip(means, bounds, strict=True))


def test_a_bound_holds_for_nearly_all_batches_and_is_not_far_from_them() -> None:
    generator, curve = random.Random(0), Curve.seeded(8, {8: 20_000}, 0)
    above = 0
    for now_ns in range(20_000):
        took_ns = int(20_000 * generator.lognormvariate(0, 0.05))
        above += took_ns > curve.bound_ns(8)
        curve = curve.measured(8, took_ns, now_ns)
    assert above < 100
    assert curve.mean_ns(8) == pytest.approx(20_000, rel=0.05)
    assert curve.bound_ns(8) < 1.3 * 20_000


def test_a_device_that_has_become_slower_is_known_after_some_batches() -> None:
    curve = Curve.seeded(8, {8: 10_000}, 0)
    for now_ns in range(100):
        curve = curve.measured(8, 10_000, now_ns)
    for now_ns in range(100, 160):
        curve = curve.measured(8, 50_000, now_ns)
    assert curve.mean_ns(8) == pytest.approx(50_000, rel=0.05)


def test_one_hiccup_moves_a_settled_cost_by_little() -> None:
    curve = Curve.seeded(8, {8: 10_000}, 0)
    for now_ns in range(100):
        curve = curve.measured(8, 10_000, now_ns)
    assert curve.measured(8, 10**9, 100).bound_ns(8) < 1.5 * 10_000


def test_small_batches_that_go_well_take_back_what_a_large_one_that_did_not_has_added_to_its_bound() -> None:
    curve = Curve.seeded(8, {1: 5_000, 8: 20_000}, 0)
    for now_ns in range(40):
        curve = curve.measured(1, 5_000, now_ns).measured(8, 20_000, now_ns)
    for now_ns in range(40, 44):
        curve = curve.measured(8, 40_000, now_ns)
    wary_ns = curve.bound_ns(8) - curve.mean_ns(8)
    for now_ns in range(44, 84):
        curve = curve.measured(1, 5_000, now_ns)
    assert curve.bound_ns(8) - curve.mean_ns(8) < wary_ns / 5


def test_a_cost_that_keeps_requests_out_fades_until_one_is_tried_and_counts() -> None:
    curve = Curve.seeded(8, {1: 100_000, 8: 800_000}, 0)
    for second in range(2, 20):
        curve = curve.doubted(8, second * S)
    assert curve.bound_ns(8) < 100_000
    curve = curve.measured(8, 200_000, 20 * S)
    assert curve.mean_ns(8) == 200_000


def test_a_cost_that_batches_confirm_does_not_fade_whatever_is_refused() -> None:
    curve = Curve.seeded(8, {8: 800_000}, 0)
    for second in range(2, 20):
        curve = curve.measured(8, 800_000, second * S).doubted(8, second * S + S // 2).doubted(4, second * S + S // 2)
    assert curve.mean_ns(8) == 800_000
