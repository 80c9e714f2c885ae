"""What Prometheus reads: histograms in seconds, counters and gauges of the server, its devices and its process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dnnserve.batch import Batch
from dnnserve.engine.runner import Runner
from dnnserve.envelope import Answer, Completion, ModelKey
from dnnserve.errors import (
    DeadlineExpiredError,
    DeviceLostError,
    DeviceMemoryError,
    InvalidRequestError,
    OverloadedError,
    QueueFullError,
    RequestCancelledError,
    RequestError,
    RestartingError,
    UnavailableError,
    UnreachableError,
)
from dnnserve.lifecycle.versions import IndexEntry
from dnnserve.scheduler import Scheduler
from dnnserve.series import Counter, CounterFamily, Histogram, HistogramFamily
from dnnserve.statistics import Statistics, answered_batches, failures
from dnnserve.triton_metrics import render_triton_metrics

__all__ = ["CONTENT_TYPE", "Metrics", "MetricsPage", "StateCollector"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SLACK_SECONDS = (-1.0, -0.1, -0.01, 0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 10.0)
_RATIOS = (0.25, 0.5, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0)
_MODEL = ("model", "version")
_INFERENCE = frozenset({"ModelInfer", "Classify"})

# The first entry that fits counts: a subclass stands before its base.
_REASONS: tuple[tuple[type[RequestError], str], ...] = (
    (QueueFullError, "queue_full"),
    (RestartingError, "restarting"),
    (OverloadedError, "overloaded"),
    (UnreachableError, "unreachable"),
    (DeadlineExpiredError, "expired"),
    (RequestCancelledError, "cancelled"),
    (UnavailableError, "unavailable"),
    (DeviceLostError, "device_lost"),
    (DeviceMemoryError, "out_of_memory"),
    (InvalidRequestError, "invalid"),
    (RequestError, "failed"),
)


class _ModelSeries:
    """Histograms of one model. Thread-safe."""

    __slots__ = ("compute", "cost_ratio", "queue", "request", "rows", "slack")

    def __init__(self, model: ModelKey, family: Callable[[str, str, Sequence[float]], HistogramFamily]) -> None:
        def histogram(name: str, text: str, bounds: Sequence[float] = _SECONDS) -> Histogram:
            return family(name, text, bounds).labels(*_labels(model))

        self.queue = histogram("dnnserve_queue_seconds", "Time of a request in the queue")
        self.compute = histogram("dnnserve_compute_seconds", "Time of a batch on its device, copies included")
        self.request = histogram(
            "dnnserve_request_seconds", "Time of an answered inference call, from its arrival to its answer"
        )
        self.rows = histogram("dnnserve_batch_rows", "Rows of a batch, without padding", _ROWS)
        self.slack = histogram(
            "dnnserve_deadline_slack_seconds",
            "Time left to the deadline of an answered request; below 0: late",
            _SLACK_SECONDS,
        )
        self.cost_ratio = histogram(
            "dnnserve_batch_cost_ratio", "Time that a batch took by what was predicted", _RATIOS
        )


class Metrics:
    """Metrics that are recorded as things happen. Thread-safe: `_lock` guards which series there are, and these are thread-safe.

    Args:
        models: Their series exist from the start, at zero.
    """

    def __init__(self, models: Iterable[ModelKey]) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._requests = CounterFamily("dnnserve_requests", "RPCs ended, by gRPC status", (*_MODEL, "method", "status"))
        self.registry.register(self._requests)
        self._histograms: dict[str, HistogramFamily] = {}
        self._lock = threading.Lock()
        self._models: dict[tuple[str, int], _ModelSeries] = {}  # by version, whatever its loads
        self._calls: dict[tuple[tuple[str, int] | None, str, str], Counter] = {}
        self._drops = CounterFamily(
            "dnnserve_dropped_requests",
            "Requests that the scheduler did not answer, by reason",
            (*_MODEL, "reason"),
        )
        self.registry.register(self._drops)
        self._dropped: dict[tuple[tuple[str, int], str], Counter] = {}
        self._loads = CounterFamily(
            "dnnserve_model_loads", "Loads of versions that have ended: loaded or failed", (*_MODEL, "result")
        )
        self.registry.register(self._loads)
        self._load_seconds = Gauge(
            "dnnserve_model_load_seconds", "Time that the version's last load took", _MODEL, registry=self.registry
        )
        self._refused = CounterFamily(
            "dnnserve_refused_connections", "Connections that were closed again, beyond the bound of a port", ("port",)
        )
        self.registry.register(self._refused)
        for port in ("http", "metrics"):  # gRPC tells nobody of those that it closes
            self._refused.labels(port)
        for model in models:
            self.add(model)

    def add(self, model: ModelKey) -> None:
        """Begin a version's series, at zero; one that is loaded anew goes on with them."""
        with self._lock:
            for _, reason in _REASONS:
                self._dropped[model[:2], reason] = self._drops.labels(*_labels(model), reason)
            self._models[model[:2]] = _ModelSeries(model, self._histogram_family)

    def record_refused_connections(self, port: str, count: int) -> None:
        """Count connections that were closed again."""
        self._refused.labels(port).count(count)

    def remove(self, model: ModelKey) -> None:
        """End a version's series: no load of it is left. What ends later is not counted."""
        version, labels = model[:2], _labels(model)
        with self._lock:
            del self._models[version]
            for _, reason in _REASONS:
                del self._dropped[version, reason]
            for call in [call for call in self._calls if call[0] == version]:
                del self._calls[call]
            for counters in (self._requests, self._drops):
                counters.forget(*labels)
            for histograms in self._histograms.values():
                histograms.forget(*labels)

    def forget_loads(self, model: ModelKey) -> None:
        """Forget how loads of a version have ended, of which nothing is there or wanted any more."""
        self._loads.forget(*_labels(model))
        with suppress(KeyError):  # all have failed
            self._load_seconds.remove(*_labels(model))

    def record_load(self, model: ModelKey, seconds: float, *, failed: bool) -> None:
        """Count a load that has ended."""
        self._loads.labels(*_labels(model), "failed" if failed else "loaded").count()
        if not failed:
            self._load_seconds.labels(*_labels(model)).set(seconds)

    def record(self, completions: Sequence[Completion]) -> None:
        """Observe completions. Those of one batch come in one call, so each batch is observed once."""
        for answered in answered_batches(completions):
            series, answer = self._models.get(answered[0].request.model[:2]), answered[0].outcome
            assert isinstance(answer, Answer)
            if series is None:
                continue  # its model was unloaded before its last request was told so
            taken_ns = answer.times.taken_ns
            series.queue.observe_all([(taken_ns - each.request.arrival_ns) / 1e9 for each in answered])
            series.slack.observe_all(
                [
                    (each.request.deadline_ns - each.finished_ns) / 1e9
                    for each in answered
                    if each.request.deadline_ns is not None
                ]
            )
            series.compute.observe((answer.times.finished_ns - taken_ns) / 1e9)
            series.rows.observe(answer.batch_rows)
        for request, error, _ in failures(completions):
            dropped = self._dropped.get((request.model[:2], _reason(error)))  # None: its model has gone
            if dropped is not None:
                dropped.count()

    def record_drops(self, model: ModelKey, error: RequestError, count: int) -> None:
        """Count requests that were refused unread, by what was known from the scheduler."""
        dropped = self._dropped.get((model[:2], _reason(error)))
        if dropped is not None:
            dropped.count(count)

    def observe_batch(self, batch: Batch, took_ns: int) -> None:
        """Compare what a batch took with what was predicted."""
        series = self._models.get(batch.model[:2])
        if series is not None and batch.decision.expected_ns:
            series.cost_ratio.observe(took_ns / batch.decision.expected_ns)

    def record_calls(self, key: ModelKey | None, method: str, status: str, taken_ns: Sequence[int]) -> None:
        """Count calls that ended alike and, where they are inferences that were answered, the time that each took.

        What names no loaded model has empty labels: clients must not be able to make up series.
        """
        version = None if key is None else key[:2]
        series = None if version is None else self._models.get(version)  # once: another thread may take it away
        counter = self._calls.get((version, method, status)) or self._counter(version, method, status)
        if counter is None:
            return  # its model has gone meanwhile
        counter.count(len(taken_ns))
        if series is not None and status == "OK" and method in _INFERENCE:
            series.request.observe_all([each / 1e9 for each in taken_ns])

    def _counter(self, version: tuple[str, int] | None, method: str, status: str) -> Counter | None:
        """Of calls; None: their model has gone. Looking a series up by its labels takes longer than counting, so it is kept."""
        with self._lock:
            if version is not None and version not in self._models:
                return None
            labels = ("", "") if version is None else _labels(ModelKey(*version))
            counter = self._calls[version, method, status] = self._requests.labels(*labels, method, status)
            return counter

    def _histogram_family(self, name: str, text: str, bounds: Sequence[float]) -> HistogramFamily:
        family = self._histograms.get(name)
        if family is None:
            family = self._histograms[name] = HistogramFamily(name, text, _MODEL, bounds)
            self.registry.register(family)
        return family


