"""The server put together: what starts in which order, and how it ends.

Start: ports first (a taken one is found before minutes of loading), then devices and models, then calls. End: health and readiness
say no at once; the server goes on serving for a while, so that clients leave by themselves; then the port is closed, calls inside
are answered, and everything is closed in the thread that owns it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from dnncore.nn import Package
from dnnserve.catalog import ModelSpec
from dnnserve.command_line import keys_by_field
from dnnserve.config import ServerConfig
from dnnserve.connections import log_connections, of_front_end, of_server
from dnnserve.engine.host import HostFactory, labelled
from dnnserve.engine.runner import Runner
from dnnserve.engine.watchdog import Watchdog
from dnnserve.envelope import ModelKey
from dnnserve.errors import StartError
from dnnserve.front.front_end import Behind, FrontEnd, LocalFrontEnd
from dnnserve.front.processes import FrontProcesses
from dnnserve.garbage import collect_after_a_loss
from dnnserve.lifecycle.control import ModelControl
from dnnserve.lifecycle.sightings import Sight
from dnnserve.lifecycle.stage import ModelStore, PackageReader, Stage
from dnnserve.lifecycle.versions import IndexEntry, Recipe
from dnnserve.logs import set_log_level
from dnnserve.metrics import Metrics, MetricsPage, StateCollector
from dnnserve.processes.child import Children
from dnnserve.processes.restarts import Restarts
from dnnserve.processes.signs_of_life import Regularly
from dnnserve.questions import Answer, Question
from dnnserve.repository import see_repository
from dnnserve.saved_costs import SavedCosts
from dnnserve.scheduler import Scheduler
from dnnserve.security.doors import open_doors, shows_tokens
from dnnserve.shared_memory.registry import Registry
from dnnserve.shared_memory.requests import Registration, Unregistration
from dnnserve.statistics import Statistics
from dnnserve.web import WebServer

__all__ = ["RELOADED", "Addresses", "Origin", "Server"]

_log = logging.getLogger(__name__)

_POLL_S = 0.05
_LAST_ANSWERS_S = 0.25  # for answers that are on their way when the port closes; an open Watch makes us wait it out
_CLOSE_S = 5.0
_SAVE_S = 60.0
"""From one time that costs are saved to the next: as much is lost of what was learned where the server is killed."""

RELOADED = frozenset(
    {
        *("models", "max_batch_rows", "precision", "default_deadline_ms", "max_queue_requests", "max_queue_delay_us"),
        *(
            "deadline_margin_ms",
            "log_level",
            "lame_duck_seconds",
            "drain_seconds",
            "repository_poll_seconds",
            "all_versions",
        ),
    }
)
"""Settings that a running server can change."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a server listens. Immutable."""

    grpc: str
    metrics: str
    http: str | None = None


