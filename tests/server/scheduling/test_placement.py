"""Models on some devices only, and models that come and go: whatever happens, in whatever order, a device runs what it has."""

from __future__ import annotations

from dnnserve.envelope import ModelKey
from dnnserve.scheduling.dispatcher import Dispatcher
from dnnserve.scheduling.entry import Entry, Limits
from dnnserve.scheduling.policy import Decision
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

MODELS = [ModelKey(name, 1) for name in "xyz"]
DEVICES = "ab"
_models, _devices = st.sampled_from(MODELS), st.sampled_from(DEVICES)


class Placement(RuleBasedStateMachine):
    """Requests of three models on two devices, one of which may be lost and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher = Dispatcher()
        self.now, self.tickets = 0, 0
        self.placed: dict[str, set[ModelKey]] = {}
        self.queued: dict[ModelKey, set[int]] = {}
        self.running: dict[str, Decision] = {}

    @initialize()
    def begin(self) -> None:
        for device in DEVICES:
            self.come_back(device)

    @rule(model=_models)
    def add(self, model: ModelKey) -> None:
        if not self.dispatcher.has(model):
            self.dispatcher.add_model(model, Limits(4, 8), self.now)
            self.queued[model] = set()

    @rule(model=_models)
    def remove(self, model: ModelKey) -> None:
        if self.dispatcher.has(model):
            assert {entry.ticket for entry in self.dispatcher.remove_model(model)} == self.queued.pop(model)

    @rule(device=_devices, model=_models, cost=st.integers(1, 50))
    def place(self, device: str, model: ModelKey, cost: int) -> None:
        self.dispatcher.place(device, model, {1: cost}, self.now)
        if device in self.placed:
            self.placed[device].add(model)

    @rule(device=_devices, model=_models)
    def displace(self, device: str, model: ModelKey) -> None:
        self.dispatcher.displace(device, model)
        self.placed.get(device, set()).discard(model)
        self.strand()

    @rule(device=_devices)
    def lose(self, device: str) -> None:
        self.dispatcher.lose_device(device, self.now)
        self.placed.pop(device, None)
        self.running.pop(device, None)
        self.strand()

    @rule(device=_devices)
    def come_back(self, device: str) -> None:
        if device not in self.placed:
            self.dispatcher.add_device(device, {}, self.now)
            self.placed[device] = set()

    @rule(model=_models, rows=st.integers(1, 4), due=st.none() | st.integers(1, 500))
    def submit(self, model: ModelKey, rows: int, due: int | None) -> None:
        if self.dispatcher.has(model) and self.dispatcher.runs(model):
            self.tickets += 1
            entry = Entry.of(self.tickets, rows, self.now, None if due is None else self.now + due)
            if self.dispatcher.submit(model, entry, self.now) is None:
                self.queued[model].add(self.tickets)

    @rule(device=_devices)
    def take(self, device: str) -> None:
        if device not in self.placed or device in self.running:
            return
        decision = self.dispatcher.take(device, self.now)
        for drop in decision.dropped:
            self.queued[drop.model] -= {entry.ticket for entry in drop.entries}
        waiting = any(self.queued.get(model) for model in self.placed[device])
        assert waiting or decision.model is None
        if decision.model is not None:
            assert decision.model in self.placed[device]
            self.queued[decision.model] -= {entry.ticket for entry in decision.batch}
            self.running[device] = decision

    @precondition(lambda self: self.running)
    @rule(took=st.integers(1, 100))
    def complete(self, took: int) -> None:
        device, decision = self.running.popitem()
        self.now += took
        self.dispatcher.complete(device, decision, self.now)

    @invariant()
    def books_are_right(self) -> None:
        assert self.dispatcher.depths == {model: len(tickets) for model, tickets in self.queued.items()}
        for model in self.queued:
            there = {device for device, models in self.placed.items() if model in models}
            assert set(self.dispatcher.costs[model]) == there

    def strand(self) -> None:
        """What is left without a device is given up, and nothing else is."""
        lost = {entry.ticket for entry in self.dispatcher.abandon(stranded=True)}
        for model, waiting in self.queued.items():
            if not any(model in models for models in self.placed.values()):
                lost -= waiting
                waiting.clear()
        assert not lost


TestPlacement = Placement.TestCase


def test_a_batch_that_ends_on_a_device_that_has_lost_its_model_teaches_nothing() -> None:
    dispatcher, (model, *_) = Dispatcher(), MODELS
    dispatcher.add_model(model, Limits(4, 8), 0)
    for device in DEVICES:
        dispatcher.add_device(device, {}, 0)
        dispatcher.place(device, model, {1: 10}, 0)
    assert dispatcher.submit(model, Entry.of(1, 1, 0, None), 0) is None
    decision = dispatcher.take("a", 0)
    assert decision.model == model
    dispatcher.displace("a", model)
    assert dispatcher.complete("a", decision, 30) == 30
    assert set(dispatcher.costs[model]) == {"b"}
    assert dispatcher.take("a", 30).model is None
