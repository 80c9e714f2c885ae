"""What each model has done since the server started, counted as Triton counts: for ModelStatistics and the nv_* metrics.

Durations of a batch are added once per request: divided by the request count they give what a request saw. Rows are counted in
`inference_count`, batches in `execution_count`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dnnserve.envelope import Answer, BatchTimes, Completion, InferenceRequest, ModelKey
from dnnserve.errors import (
    DeadlineExpiredError,
    ExecutionError,
    OverloadedError,
    RequestCancelledError,
    RequestError,
    UnavailableError,
)

__all__ = [
    "BatchStatistics",
    "Duration",
    "ModelSnapshot",
    "Statistics",
    "answered_batches",
    "failure_reason",
    "failures",
]


@dataclass(frozen=True, slots=True)
class Duration:
    """A count and the nanoseconds it took altogether. Immutable."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Times of batches on their device: copying in, running, copying out. Immutable."""

    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """A model's counters at one moment. Immutable.

    Args:
        success: Requests answered, with their time from arrival to completion.
        failures: Requests that failed, by Triton's reason: REJECTED, CANCELED, BACKEND, OTHER.
        queue, compute: Of the requests that were answered, each with its whole batch's time.
        inference_count: Rows answered.
        execution_count: Batches run.
        last_inference_ms: Wall-clock milliseconds since 1970 of the last answer; 0: none yet.
        batches: By the batch's rows.
    """

    success: Duration = Duration()
    failures: Mapping[str, Duration] = field(default_factory=dict)
    queue: Duration = Duration()
    compute: BatchStatistics = BatchStatistics()
    inference_count: int = 0
    execution_count: int = 0
    last_inference_ms: int = 0
    batches: Mapping[int, BatchStatistics] = field(default_factory=dict)

    @property
    def fail(self) -> Duration:
        """All failures together."""
        return Duration(sum(d.count for d in self.failures.values()), sum(d.ns for d in self.failures.values()))


def failure_reason(error: Exception) -> str:
    """Triton's word for why a request failed."""
    match error:
        case OverloadedError() | DeadlineExpiredError() | UnavailableError():
            return "REJECTED"
        case RequestCancelledError():
            return "CANCELED"
        case ExecutionError():
            return "BACKEND"
        case _:
            return "OTHER"


def answered_batches(completions: Sequence[Completion]) -> Collection[Sequence[Completion]]:
    """Completions of those that were answered, by the batch that they ran in."""
    batches: dict[int, list[Completion]] = {}
    for completion in completions:
        outcome = completion.outcome
        if isinstance(outcome, Answer):
            batches.setdefault(id(outcome.times), []).append(completion)  # a batch's answers have one in common
    return batches.values()


def failures(completions: Sequence[Completion]) -> Iterator[tuple[InferenceRequest, RequestError, int]]:
    """Request, error and moment of those that were not answered."""
    for completion in completions:
        if not isinstance(completion.outcome, Answer):
            yield completion.request, completion.outcome, completion.finished_ns


class _Tally:
    """A Duration that grows."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Count so many, which took so long altogether."""
        self.count += count
        self.ns += ns

    def frozen(self) -> Duration:
        return Duration(self.count, self.ns)


class _BatchTally:
    """A BatchStatistics that grows."""

    __slots__ = ("count", "infer_ns", "input_ns", "output_ns")

    def __init__(self) -> None:
        self.count = self.input_ns = self.infer_ns = self.output_ns = 0

    def add(self, times: BatchTimes, count: int = 1) -> None:
        """Count a batch so many times."""
        self.count += count
        self.input_ns += (times.staged_ns - times.taken_ns) * count
        self.infer_ns += (times.inferred_ns - times.staged_ns) * count
        self.output_ns += (times.finished_ns - times.inferred_ns) * count

    def frozen(self) -> BatchStatistics:
        stages_ns = (self.input_ns, self.infer_ns, self.output_ns)
        return BatchStatistics(*(Duration(self.count, ns) for ns in stages_ns))


