"""What of a repository counts, by looks at random moments of a clock that is set by hand."""

from __future__ import annotations

from pathlib import Path

from dnnserve.lifecycle.sightings import Sight, Sightings
from hypothesis import given
from hypothesis import strategies as st

_WHAT = st.dictionaries(st.integers(1, 3), st.integers(1, 2), max_size=3)  # what each version looks like


@given(st.lists(st.tuples(st.floats(0.0, 1.5), _WHAT), max_size=30))
def test_a_version_counts_that_has_looked_the_same_for_a_second(looks: list[tuple[float, dict[int, int]]]) -> None:
    sightings = Sightings(1.0, {})
    now, since = 0.0, dict[int, tuple[int, float]]()
    counted: dict[int, int] = {}
    for wait, what in looks:
        now += wait
        since = {number: since.get(number, (0, 0.0)) for number in what}
        since = {n: s if s[0] == what[n] else (what[n], now) for n, s in since.items()}
        counted = {number: look for number, look in counted.items() if number in what}
        counted |= {number: look for number, (look, began) in since.items() if now - began >= 1.0}
        seen = {"m": {number: (Path(str(number)), ((look,),)) for number, look in what.items()}}
        look = sightings.look(Sight(seen), now)
        assert {number: place[1][0][0] for number, place in look.counted.get("m", {}).items()} == counted
        assert look.settling == any(counted.get(number) != what[number] for number in what)


def test_what_serves_from_the_beginning_counts_at_once_until_it_changes() -> None:
    place = (Path("1"), ((1,),))
    sightings = Sightings(1.0, {"m": {1: place}})
    assert sightings.look(Sight({"m": {1: place}}), 0.0).counted == {"m": {1: place}}
    changed = (Path("1"), ((2,),))
    look = sightings.look(Sight({"m": {1: changed}}), 10.0)
    assert (look.counted, look.settling) == ({"m": {1: place}}, True)
    assert sightings.look(Sight({"m": {1: changed}}), 11.0).counted == {"m": {1: changed}}
    assert sightings.look(Sight({}, hidden=frozenset("m")), 12.0).counted == {"m": {1: changed}}
    assert sightings.look(Sight({}), 13.0).counted == {}
