"""Where versions live while they live: engines, devices, scheduler, counters and front end, moved together."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from dnncore.nn import Package
from dnnserve.catalog import ModelSpec
from dnnserve.config import ModelConfig, ServerConfig
from dnnserve.engine.runner import Runner
from dnnserve.envelope import ModelKey
from dnnserve.errors import StartError
from dnnserve.lifecycle.reading import configured, read_model
from dnnserve.lifecycle.versions import Recipe
from dnnserve.saved_costs import SavedCosts
from dnnserve.scheduler import Scheduler
from dnnserve.scheduling.entry import Limits
from dnnserve.statistics import Statistics

__all__ = ["Door", "LoadCounters", "ModelStore", "PackageReader", "Stage", "limits_of"]

_log = logging.getLogger(__name__)

_LONGEST_LOAD_S = 1800.0
"""With all kernels to be compiled a load takes minutes; one that hangs must not keep others from beginning for ever."""

PackageReader = Callable[[Path], Package]
"""Loads the package of a path; raises StartError."""


class ModelStore(Protocol):
    """Where devices find models, as `dnnserve.engine.host.Engines` has it. Thread-safe."""

    def put(self, model: ModelKey, served: Any) -> None:
        """Keep a model to be loaded."""
        ...

    def drop(self, model: ModelKey) -> None:
        """Keep a model no more. A second call does nothing."""
        ...


class Door(Protocol):
    """What is used here of the front end, as `dnnserve.front.front_end.FrontEnd` has it. Thread-safe."""

    def start(self, specs: Sequence[ModelSpec]) -> None:
        """Begin to take calls for these models."""
        ...

    def serve(self, specs: Sequence[ModelSpec]) -> None:
        """Give requests to these models from now on, and to no others."""
        ...

    def holds(self, model: ModelKey) -> bool:
        """Whether a request was given to a model and has no answer yet."""
        ...

    def forget(self, model: ModelKey) -> None:
        """A model is gone, and nothing holds it."""
        ...


class LoadCounters(Protocol):
    """What is used here of the metrics. Thread-safe."""

    def add(self, model: ModelKey) -> None:
        """Begin a version's series."""
        ...

    def remove(self, model: ModelKey) -> None:
        """End them: no load of it is left."""
        ...

    def forget_loads(self, model: ModelKey) -> None:
        """Forget how its loads have ended."""
        ...

    def record_load(self, model: ModelKey, seconds: float, *, failed: bool) -> None:
        """Count a load that has ended."""
        ...


def limits_of(config: ServerConfig, max_batch_rows: int) -> Limits:
    """Bounds of a model's queue."""
    return Limits(
        max_batch_rows=max_batch_rows,
        max_queue_requests=config.max_queue_requests,
        max_queue_delay_ns=config.max_queue_delay_us * 1000,
        hold_until_requests=config.hold_until_requests,
    )