class StateCollector:
    """Metrics that are read off the server when Prometheus asks. Thread-safe."""

    def __init__(
        self,
        scheduler: Scheduler,
        runners: Sequence[Runner],
        ready: Callable[[], bool],
        index: Callable[[], Sequence[IndexEntry]],
    ) -> None:
        self._scheduler = scheduler
        self._runners = runners
        self._ready = ready
        self._index = index

    def collect(self) -> Iterable[Metric]:
        """Readiness, queue depth and requests in flight, busy time and health of each device."""
        yield GaugeMetricFamily("dnnserve_ready", "1: requests are taken, as /readyz says", value=self._ready())
        depth = GaugeMetricFamily("dnnserve_queue_depth", "Requests in the queue", labels=_MODEL)
        for version, requests in _summed(self._scheduler.queue_depths()).items():
            depth.add_metric(_labels(version), requests)
        yield depth
        limit = GaugeMetricFamily(
            "dnnserve_queue_limit", "Requests that may be in the queue (--max-queue)", labels=_MODEL
        )
        bounds = sorted(self._scheduler.queue_bounds().items())
        for version, requests in {_version(model): bound for model, bound in bounds}.items():  # of its latest load
            limit.add_metric(_labels(version), requests)
        yield limit
        states = GaugeMetricFamily(
            "dnnserve_model_state",
            "1: the version is in this state, as RepositoryIndex says",
            labels=(*_MODEL, "state"),
        )
        for entry in self._index():
            states.add_metric((entry.name, str(entry.version), entry.state), 1)
        yield states
        yield GaugeMetricFamily(
            "dnnserve_in_flight_requests", "Requests queued or running", value=self._scheduler.in_flight
        )
        busy = CounterMetricFamily(
            "dnnserve_device_busy_seconds", "Time that the device spent on batches", labels=("device",)
        )
        inputs = CounterMetricFamily(
            "dnnserve_device_input_bytes",
            "Bytes of rows that the device read: in the arena of a front end, or in a slot that they had been copied into",
            labels=("device", "place"),
        )
        healthy = GaugeMetricFamily("dnnserve_device_healthy", "1: the device takes batches", labels=("device",))
        restarts = CounterMetricFamily(
            "dnnserve_device_restarts", "How often the device was lost and opened again", labels=("device",)
        )
        devices = self._scheduler.healthy_devices
        for runner in self._runners:
            busy.add_metric((runner.label,), runner.busy_seconds)
            for place, nbytes in runner.input_bytes.items():
                inputs.add_metric((runner.label, place), nbytes)
            healthy.add_metric((runner.label,), runner.label in devices)
            restarts.add_metric((runner.label,), runner.restarts)
        yield busy
        yield inputs
        yield restarts
        yield healthy
        repeats = CounterMetricFamily(
            "dnnserve_repeated_requests",
            "Requests queued again because a device was lost under them, or had no memory",
            labels=_MODEL,
        )
        for version, count in _summed(self._scheduler.repeats()).items():
            repeats.add_metric(_labels(version), count)
        yield repeats
        predicted = GaugeMetricFamily(
            "dnnserve_predicted_batch_seconds",
            "Time that a batch is expected to take",
            labels=(*_MODEL, "device", "rows"),
        )
        latest = {ModelKey(*model[:2]): curves for model, curves in sorted(self._scheduler.costs().items())}
        for version, curves in latest.items():
            for device, curve in curves.items():
                for size in curve.sizes:
                    predicted.add_metric((*_labels(version), device, str(size)), curve.mean_ns(size) / 1e9)
        yield predicted


class MetricsPage:
    """The text that /metrics answers with. Thread-safe."""

    def __init__(self, metrics: Metrics, statistics: Statistics, scheduler: Scheduler) -> None:
        self._metrics = metrics
        self._statistics = statistics
        self._scheduler = scheduler

    def render(self) -> bytes:
        """Every metric in Prometheus' text format 0.0.4."""
        depths = _summed(self._scheduler.queue_depths())
        triton = render_triton_metrics(self._statistics.snapshots(), depths)
        return generate_latest(self._metrics.registry) + triton.encode()


def _labels(model: ModelKey) -> tuple[str, str]:
    return model.name, str(model.version)


def _version(model: ModelKey) -> ModelKey:
    return ModelKey(model.name, model.version)


def _summed(counts: Mapping[ModelKey, int]) -> Mapping[ModelKey, int]:
    """By version, whatever its loads."""
    sums: dict[ModelKey, int] = {}
    for model, count in counts.items():
        version = _version(model)
        sums[version] = sums.get(version, 0) + count
    return sums


def _reason(error: RequestError) -> str:
    return next(reason for kind, reason in _REASONS if isinstance(error, kind))
