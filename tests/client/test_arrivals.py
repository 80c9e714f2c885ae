from __future__ import annotations

import itertools
import math

import pytest
from dnnclient import ClosedLoop, OpenLoop
from hypothesis import given
from hypothesis import strategies as st

from dnncore.errors import BadParamError

RATES = st.floats(0.01, 1e6)


@given(RATES, st.integers(0, 10_000))
def test_even_arrivals_are_one_over_the_rate_apart_without_drift(rate: float, index: int) -> None:
    offsets = list(itertools.islice(OpenLoop(rate).offsets(), index, index + 2))
    assert offsets == [index / rate, (index + 1) / rate]


@given(RATES, st.integers(0, 2**32))
def test_poisson_arrivals_are_in_order_and_the_same_for_the_same_seed(rate: float, seed: int) -> None:
    load = OpenLoop(rate, poisson=True, seed=seed)
    first, second = (list(itertools.islice(load.offsets(), 100)) for _ in range(2))
    other = list(itertools.islice(OpenLoop(rate, poisson=True, seed=seed + 1).offsets(), 100))
    assert first == second == sorted(first)
    assert first[0] >= 0
    assert first != other


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    count, rate = 20_000, 50.0
    offsets = list(itertools.islice(OpenLoop(rate, poisson=True, seed=3).offsets(), count))
    gaps = [after - before for before, after in itertools.pairwise([0.0, *offsets])]
    mean = sum(gaps) / count
    variance = sum((gap - mean) ** 2 for gap in gaps) / count
    # Mean and standard deviation are both 1/rate, within a few 1/sqrt(count).
    assert mean == pytest.approx(1 / rate, rel=5 / math.sqrt(count))
    assert math.sqrt(variance) == pytest.approx(1 / rate, rel=10 / math.sqrt(count))


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(BadParamError, match="rate is"):
        OpenLoop(rate)


def test_a_loop_needs_a_sender() -> None:
    with pytest.raises(BadParamError, match="concurrency is 0"):
        ClosedLoop(0)
