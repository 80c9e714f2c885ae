from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dnncore.nn.memory import ALIGNMENT_BYTES, Lifetime, assign_offsets, live_bytes


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


_LIFETIMES = st.builds(
    lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
    st.integers(0, 5000),
    st.integers(-1, 30),
    st.integers(0, 8),
)


@given(st.lists(_LIFETIMES, max_size=25), st.dictionaries(st.integers(0, 35), st.integers(0, 9000), max_size=5))
def test_what_lives_at_the_same_time_keeps_apart(lifetimes: list[Lifetime], scratch: dict[int, int]) -> None:
    offsets, total = assign_offsets(lifetimes, scratch)
    placed = list(zip(lifetimes, offsets, strict=True))
    for one, offset in placed:
        assert offset % ALIGNMENT_BYTES == 0
        assert 0 <= offset <= offset + one.nbytes <= total
        of_steps = (nbytes for step, nbytes in scratch.items() if one.first <= step <= one.last)
        assert not one.nbytes or offset >= max(of_steps, default=0)
    for (one, a), (other, b) in itertools.combinations(placed, 2):
        if one.first <= other.last and other.first <= one.last:
            assert a + one.nbytes <= b or b + other.nbytes <= a
    assert total >= max(live_bytes(lifetimes, step) + _padded(scratch.get(step, 0)) for step in range(-1, 40))
    assert total <= sum(_padded(one.nbytes) for one in lifetimes) + max(map(_padded, scratch.values()), default=0)


def test_a_chain_needs_no_more_than_two_at_a_time() -> None:
    chain = [Lifetime(1024, step, step + 1) for step in range(10)]
    assert assign_offsets(chain)[1] == 2048


def test_what_came_to_lie_highest_is_tried_in_the_lowest_place() -> None:
    """By size, by need, and with what lasts at last, it takes 5 units, of which 4 are needed at a time."""
    unit = 1024
    sizes = [(3, 4, 7), (1, 2, 5), (1, 0, 2), (3, 1, 1)]
    lifetimes = [Lifetime(size * unit, first, last) for size, first, last in sizes]
    assert assign_offsets(lifetimes)[1] == max(live_bytes(lifetimes, step) for step in range(8)) == 4 * unit


def test_nothing_takes_nothing() -> None:
    assert assign_offsets([]) == ([], 0)
