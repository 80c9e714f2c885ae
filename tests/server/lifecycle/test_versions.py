"""The machine, driven by everything that may happen, in any order, on a clock that is set by hand."""

from __future__ import annotations

import heapq
from collections import Counter
from pathlib import Path

from dnnserve.envelope import ModelKey
from dnnserve.lifecycle.versions import Action, Drain, Free, IndexEntry, Lifecycle, Load, Recipe, Serve, State
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

NAMES = "ab"
GOOD, BAD = Recipe(Path("good")), Recipe(Path("bad"))
CHANGED = Recipe(Path("good"), stamp=((2,),))


class Lives(RuleBasedStateMachine):
    """The mechanism, played by hand: it carries out what the machine says when the test likes, and requests come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Lifecycle()
        self.serving: tuple[ModelKey, ...] = ()
        self.loading: dict[ModelKey, Recipe] = {}
        self.ready: set[ModelKey] = set()
        self.draining: set[ModelKey] = set()
        self.freeing: set[ModelKey] = set()
        self.inside: Counter[ModelKey] = Counter()
        self.was_ready: set[str] = set()
        self.wanted: dict[str, dict[int, Recipe]] = {}

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Load(key, recipe):
                    assert not self.loading, "one at a time"
                    assert key not in self.ready
                    self.loading[key] = recipe
                case Serve(keys):
                    assert set(keys) <= self.ready, "requests go to versions that are ready"
                    assert len({key[:2] for key in keys}) == len(keys)
                    self.serving = keys
                case Drain(key):
                    assert key in self.ready
                    assert key not in self.serving, "no new request comes to a version that drains"
                    self.ready.remove(key)
                    self.draining.add(key)
                case Free(key):
                    assert key not in self.serving
                    assert not self.inside[key], "every request has its answer"
                    self.freeing.add(key)

    @rule(
        name=st.sampled_from(NAMES), recipes=st.dictionaries(st.integers(1, 3), st.sampled_from([GOOD, BAD, CHANGED]))
    )
    def want(self, name: str, recipes: dict[int, Recipe]) -> None:
        self.wanted[name] = recipes
        if not recipes:
            self.was_ready.discard(name)
        self.act(self.machine.want(name, recipes))

    @rule()
    @precondition(lambda self: self.loading)
    def load_ends(self) -> None:
        key, recipe = self.loading.popitem()
        if recipe == BAD:
            self.act(self.machine.failed(key, "it is bad"))
        else:
            self.ready.add(key)
            actions = self.machine.loaded(key)
            if actions and actions[0] == Free(key):
                self.ready.remove(key)
            self.act(actions)

    @rule(data=st.data())
    @precondition(lambda self: self.serving)
    def ask(self, data: st.DataObject) -> None:
        self.inside[data.draw(st.sampled_from(self.serving))] += 1

    @rule(data=st.data())
    @precondition(lambda self: +self.inside)
    def answer(self, data: st.DataObject) -> None:
        self.inside[data.draw(st.sampled_from(sorted(+self.inside)))] -= 1

    @rule()
    def drains_end(self) -> None:
        for key in [key for key in self.draining if not self.inside[key]]:
            self.draining.remove(key)
            self.act(self.machine.drained(key))

    @rule()
    @precondition(lambda self: self.freeing)
    def free_ends(self) -> None:
        self.act(self.machine.freed(self.freeing.pop()))

    @invariant()
    def what_was_ready_stays_ready_while_it_is_wanted(self) -> None:
        served = {key.name for key in self.serving}
        assert self.was_ready <= served
        self.was_ready |= served & {name for name, recipes in self.wanted.items() if recipes}

    @invariant()
    def states_are_those_of_the_mechanism(self) -> None:
        for keys, state in (
            (self.loading, State.LOADING),
            (self.ready, State.READY),
            (self.draining, State.DRAINING),
            (self.freeing, State.FREEING),
        ):
            assert all(self.machine.state(key) is state for key in keys)

    def teardown(self) -> None:
        """Left alone, it comes to rest: what is wanted and can be had serves, and nothing else but where nothing could be had."""
        while self.loading or self.draining or self.freeing:
            self.inside.clear()
            if self.loading:
                self.load_ends()
            self.drains_end()
            if self.freeing:
                self.free_ends()
        for name, recipes in self.wanted.items():
            good = {version for version, recipe in recipes.items() if recipe != BAD}
            served = {key.version for key in self.serving if key.name == name}
            assert good <= served
            if good:
                # A version whose new recipe is bad goes on by its old one; others that are not wanted have gone.
                assert served <= recipes.keys()
            assert self.machine.settled(name)
            assert self.machine.failures(name).keys() == recipes.keys() - good
            assert self.machine.gone(name) == (not recipes)


TestLives = Lives.TestCase


@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(1, 6), st.booleans()), max_size=12),
    st.lists(st.tuples(st.floats(0, 60), st.floats(0.01, 20)), max_size=60),
    st.floats(0.01, 10),
)
def test_on_a_virtual_clock_every_request_is_answered_by_the_version_that_took_it(
    changes: list[tuple[float, int, bool]], requests: list[tuple[float, float]], load_s: float
) -> None:
    """A model whose latest version changes at random moments, some of them bad, under requests of any length."""
    machine = Lifecycle()
    first = ModelKey("m", 1)
    machine.adopt(first, GOOD)
    serving, inside, draining = [first], Counter[ModelKey](), set[ModelKey]()
    alive, answered = {first}, 0
    events: list[tuple[float, int, object]] = [(at, number, change) for number, (at, *change) in enumerate(changes)]
    events += [(at, 100 + number, taken) for number, (at, taken) in enumerate(requests)]
    heapq.heapify(events)
    number = 1000

    def later(at: float, event: object) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (at, number, event))

    def act(now: float, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Load():
                    later(now + load_s, action)
                case Serve(keys):
                    serving[:] = keys
                case Drain(key):
                    draining.add(key)
                case Free(key):
                    alive.remove(key)
                    act(now, machine.freed(key))
        for key in [key for key in draining if not inside[key]]:
            draining.remove(key)
            act(now, machine.drained(key))

    while events:
        now, _, event = heapq.heappop(events)
        match event:
            case [int(version), bool(bad)]:
                act(now, machine.want("m", {version: BAD if bad else GOOD}))
            case float(taken):
                (key,) = serving  # there is one at any moment
                inside[key] += 1
                later(now + taken, key)
            case ModelKey():
                assert event in alive, "its version was there until the answer"
                inside[event] -= 1
                answered += 1
                act(now, [])
            case Load(key, recipe):
                if recipe == BAD:
                    act(now, machine.failed(key, "bad"))
                else:
                    alive.add(key)
                    act(now, machine.loaded(key))
    assert answered == len(requests)
    assert alive == set(serving)


def test_a_bad_version_is_told_in_the_index_beside_the_old_one_which_serves() -> None:
    machine = Lifecycle()
    machine.adopt(ModelKey("m", 1), GOOD)
    (load,) = machine.want("m", {2: BAD})
    assert isinstance(load, Load)
    assert [entry.state for entry in machine.index()] == ["READY", "LOADING"]
    assert machine.failed(load.key, "weights.safetensors is truncated") == []
    assert machine.index() == (
        IndexEntry("m", 1, "READY"),
        IndexEntry("m", 2, "UNAVAILABLE", "weights.safetensors is truncated"),
    )
    assert machine.want("m", {2: BAD}) == []  # not again, until something changes or somebody asks
    assert machine.want("m", {2: BAD}, retry=True) != []


def test_a_version_whose_files_change_is_loaded_anew_and_takes_the_place_of_the_old_one() -> None:
    machine = Lifecycle()
    old = ModelKey("m", 1)
    machine.adopt(old, GOOD)
    (load,) = machine.want("m", {1: CHANGED})
    assert isinstance(load, Load)
    assert load.key[:2] == old[:2]
    assert machine.loaded(load.key) == [Serve((load.key,)), Drain(old)]
