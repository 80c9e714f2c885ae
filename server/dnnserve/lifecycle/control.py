"""The mechanism around the machine: a thread that takes events to it and carries its actions out, and one that loads."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from dnncore.errors import DnncoreError
from dnnserve.catalog import shorten
from dnnserve.config import ServerConfig
from dnnserve.envelope import ModelKey
from dnnserve.errors import ModelNotFoundError, RepositoryError, StartError, UnavailableError
from dnnserve.lifecycle.requests import Answer, IndexWanted, LoadWanted, Question, UnloadWanted
from dnnserve.lifecycle.sightings import Seen, Sight, Sightings
from dnnserve.lifecycle.versions import Action, Drain, Free, IndexEntry, Lifecycle, Load, Recipe, Serve, Stamp

__all__ = ["ModelControl", "Performer", "recipe_of"]

_log = logging.getLogger(__name__)

_DRAIN_LOOK_S = 0.02
_SETTLE_S = 1.0
_CLOSE_S = 5.0


class Performer(Protocol):
    """What is used here of the stage."""

    def load(self, key: ModelKey, recipe: Recipe) -> None:
        """Bring a version to where it could serve; raises where that fails, and nothing of it is left."""
        ...

    def serve(self, keys: Sequence[ModelKey]) -> None:
        """Give new requests to these versions alone."""
        ...

    def drain(self, key: ModelKey) -> None:
        """No more requests come to a version."""
        ...

    def holds(self, key: ModelKey) -> bool:
        """Whether a request that was given to a version has no answer yet."""
        ...

    def free(self, key: ModelKey, freed: Callable[[], None]) -> None:
        """Give back what a version takes; returns at once."""
        ...

    def forget(self, key: ModelKey) -> None:
        """Nothing of a version is there or wanted any more."""
        ...

    def reconfigure(self, config: ServerConfig) -> None:
        """Apply settings that need no new load."""
        ...


def recipe_of(config: ServerConfig, name: str, path: Path, stamp: Stamp, devices: Mapping[str, str]) -> Recipe:
    """What a version is made of, by the configuration.

    Args:
        config: Of the server.
        name: Of the model.
        path: Of its package.
        stamp: What the package looks like.
        devices: Those of the server, by label.

    Raises:
        StartError: the model is for devices that the server has not.
    """
    settings = config.of_model(name)
    labels = frozenset(devices)
    if name in config.models and config.models[name].devices is not None:
        wanted = {part.strip() for part in (settings.devices or "").split(",")}
        missing = sorted(wanted - set(devices.values()))
        if missing:
            there = ", ".join(sorted(set(devices.values())))
            raise StartError(f"models.{name}: devices {', '.join(missing)} are not among the server's: {there}")
        labels = frozenset(label for label, device in devices.items() if device in wanted)
    return Recipe(path, stamp, settings.max_batch_rows, settings.precision, labels)


class _Asked(NamedTuple):
    """A change that a client asks for. Immutable."""

    question: LoadWanted | UnloadWanted
    answer: Callable[[Answer], None]


class ModelControl:
    """Loads, switches and unloads versions beside what is served. Thread-safe; the machine belongs to its own thread.

    Args:
        config: Repository, mode and settings of models.
        devices: Those of the server, by label.
        stage: Where versions live.
        see: Looks at the repository; raises StartError where it cannot be read at all.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        config: ServerConfig,
        devices: Mapping[str, str],
        stage: Performer,
        see: Callable[[], Sight],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._devices = devices
        self._stage = stage
        self._look_at = see
        self._clock = clock
        self._machine = Lifecycle()
        self._index: tuple[IndexEntry, ...] = ()  # replaced as a whole
        self._there: set[tuple[str, int]] = set()  # versions that the machine knows of
        self._events: queue.SimpleQueue[Callable[[], None] | _Asked | None] = queue.SimpleQueue()
        self._loader = ThreadPoolExecutor(1, "dnnserve-loader")
        self._thread = threading.Thread(target=self._work, name="dnnserve-models", daemon=True)
        self._draining: list[ModelKey] = []
        self._waiting: list[tuple[Callable[[], Answer | None], Callable[[Answer], None]]] = []
        self._seen: Seen = {}
        self._sightings = Sightings(min(_SETTLE_S, config.repository_poll_seconds), {})
        self._next_look_s = clock() + config.repository_poll_seconds
        self._misfits: frozenset[str] = frozenset()  # of the last look at the repository
        self._told: set[str] = set()  # what else was logged of it already
        self._stopped = False

    def start(self, recipes: Mapping[ModelKey, Recipe]) -> None:
        """Begin with versions that serve already."""
        seen: dict[str, dict[int, tuple[Path, Stamp]]] = {}
        for key, recipe in recipes.items():
            self._machine.adopt(key, recipe)
            seen.setdefault(key.name, {})[key.version] = recipe.path, recipe.stamp
        self._sightings = Sightings(min(_SETTLE_S, self._config.repository_poll_seconds), seen)
        if self._config.repository_mode == "explicit":
            try:
                self._seen = self._see().seen
            except StartError as error:
                self._tell(str(error))
        self._show()
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more; who waits is told so."""
        if not self._thread.is_alive():
            return
        self._events.put(None)
        self._thread.join(_CLOSE_S)
        self._loader.shutdown(wait=False, cancel_futures=True)

    def index(self) -> tuple[IndexEntry, ...]:
        """Every version that is there, or should be."""
        return self._index

    def ask(self, question: Question, answer: Callable[[Answer], None]) -> None:
        """Have a client's question answered, in any thread. Does not block."""
        if isinstance(question, IndexWanted):
            entries = self._index
            answer(tuple(entry for entry in entries if entry.state == "READY") if question.ready_only else entries)
        elif self._config.repository_mode != "explicit":
            answer(
                RepositoryError(
                    f"models are not loaded and unloaded by clients here (--repository-mode {self._config.repository_mode}); "
                    "start the server with --repository-mode explicit"
                )
            )
        else:
            self._events.put(_Asked(question, answer))
            if self._stopped:  # written before the last look at the events, so one of the two sees the other's
                self._answer_late()

    def reconfigure(self, config: ServerConfig) -> None:
        """Apply a configuration: settings of requests at once, those that need it by a new load."""
        self._events.put(lambda: self._reconfigure(config))

    # What follows is called in the control's own thread.

    def _work(self) -> None:
        while (event := self._next_event()) is not None:
            try:
                if isinstance(event, _Asked):
                    self._change(*event)
                else:
                    event()
                self._look_after_drains()
                self._answer_waiting()
            except Exception:  # noqa: BLE001 - whatever one event does, the next gets its chance
                _log.exception("the control of models failed")
            self._show()
        self._stopped = True
        for _, answer in self._waiting:
            answer(_stopping())
        self._waiting.clear()
        self._answer_late()

    def _answer_late(self) -> None:
        """Tell those who have asked too late; in any thread, once the control has stopped."""
        with suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                if isinstance(event, _Asked):
                    event.answer(_stopping())

    def _next_event(self) -> Callable[[], None] | _Asked | None:
        polls = self._config.repository_mode == "poll"
        until_s = [_DRAIN_LOOK_S] if self._draining else []
        if polls:
            until_s.append(max(0.0, self._next_look_s - self._clock()))
        try:
            return self._events.get(timeout=min(until_s, default=None))
        except queue.Empty:
            return self._poll if polls and self._clock() >= self._next_look_s else lambda: None

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Load():
                    self._loader.submit(self._load, action)
                case Serve(keys):
                    self._stage.serve(keys)
                case Drain(key):
                    self._stage.drain(key)
                    self._draining.append(key)
                case Free(key):
                    self._free(key)

    def _load(self, action: Load) -> None:
        """In the loader's thread."""
        try:
            self._stage.load(action.key, action.recipe)
        except Exception as error:  # noqa: BLE001 - the version's
            reason = str(error) if isinstance(error, DnncoreError) else f"{type(error).__name__}: {error}"
            _log.error("model %s cannot be loaded; what was served goes on: %s", action.key, reason)
            self._events.put(lambda: self._perform(self._machine.failed(action.key, reason)))
        else:
            self._events.put(lambda: self._perform(self._machine.loaded(action.key)))

    def _free(self, key: ModelKey) -> None:
        self._stage.free(key, lambda: self._events.put(lambda: self._perform(self._machine.freed(key))))

    def _look_after_drains(self) -> None:
        for key in [key for key in self._draining if not self._stage.holds(key)]:
            self._draining.remove(key)
            self._perform(self._machine.drained(key))

    def _answer_waiting(self) -> None:
        left = []
        for look, tell in self._waiting:
            answer = look()
            if answer is None:
                left.append((look, tell))
            else:
                self._show()
                tell(answer)
        self._waiting = left

    def _change(self, question: LoadWanted | UnloadWanted, answer: Callable[[Answer], None]) -> None:
        name = question.name
        if isinstance(question, UnloadWanted):
            if self._machine.gone(name):
                answer(ModelNotFoundError(f"model {shorten(name)} is not loaded; RepositoryIndex lists what is"))
                return
            self._perform(self._machine.want(name, {}))
            self._waiting.append((lambda: self._unloaded(name), answer))
            return
        try:
            sight = self._see()
            self._seen = sight.seen
            recipes = self._recipes(name, sight.seen.get(name, {}))
        except StartError as error:
            answer(RepositoryError(str(error)))
            return
        if name in sight.hidden:
            answer(
                RepositoryError(f"the folder of model {shorten(name)} cannot be read; the server's log has the cause")
            )
            return
        if not recipes:
            there = ", ".join(map(repr, self._seen)) or "none"
            answer(ModelNotFoundError(f"model {shorten(name)} is not in the repository; there are {there}"))
            return
        self._perform(self._machine.want(name, recipes, retry=True))
        self._waiting.append((lambda: self._loaded(name), answer))

    def _unloaded(self, name: str) -> Answer | None:
        if name in self._machine.names:
            return RepositoryError(f"model {shorten(name)} was asked for again before all of it was gone")
        return () if self._machine.gone(name) else None

    def _loaded(self, name: str) -> Answer | None:
        if name not in self._machine.names:
            return RepositoryError(f"model {shorten(name)} was unloaded before all of it was there")
        if not self._machine.settled(name):
            return None
        failures = self._machine.failures(name)
        if not failures:
            return ()
        reasons = "; ".join(f"version {version}: {reason}" for version, reason in sorted(failures.items()))
        return RepositoryError(f"model {shorten(name)} could not be loaded: {reasons}")

    def _poll(self) -> None:
        config, now_s = self._config, self._clock()
        self._next_look_s = now_s + config.repository_poll_seconds
        try:
            look = self._sightings.look(self._see(), now_s)
        except StartError as error:
            self._tell(str(error))
            return
        if look.settling:
            self._next_look_s = now_s + min(_SETTLE_S, config.repository_poll_seconds)
        self._seen = look.counted
        self._follow()

    def _follow(self) -> None:
        """Want what is in the repository, as `poll` does."""
        for name in sorted(self._machine.names | self._seen.keys()):
            try:
                self._perform(self._machine.want(name, self._recipes(name, self._seen.get(name, {}))))
            except StartError as error:
                self._tell(str(error))

    def _see(self) -> Sight:
        sight = self._look_at()
        for misfit in sight.misfits:
            if misfit not in self._misfits:  # told when it came
                _log.error("%s", misfit)
        self._misfits = frozenset(sight.misfits)
        return sight

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.error("%s", text)

    def _recipes(self, name: str, found: Mapping[int, tuple[Path, Stamp]]) -> dict[int, Recipe]:
        if found and not self._config.all_versions:
            number = max(found)
            found = {number: found[number]}
        return {
            number: recipe_of(self._config, name, path, stamp, self._devices) for number, (path, stamp) in found.items()
        }

    def _reconfigure(self, config: ServerConfig) -> None:
        self._config = config
        self._stage.reconfigure(config)
        for name in sorted(self._machine.names):
            recipes = {}
            for number, recipe in self._machine.wanted(name).items():
                try:
                    recipes[number] = recipe_of(config, name, recipe.path, recipe.stamp, self._devices)
                except StartError as error:
                    _log.error("%s; the model goes on as it is", error)
                    recipes[number] = recipe
            self._perform(self._machine.want(name, recipes))

    def _show(self) -> None:
        """Renew the index: what the machine knows of, and what else the repository has. Versions that it knows of no more are
        forgotten.
        """
        entries = self._machine.index()
        there = {(entry.name, entry.version) for entry in entries}
        for gone in self._there - there:
            self._stage.forget(ModelKey(*gone))
        self._there = there
        others = (
            IndexEntry(name, number, "UNAVAILABLE", "not loaded")
            for name, found in self._seen.items()
            for number in found
            if (name, number) not in there
        )
        self._index = tuple(sorted((*entries, *others), key=lambda entry: (entry.name, entry.version)))


def _stopping() -> UnavailableError:
    return UnavailableError("the server is stopping; ask another replica")