class Server:
    """An inference server in this process. Thread-safe: `_lock` guards `_open`; `start` and then `wait` are called once each.

    Args:
        config: Ports, limits and times; its models and devices are given here already loaded and resolved.
        device_names: One runner each; the same name twice makes two runners.
        specs: The models, with the rows of a batch asked for.
        open_host: Opens a device; called in its runner's thread.
        clock: Monotonic nanoseconds.
        restartable: Whether a lost device may be opened again.
        close: Called at the end, when every device is closed.
        set_log_level: Called when the level changes; for processes of devices.
        origin: What the models were made of, and how others are read; None: no others will come.
        fronts: Processes of front ends that were begun; None: none were.
        costs: What batches took at earlier starts, and where this one leaves it; None: it is not saved.

    Raises:
        StartError: a port cannot be had, or certificates or tokens cannot be used.
    """

    def __init__(
        self,
        config: ServerConfig,
        device_names: Sequence[str],
        specs: Sequence[ModelSpec],
        open_host: HostFactory,
        clock: Callable[[], int] = time.monotonic_ns,
        restartable: bool = False,
        close: Callable[[], None] = lambda: None,
        set_log_level: Callable[[str], None] = lambda _level: None,
        origin: Origin | None = None,
        fronts: Children | None = None,
        costs: SavedCosts | None = None,
    ) -> None:
        self._config = config
        self._costs = costs
        self._saving = Regularly("dnnserve-costs", _SAVE_S, self._save_costs)
        self._close_engines = close
        self._set_engines_log_level = set_log_level
        self._specs = tuple(specs)
        self._clock = clock
        self._lock = threading.Lock()
        self._health_lock = threading.Lock()
        self._open = False
        self._stop = threading.Event()
        self._leave = threading.Event()  # no lame duck, or no longer
        self._abort = threading.Event()
        doors = open_doors(config)  # front ends open their own; these are the metrics port's
        if shows_tokens(config):
            _log.warning("tokens go in the clear: %s is not loopback, and there is no --tls-cert", config.host)
        keys = [spec.key for spec in specs]
        self._metrics = Metrics(keys)
        self.statistics = Statistics(keys, on_drops=self._metrics.record_drops)
        self.scheduler = Scheduler(
            clock,
            [self.statistics.record, self._metrics.record],
            [self._metrics.observe_batch],
            int(config.deadline_margin_ms * 1e6),
            None if costs is None else costs.recall,
        )
        labels = dict(labelled(device_names))
        self._recipes = {
            spec.key: Recipe(Path(), (), spec.max_batch_rows, "fp32", frozenset(labels)) for spec in specs
        } | dict({} if origin is None else origin.recipes)
        self._runners = [
            Runner(
                label,
                name,
                {spec.key: spec.max_batch_rows for spec in specs if label in self._recipes[spec.key].devices},
                open_host,
                self.scheduler,
                self._on_device_changed,
                Restarts() if restartable else None,
                clock,
                int(config.warm_up_seconds * 1e9),
            )
            for label, name in labels.items()
        ]
        self._watchdog = Watchdog(self._runners, config.batch_timeout_seconds)
        self._metrics.registry.register(StateCollector(self.scheduler, self._runners, lambda: self.ready, self._index))
        page = MetricsPage(self._metrics, self.statistics, self.scheduler)
        context = doors.metrics
        tls = None if context is None else lambda: context.current
        gpus = sum(name != "cpu" for name in device_names)
        engines, own_gpus = (len(device_names), 0) if restartable else (0, gpus)
        self._connections = of_server(config, engines, own_gpus, len(specs))
        log_connections(self._connections, "this process")
        if config.num_front_ends:
            log_connections(of_front_end(config), "each front end's process")
        self._web = WebServer(
            *(config.host, config.metrics_port, page.render, lambda: self.ready, tls),
            *(self._connections.metrics, lambda: self._metrics.record_refused_connections("metrics", 1)),
        )
        try:
            self._front = self._front_end(fronts)
        except StartError:
            self._web.close()
            raise
        self._stage = Stage(
            config,
            _Nowhere() if origin is None else origin.store,
            _nothing if origin is None else origin.read,
            self._runners,
            self.scheduler,
            self.statistics,
            self._metrics,
            self._front,
            costs,
        )
        self._control = ModelControl(config, labels, self._stage, self._see)
        self._registry = Registry(config, self._front)
        web_host = f"[{config.host}]" if ":" in config.host else config.host
        metrics = f"http{'' if tls is None else 's'}://{web_host}:{self._web.port}/metrics"
        http = self._front.http_address
        self.addresses = Addresses(
            self._front.address,
            metrics,
            None if http is None else f"{'http' if config.tls_cert is None else 'https'}://{http}",
        )

    @property
    def device_labels(self) -> tuple[str, ...]:
        """One a runner."""
        return tuple(runner.label for runner in self._runners)

    @property
    def models(self) -> tuple[ModelKey, ...]:
        """What is served."""
        ready = [entry for entry in self._control.index() if entry.state == "READY"]
        return tuple(ModelKey(entry.name, entry.version) for entry in ready)

    @property
    def ready(self) -> bool:
        """Whether requests are taken and a healthy device is there to run them."""
        with self._lock:
            return self._open and bool(self.scheduler.healthy_devices)

    @property
    def hangs(self) -> bool:
        """Whether a device was given up, whose thread may still be in a call."""
        return any(runner.given_up for runner in self._runners)

    def start(self) -> bool:
        """Load the models on all devices, then take requests.

        Returns:
            Whether it serves; False: `request_stop` was called meanwhile, and `wait` closes what is open.

        Raises:
            DnncoreError: a device or a model could not be loaded; everything is closed.
            StartError: another server has begun to listen on the metrics port; everything is closed.
        """
        try:
            self._web.start()
            self.scheduler.start()
            for runner in self._runners:
                runner.start()
            specs = self._loaded_specs()
        except BaseException:
            self._close()
            raise
        if specs is None:
            return False
        self._watchdog.start()
        self._saving.start()
        self._stage.open(specs)
        self._control.start(self._recipes)
        _log.info("calls come over the %s front end", self._front.kind)
        with self._lock:
            self._open = True
        self._announce_health()
        return True

    def ask(self, question: Question, answer: Callable[[Answer], None]) -> None:
        """Have a client's question answered; for front ends."""
        if isinstance(question, Registration | Unregistration):
            self._registry.ask(question, answer)
        else:
            self._control.ask(question, answer)

    def reconfigure(self, config: ServerConfig) -> None:
        """Apply a configuration that was read anew, as far as a running server can; the rest is named in a warning.

        Raises:
            ConfigError: a section is for a model that is not served, and none will come; nothing has changed.
        """
        if self._config.repository_mode == "none":
            config.check_sections(spec.key.name for spec in self._specs)
        changed = {
            each.name for each in fields(ServerConfig) if getattr(config, each.name) != getattr(self._config, each.name)
        }
        keys = keys_by_field()
        if left := sorted(keys[name] for name in changed - RELOADED):
            _log.warning("these settings hold from the next start on: %s", ", ".join(left))
        self._config = config = replace(self._config, **{name: getattr(config, name) for name in RELOADED})
        set_log_level(config.log_level)
        self._front.set_log_level(config.log_level)
        self._set_engines_log_level(config.log_level)
        self.scheduler.set_margin(int(config.deadline_margin_ms * 1e6))
        self._control.reconfigure(config)
        told = sorted(keys[name] for name in changed & RELOADED)
        _log.info("configuration read again; changed: %s", ", ".join(told) or "nothing")

    def request_stop(self, *, lame_duck: bool = True) -> None:
        """Ask the server to end; asked a second time, it stops at once. Returns immediately.

        Args:
            lame_duck: Whether it goes on serving for a while first, where the configuration says so.
        """
        if self._stop.is_set():
            self._abort.set()
        if not lame_duck or self._stop.is_set():
            self._leave.set()
        self._stop.set()

    def wait(self) -> bool:
        """Wait until stopping is asked for, drain, and close everything.

        Returns:
            Whether every request that was let in got its answer and every device was closed.
        """
        self._stop.wait()
        with self._lock:
            served, self._open = self._open, False
        self._front.announce(False, final=True)
        self._control.stop()
        if served:
            self._serve_as_lame_duck()
        _log.info("draining: %d calls inside, up to %g s", self._front.inside, self._config.drain_seconds)
        # What was taken in before this moment is answered. No refusals of our own after it: a client that is told to leave by gRPC
        # sends its next call elsewhere by itself, one that is refused counts a failure.
        # What lasts longer than the drain gets an answer of ours first, and only then gRPC's.
        self._front.close_port(self._config.drain_seconds + _CLOSE_S)
        self.scheduler.drain()
        # No wait for the gRPC server itself: it counts health Watch streams, which end only when their clients do.
        drained = self._wait_empty(self._config.drain_seconds)
        closed = self._close()
        _log.info("stopped") if drained and closed else _log.error("stopped with requests or devices unfinished")
        return drained and closed

    def drain(self) -> bool:
        """Ask for the end without a lame duck, and wait for it; see `wait`."""
        self.request_stop(lame_duck=False)
        return self.wait()

    def _loaded_specs(self) -> list[ModelSpec] | None:
        """The specs with the batch that the smallest device can run; None: told to stop while models were being loaded."""
        rows = {spec.key: spec.max_batch_rows for spec in self._specs}
        for runner in self._runners:
            while (limits := runner.wait_loaded(_POLL_S)) is None:
                if self._stop.is_set():
                    return None
            rows |= {key: min(rows[key], limit) for key, limit in limits.items()}
        return [replace(spec, max_batch_rows=rows[spec.key]) for spec in self._specs]

    def _see(self) -> Sight:
        assert self._config.model_repository is not None
        return see_repository(self._config.model_repository)

    def _index(self) -> Sequence[IndexEntry]:
        return self._control.index()

    def _front_end(self, begun: Children | None) -> FrontEnd:
        if self._config.num_front_ends:
            of_calls, of_connections = self._metrics.record_calls, self._metrics.record_refused_connections
            behind_processes = self.scheduler, self.statistics, of_calls, of_connections, self
            return FrontProcesses(self._config, *behind_processes, begun)
        behind = Behind(
            *(self.scheduler, self.statistics, self._metrics.record_calls, lambda: self.ready, self, self._clock),
            self._metrics.record_refused_connections,
        )
        return LocalFrontEnd(self._config, behind, self._connections)

    def _on_device_changed(self, label: str, reason: str | None) -> None:
        there = ", ".join(sorted(self.scheduler.healthy_devices)) or "none"
        if reason is None:
            _log.info("device %s is back in service; in service: %s", label, there)
            collect_after_a_loss()
        else:
            _log.error("device %s is out of service: %s; left: %s", label, reason, there)
        self._announce_health()

    def _announce_health(self) -> None:
        with self._health_lock:  # judged and said in one step, so that the last to speak knows the latest
            self._front.announce(self.ready)

    def _serve_as_lame_duck(self) -> None:
        """Go on serving while health and readiness say no: clients and load balancers that look leave without losing a call."""
        if self._config.lame_duck_seconds and not self._leave.is_set():
            _log.info("not ready any more; serving for %g s more", self._config.lame_duck_seconds)
            self._leave.wait(self._config.lame_duck_seconds)

    def _wait_empty(self, seconds: float) -> bool:
        deadline_ns = self._clock() + int(seconds * 1e9)
        while not self._front.wait_empty(_POLL_S):
            if self._abort.is_set() or self._clock() >= deadline_ns:
                return False
        return True

    def _save_costs(self) -> None:
        if self._costs is not None:
            self._costs.save(self.scheduler.costs())

    def _close(self) -> bool:
        """Answer what is left, and close devices and ports; False: a device did not end in time."""
        self._watchdog.stop()
        self._saving.stop()
        self.scheduler.stop()
        self._registry.close()
        self._front.wait_empty(_LAST_ANSWERS_S)
        self._front.stop(_LAST_ANSWERS_S)
        deadline_ns = self._clock() + int(_CLOSE_S * 1e9)
        closed = True
        for runner in self._runners:
            if not runner.join(max(0, deadline_ns - self._clock()) / 1e9):
                _log.error("device %s did not finish its batch within %g s", runner.label, _CLOSE_S)
                closed = False
        self._save_costs()
        self._close_engines()
        self._web.close()
        return closed


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Where models come from. Immutable.

    Args:
        recipes: What those that the server begins with were made of.
        store: Where devices find models.
        read: Loads the packages of others.
    """

    recipes: Mapping[ModelKey, Recipe]
    store: ModelStore
    read: PackageReader


class _Nowhere:
    """Keeps no models."""

    def put(self, model: ModelKey, served: object) -> None:
        pass

    def drop(self, model: ModelKey) -> None:
        pass


def _nothing(path: Path) -> Package:
    raise StartError(f"{path} cannot be read: this server reads no models")