class _ModelTally:
    """A ModelSnapshot that grows."""

    def __init__(self) -> None:
        self.success, self.queue, self.compute = _Tally(), _Tally(), _BatchTally()
        self.failures: dict[str, _Tally] = {}
        self.batches: dict[int, _BatchTally] = {}
        self.inference_count = self.execution_count = self.last_inference_ms = 0

    def fail(self, error: Exception, total_ns: int, count: int = 1) -> None:
        self.failures.setdefault(failure_reason(error), _Tally()).add(total_ns, count)

    def succeed(self, answer: Answer, completions: Sequence[Completion]) -> None:
        """Count the requests of one batch, and the batch."""
        count, times = len(completions), answer.times
        arrivals_ns = sum(completion.request.arrival_ns for completion in completions)
        self.success.add(sum(completion.finished_ns for completion in completions) - arrivals_ns, count)
        self.queue.add(times.taken_ns * count - arrivals_ns, count)
        self.compute.add(times, count)
        self.inference_count += sum(len(completion.request.block) for completion in completions)
        self.execution_count += 1
        self.batches.setdefault(answer.batch_rows, _BatchTally()).add(times)

    def frozen(self) -> ModelSnapshot:
        return ModelSnapshot(
            success=self.success.frozen(),
            failures={reason: tally.frozen() for reason, tally in self.failures.items()},
            queue=self.queue.frozen(),
            compute=self.compute.frozen(),
            inference_count=self.inference_count,
            execution_count=self.execution_count,
            last_inference_ms=self.last_inference_ms,
            batches={rows: tally.frozen() for rows, tally in sorted(self.batches.items())},
        )


class Statistics:
    """Counters of all loaded versions. Thread-safe: `_lock` guards `_models`.

    Args:
        models: Those that are counted.
        wall_clock_ns: Nanoseconds since 1970, for `last_inference_ms` alone.
        on_drops: Told of requests that were refused unread, of which the scheduler never hears.
    """

    def __init__(
        self,
        models: Iterable[ModelKey],
        wall_clock_ns: Callable[[], int] = time.time_ns,
        on_drops: Callable[[ModelKey, RequestError, int], None] = lambda _model, _error, _count: None,
    ) -> None:
        self._on_drops = on_drops
        self._wall_clock_ns = wall_clock_ns
        self._lock = threading.Lock()
        self._models: dict[tuple[str, int], _ModelTally] = {}
        for model in models:
            self.add(model)

    def add(self, model: ModelKey) -> None:
        """Count a model from now on; one that is loaded anew goes on counting."""
        with self._lock:
            self._models.setdefault(model[:2], _ModelTally())

    def remove(self, model: ModelKey) -> None:
        """Forget a version: no load of it is left. What ends later is not counted."""
        with self._lock:
            self._models.pop(model[:2], None)

    def record(self, completions: Sequence[Completion]) -> None:
        """Count completions. Those of one batch come in one call, so each batch is counted once."""
        batches = answered_batches(completions)
        with self._lock:
            for answered in batches:
                tally, answer = self._models.get(answered[0].request.model[:2]), answered[0].outcome
                assert isinstance(answer, Answer)
                if tally is not None:
                    tally.succeed(answer, answered)
                    tally.last_inference_ms = self._wall_clock_ns() // 1_000_000
            for request, error, finished_ns in failures(completions):
                tally = self._models.get(request.model[:2])
                if tally is not None:
                    tally.fail(error, finished_ns - request.arrival_ns)

    def record_refusal(self, model: ModelKey, error: Exception, total_ns: int) -> None:
        """Count a request that failed before it was submitted."""
        with self._lock:
            if model[:2] in self._models:
                self._models[model[:2]].fail(error, total_ns)

    def record_turned_away(self, model: ModelKey, error: RequestError, count: int) -> None:
        """Count requests that were refused unread."""
        with self._lock:
            if model[:2] in self._models:
                self._models[model[:2]].fail(error, 0, count)
        self._on_drops(model, error, count)

    def snapshot(self, model: ModelKey) -> ModelSnapshot:
        """The counters of one version now; zeros where it has gone meanwhile."""
        with self._lock:
            tally = self._models.get(model[:2])
            return ModelSnapshot() if tally is None else tally.frozen()

    def snapshots(self) -> Mapping[ModelKey, ModelSnapshot]:
        """The counters of all versions now."""
        with self._lock:
            return {ModelKey(*model): tally.frozen() for model, tally in self._models.items()}
