"""The life of each version of each model: a machine that gets events and says what to do. It knows no thread, clock or file.

    want            loaded             nobody wants it        drained        freed
     ------> LOADING ------> READY --------------------> DRAINING ----> FREEING ----> gone
                |                                                          ^
                +-- failed: gone; loaded, and not wanted any more ---------+

A version that is not wanted any more goes on serving until what is wanted in its place is ready; where that cannot be loaded it
stays. So a model that is wanted and was ready once is ready always.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from dnnserve.envelope import ModelKey

__all__ = ["Action", "Drain", "Free", "IndexEntry", "Lifecycle", "Load", "Recipe", "Serve", "Stamp", "State"]

Stamp = tuple[tuple[str | int, ...], ...]
"""What a version's files looked like: it changes when they do."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a version is made of: another recipe makes another version, though the number be the same. Immutable.

    Args:
        path: Its package.
        stamp: Of the package's files.
        max_batch_rows: Rows of a batch.
        precision: As the configuration has it; None: as the package says.
        devices: Labels of the devices that shall have it.
    """

    path: Path
    stamp: Stamp = ()
    max_batch_rows: int = 1
    precision: str | None = None
    devices: frozenset[str] = frozenset()


class State(Enum):
    """Of a version."""

    LOADING = "LOADING"
    READY = "READY"
    DRAINING = "DRAINING"
    FREEING = "FREEING"


@dataclass(frozen=True, slots=True)
class Load:
    """Load a version, and answer with `loaded` or `failed`. Immutable."""

    key: ModelKey
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Serve:
    """Give new requests to these versions alone, from now on. Immutable."""

    keys: tuple[ModelKey, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """Answer `drained` once every request that a version was given has its answer. Immutable."""

    key: ModelKey


@dataclass(frozen=True, slots=True)
class Free:
    """Give back what a version takes, and answer with `freed`. Immutable."""

    key: ModelKey


Action = Load | Serve | Drain | Free


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A version as an operator sees it. Immutable.

    Args:
        name: Of the model.
        version: Its number.
        state: READY, LOADING, UNLOADING or UNAVAILABLE.
        reason: Why it is not ready, or why what should have replaced it is not.
    """

    name: str
    version: int
    state: str
    reason: str = ""


_SHOWN = {State.READY: "READY", State.LOADING: "LOADING", State.DRAINING: "UNLOADING", State.FREEING: "UNLOADING"}


@dataclass(slots=True)
class _Version:
    recipe: Recipe
    state: State


