"""What a load run found: samples in, percentiles and counts out. Pure arithmetic; times are seconds of one monotonic clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dnncore.errors import BadParamError

__all__ = ["OK", "LatencySummary", "LoadReport", "Sample", "percentile", "summarize"]

OK = "OK"
"""Status of a request that was answered."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as its sender saw it. Immutable.

    Args:
        index: Position in the order of arrival.
        arrival_s: When it was due. In a closed loop that is when it was sent.
        sent_s: When it was sent; later than arrival_s when the generator itself was late.
        finished_s: When its answer was there.
        status: Name of the gRPC status, "OK" for an answer.
        num_images: Images in it.
        predicted: The best label's index for each image; empty unless asked for and answered.
    """

    index: int
    arrival_s: float
    sent_s: float
    finished_s: float
    status: str
    num_images: int = 1
    predicted: tuple[int, ...] = ()

    @property
    def latency_s(self) -> float:
        """From the moment it was due: a request that had to wait for its turn to be sent has waited all the same."""
        return self.finished_s - self.arrival_s


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile: the smallest value that at least percent % of all values do not exceed.

    Args:
        ordered: Values in ascending order, at least one.
        percent: In (0, 100].

    Raises:
        BadParamError: no values, or percent out of range.
    """
    if not ordered or not 0 < percent <= 100:
        raise BadParamError(f"the {percent} % percentile of {len(ordered)} values is undefined")
    # Without rounding, 99.9 / 100 * 1000 is 999.0000000000001 and would name the 1000th value instead of the 999th.
    return ordered[math.ceil(round(percent / 100 * len(ordered), 6)) - 1]


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """How a set of latencies is distributed, in seconds. Immutable."""

    mean: float
    p50: float
    p90: float
    p99: float
    p99_9: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> LatencySummary:
        """Summarise at least one value, in any order."""
        ordered = sorted(values)
        at = {name: percentile(ordered, percent) for name, percent in _PERCENTS.items()}
        return cls(mean=math.fsum(ordered) / len(ordered), **at)

    def __str__(self) -> str:
        named = {name.replace("_", "."): value for name, value in asdict(self).items() if name != "mean"}
        return "  ".join(f"{name} {value * 1e3:.3g} ms" for name, value in named.items())


_PERCENTS = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9, "max": 100.0}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Outcome of one load run. Immutable.

    Args:
        load: How the requests arrived, in words.
        seconds: From the first arrival to the last answer.
        statuses: Requests by status name, most frequent first.
        num_images: Images in answered requests.
        latency: Of answered requests, from their arrival; None when none was answered.
        send_lag: How late the generator sent, in an open loop; a lag near the latency means that this measured the
            generator, not the server. None in a closed loop.
        num_late: Requests answered, but after their deadline as counted from their arrival.
        results: The best label's index for each image in the order sent, None for the images of a failed request; empty
            unless asked for.
    """

    load: str
    seconds: float
    statuses: Mapping[str, int]
    num_images: int
    latency: LatencySummary | None
    send_lag: LatencySummary | None
    num_late: int
    results: tuple[int | None, ...] = ()

    @property
    def num_requests(self) -> int:
        """Requests sent."""
        return sum(self.statuses.values())

    @property
    def num_answered(self) -> int:
        """Requests that ended with OK."""
        return self.statuses.get(OK, 0)

    @property
    def num_failed(self) -> int:
        """Requests that ended with another status."""
        return self.num_requests - self.num_answered

    @property
    def requests_per_s(self) -> float:
        """Answered requests a second."""
        return self.num_answered / self.seconds if self.seconds > 0 else 0.0

    @property
    def images_per_s(self) -> float:
        """Images in answered requests, a second."""
        return self.num_images / self.seconds if self.seconds > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; durations in seconds, without results."""
        values = asdict(self)
        del values["results"]
        rates = {"requests_per_s": self.requests_per_s, "images_per_s": self.images_per_s}
        return {**values, "statuses": dict(self.statuses), "num_requests": self.num_requests, **rates}

    def __str__(self) -> str:
        since = "sending" if self.send_lag is None else "the scheduled arrival"
        lines = [
            f"{self.load}: {self.num_requests} requests in {self.seconds:.2f} s",
            f"rate      {self.requests_per_s:.1f} requests/s, {self.images_per_s:.1f} images/s",
            f"latency   {self.latency or 'nothing was answered'}  (OK answers, from {since})",
            "status    " + "  ".join(f"{name} {count}" for name, count in self.statuses.items()),
        ]
        if self.send_lag is not None:
            lines.append(f"send lag  {self.send_lag}  (how late this generator sent)")
        if self.num_late:
            lines.append(f"late      {self.num_late} answers came after their deadline as counted from their arrival")
        return "\n".join(lines)


def summarize(
    samples: Sequence[Sample],
    *,
    load: str,
    open_loop: bool,
    deadline_s: float | None = None,
    keep_results: bool = False,
) -> LoadReport:
    """Return the report of a run.

    Args:
        samples: One a request, in any order.
        load: How they arrived, in words.
        open_loop: Whether arrivals were scheduled, so that a send lag has a meaning.
        deadline_s: Of each request, from its arrival.
        keep_results: Whether the report shall hold the predictions.
    """
    ordered = sorted(samples, key=lambda sample: sample.index)
    answered = [sample for sample in ordered if sample.status == OK]
    latencies = [sample.latency_s for sample in answered]
    lags = [sample.sent_s - sample.arrival_s for sample in ordered] if open_loop else []
    results: list[int | None] = []
    for sample in ordered if keep_results else ():
        results += sample.predicted if sample.status == OK else [None] * sample.num_images
    return LoadReport(
        load=load,
        seconds=max(s.finished_s for s in ordered) - min(s.arrival_s for s in ordered) if ordered else 0.0,
        statuses=dict(Counter(sample.status for sample in ordered).most_common()),
        num_images=sum(sample.num_images for sample in answered),
        latency=LatencySummary.of(latencies) if latencies else None,
        send_lag=LatencySummary.of(lags) if lags else None,
        num_late=sum(latency > deadline_s for latency in latencies) if deadline_s is not None else 0,
        results=tuple(results),
    )