class Stage:
    """What is served, and how a version comes and goes. Thread-safe: `_lock` guards `_specs`, `_served` and `_config`.

    Args:
        config: As it holds at the start.
        store: Where devices find models.
        read: Loads packages.
        runners: Of all devices.
        scheduler: Their work.
        statistics: Counters of the models.
        metrics: These too.
        front: Takes calls.
        costs: Told which models there are; None: what batches take is not saved.
    """

    def __init__(
        self,
        config: ServerConfig,
        store: ModelStore,
        read: PackageReader,
        runners: Sequence[Runner],
        scheduler: Scheduler,
        statistics: Statistics,
        metrics: LoadCounters,
        front: Door,
        costs: SavedCosts | None = None,
    ) -> None:
        self._costs = costs
        self._store = store
        self._read = read
        self._runners = {runner.label: runner for runner in runners}
        self._scheduler = scheduler
        self._statistics = statistics
        self._metrics = metrics
        self._front = front
        self._lock = threading.Lock()
        self._config = config
        self._specs: dict[ModelKey, ModelSpec] = {}
        self._served: tuple[ModelKey, ...] = ()

    def open(self, specs: Sequence[ModelSpec]) -> None:
        """Begin to serve versions that all their devices have loaded."""
        with self._lock:
            self._specs = {spec.key: spec for spec in specs}
            self._served = tuple(self._specs)
        for spec in specs:
            self._scheduler.add_model(spec.key, limits_of(self._config, spec.max_batch_rows))
        self._front.start(specs)

    def load(self, key: ModelKey, recipe: Recipe) -> None:
        """Bring a version to where it could serve; takes its time, beside all that does.

        Raises:
            DnncoreError: it could not be brought there, and nothing of it is left.
        """
        began_s = time.monotonic()
        try:
            self._load(key, recipe)
        except BaseException:
            self._metrics.record_load(key, time.monotonic() - began_s, failed=True)
            raise
        self._metrics.record_load(key, time.monotonic() - began_s, failed=False)
        _log.info("model %s is ready after %.1f s", key, time.monotonic() - began_s)

    def _load(self, key: ModelKey, recipe: Recipe) -> None:
        _log.info("model %s: reading %s", key, recipe.path)
        settings = replace(self._settings(key.name), max_batch_rows=recipe.max_batch_rows, precision=recipe.precision)
        spec, served = read_model(key, self._read(recipe.path), settings, recipe.devices)
        runners = [self._runners[label] for label in sorted(recipe.devices)]
        _log.info("model %s: loading it on %s", key, ", ".join(runner.label for runner in runners))
        if self._costs is not None:
            self._costs.enter(key, served.digest)
        self._store.put(key, served)
        try:
            self._load_on(runners, key, recipe.max_batch_rows)
        except BaseException:
            self._unload_from(runners, key)
            self._drop(key)
            raise
        self._scheduler.add_model(key, limits_of(self._config, recipe.max_batch_rows))
        with self._lock:  # together: an earlier load may go in this moment, and the version's counters with the last
            self._specs[key] = spec
            self._statistics.add(key)
            self._metrics.add(key)

    def serve(self, keys: Sequence[ModelKey]) -> None:
        """Give new requests to these versions alone."""
        with self._lock:
            self._served = tuple(keys)
            specs = [configured(self._specs[key], self._settings(key.name)) for key in keys]
        self._front.serve(specs)
        _log.info("serving %s", ", ".join(map(str, keys)) or "nothing")

    def holds(self, key: ModelKey) -> bool:
        """Whether a request that was given to a version has no answer yet."""
        return self._front.holds(key) or self._scheduler.in_flight_of(key) > 0

    def free(self, key: ModelKey, freed: Callable[[], None]) -> None:
        """Give back what a version takes; returns at once.

        Args:
            key: A version that holds no request.
            freed: Told when it is done, in any thread.
        """
        self._scheduler.remove_model(key)
        self._front.forget(key)
        with self._lock:
            self._specs.pop(key, None)
            if all(other[:2] != key[:2] for other in self._specs):
                self._statistics.remove(key)
                self._metrics.remove(key)
        left = _Countdown(len(self._runners), partial(self._forget, key, freed))
        for runner in self._runners.values():
            runner.unload(key, left)

    def forget(self, key: ModelKey) -> None:
        """Nothing of a version is there or wanted any more, also where it was never there."""
        self._metrics.forget_loads(key)

    def reconfigure(self, config: ServerConfig) -> None:
        """Apply settings that need no new load: of the models' requests and of their queues."""
        with self._lock:
            self._config = config
            keys, served = list(self._specs), self._served
        for key in keys:
            self._scheduler.set_limits(key, limits_of(config, 1))  # the rows of its batches stay
        self.serve(served)

    def drain(self, key: ModelKey) -> None:
        """Let what waits for a version go without waiting for company: no more is coming."""
        self._scheduler.drain_model(key)

    def _drop(self, key: ModelKey) -> None:
        self._store.drop(key)
        if self._costs is not None:
            self._costs.leave(key)

    def _forget(self, key: ModelKey, freed: Callable[[], None]) -> None:
        self._drop(key)
        with self._lock:
            again = any(other[:2] == key[:2] for other in self._specs)
        _log.info("%s %s is unloaded", "the earlier load of model" if again else "model", key)
        freed()

    def _settings(self, name: str) -> ModelConfig:
        return self._config.of_model(name)

    def _load_on(self, runners: Sequence[Runner], key: ModelKey, rows: int) -> None:
        ends: queue.SimpleQueue[int | Exception | None] = queue.SimpleQueue()
        for runner in runners:
            runner.load(key, rows, ends.put)
        give_up_s = time.monotonic() + _LONGEST_LOAD_S
        try:
            ended = [ends.get(timeout=max(0.0, give_up_s - time.monotonic())) for _ in runners]
        except queue.Empty:
            raise StartError(f"not loaded within {_LONGEST_LOAD_S:.0f} s; the load is given up") from None
        errors = [end for end in ended if isinstance(end, Exception)]
        if errors:
            raise errors[0]
        if not any(isinstance(end, int) for end in ended):
            raise StartError(f"none of its devices is in service: {', '.join(runner.label for runner in runners)}")

    def _unload_from(self, runners: Sequence[Runner], key: ModelKey) -> None:
        ends: queue.SimpleQueue[None] = queue.SimpleQueue()
        for runner in runners:
            runner.unload(key, partial(ends.put, None))
        for _ in runners:
            try:
                ends.get(timeout=_LONGEST_LOAD_S)
            except queue.Empty:
                _log.error("%s could not be unloaded from all devices within %.0f s", key, _LONGEST_LOAD_S)
                return


class _Countdown:
    """Acts when it was called so many times. Thread-safe: `_lock` guards `_left`."""

    def __init__(self, count: int, act: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._left = count
        self._act = act

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._act()