class Lifecycle:
    """All versions of all models. Owned by one thread; not checked.

    One version is loaded at a time: two that are loaded together could each fit into memory and both not. Events return actions,
    which are to be carried out in their order.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, dict[int, Recipe]] = {}
        self._versions: dict[ModelKey, _Version] = {}
        self._failures: dict[tuple[str, int], tuple[Recipe, str]] = {}
        self._serving: tuple[ModelKey, ...] = ()
        self._loads = itertools.count(1)

    def adopt(self, key: ModelKey, recipe: Recipe) -> None:
        """Begin with a version that is ready already."""
        self._versions[key] = _Version(recipe, State.READY)
        self._wanted.setdefault(key.name, {})[key.version] = recipe
        self._serving = self._ready()

    def want(self, name: str, recipes: Mapping[int, Recipe], *, retry: bool = False) -> list[Action]:
        """These versions of a model are wanted from now on, and no others.

        Args:
            name: Of the model.
            recipes: By version; none: it is to go.
            retry: Whether what has failed is tried again, though it has not changed.
        """
        if recipes:
            self._wanted[name] = dict(recipes)
        else:
            self._wanted.pop(name, None)
        for (other, version), (recipe, _) in list(self._failures.items()):
            if other == name and (retry or recipes.get(version) != recipe):
                del self._failures[name, version]
        return self._advance()

    def loaded(self, key: ModelKey) -> list[Action]:
        """A version is ready."""
        version = self._versions[key]
        if self._is_wanted(key):
            version.state = State.READY
            self._failures.pop((key.name, key.version), None)
            return self._advance()
        version.state = State.FREEING
        return [Free(key), *self._advance()]

    def failed(self, key: ModelKey, reason: str) -> list[Action]:
        """A version could not be loaded, and nothing of it is left; it is not tried again until its recipe changes."""
        version = self._versions.pop(key)
        if self._wanted.get(key.name, {}).get(key.version) == version.recipe:
            self._failures[key.name, key.version] = version.recipe, reason
        return self._advance()

    def drained(self, key: ModelKey) -> list[Action]:
        """Every request that a version was given has its answer."""
        self._versions[key].state = State.FREEING
        return [Free(key)]

    def freed(self, key: ModelKey) -> list[Action]:
        """Nothing of a version is left."""
        del self._versions[key]
        return self._advance()

    @property
    def names(self) -> frozenset[str]:
        """Models that are wanted."""
        return frozenset(self._wanted)

    def wanted(self, name: str) -> Mapping[int, Recipe]:
        """The versions of a model that are wanted."""
        return dict(self._wanted.get(name, {}))

    def state(self, key: ModelKey) -> State | None:
        """Of a version; None: it is gone."""
        version = self._versions.get(key)
        return None if version is None else version.state

    def settled(self, name: str) -> bool:
        """Whether all that is wanted of a model is ready, or has failed."""
        return not self._pending(name)

    def gone(self, name: str) -> bool:
        """Whether nothing of a model is left."""
        return name not in self._wanted and not any(key.name == name for key in self._versions)

    def failures(self, name: str) -> Mapping[int, str]:
        """Why versions that are wanted could not be loaded."""
        return {version: reason for (other, version), (_, reason) in self._failures.items() if other == name}

    def index(self) -> tuple[IndexEntry, ...]:
        """Every version that is there, or should be."""
        entries: dict[tuple[str, int], IndexEntry] = {}
        order = list(_SHOWN)
        for key, version in sorted(self._versions.items(), key=lambda item: order.index(item[1].state)):
            reason = self._failures.get(key[:2], (None, ""))[1]
            entries.setdefault(key[:2], IndexEntry(key.name, key.version, _SHOWN[version.state], reason))
        for (name, number), (_, reason) in self._failures.items():
            entries.setdefault((name, number), IndexEntry(name, number, "UNAVAILABLE", reason))
        return tuple(entries[place] for place in sorted(entries))

    def _advance(self) -> list[Action]:
        """What follows from what is wanted and what is there."""
        actions: list[Action] = []
        obsolete = [key for key in self._keys(State.READY) if not self._is_wanted(key) and self._is_replaced(key)]
        for key in obsolete:
            self._versions[key].state = State.DRAINING
        serving = self._ready()
        if serving != self._serving:
            self._serving = serving
            actions.append(Serve(serving))
        actions += map(Drain, obsolete)
        if not self._keys(State.LOADING):
            following = next(((name, found[0]) for name in self._wanted if (found := self._to_load(name))), None)
            if following is not None:
                name, number = following
                key, recipe = ModelKey(name, number, next(self._loads)), self._wanted[name][number]
                self._versions[key] = _Version(recipe, State.LOADING)
                actions.append(Load(key, recipe))
        return actions

    def _ready(self) -> tuple[ModelKey, ...]:
        """Of versions that are there twice, the last one loaded."""
        return tuple(sorted({key[:2]: key for key in sorted(self._keys(State.READY))}.values()))

    def _keys(self, state: State) -> list[ModelKey]:
        return [key for key, version in self._versions.items() if version.state is state]

    def _is_wanted(self, key: ModelKey) -> bool:
        return self._wanted.get(key.name, {}).get(key.version) == self._versions[key].recipe

    def _is_replaced(self, key: ModelKey) -> bool:
        """Whether a version that is not wanted may go: what is wanted in its place is ready, or there is nothing."""
        wanted = self._wanted.get(key.name, {})
        ready = {
            other.version for other in self._keys(State.READY) if other.name == key.name and self._is_wanted(other)
        }
        if key.version in wanted:
            return key.version in ready
        return not wanted or (bool(ready) and not self._pending(key.name))

    def _pending(self, name: str) -> bool:
        loading = any(key.name == name and self._is_wanted(key) for key in self._keys(State.LOADING))
        return loading or bool(self._to_load(name))

    def _to_load(self, name: str) -> list[int]:
        """Versions of a model that are wanted, not there and not known to fail, the latest first."""
        there = {
            key.version
            for key in (*self._keys(State.READY), *self._keys(State.LOADING))
            if key.name == name and self._is_wanted(key)
        }
        return sorted(
            (
                number
                for number, recipe in self._wanted.get(name, {}).items()
                if number not in there and self._failures.get((name, number), (None, ""))[0] != recipe
            ),
            reverse=True,
        )
