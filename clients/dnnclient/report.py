"""What a load run found: samples in, counts and percentiles out, in bounded memory. Times are seconds of one monotonic clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dnnclient.histogram import DurationSummary, Histogram

__all__ = ["OK", "DeadlineReport", "LoadReport", "Progress", "Sample", "Tally"]

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
        deadline_s: From its arrival; None: it had none.
        predicted: The best label's index for each image; empty unless asked for and answered.
    """

    index: int
    arrival_s: float
    sent_s: float
    finished_s: float
    status: str
    num_images: int = 1
    deadline_s: float | None = None
    predicted: tuple[int, ...] = ()

    @property
    def latency_s(self) -> float:
        """From the moment it was due: a request that had to wait for its turn to be sent has waited all the same."""
        return self.finished_s - self.arrival_s

    @property
    def is_good(self) -> bool:
        """Whether it was answered, and within its deadline."""
        return self.status == OK and (self.deadline_s is None or self.latency_s <= self.deadline_s)


@dataclass(frozen=True, slots=True)
class DeadlineReport:
    """What became of the requests with one deadline. Immutable.

    Args:
        deadline_s: Theirs.
        num_requests: How many they were.
        num_good: Answered within it.
        latency: Of those that were answered; None when none was.
    """

    deadline_s: float
    num_requests: int
    num_good: int
    latency: DurationSummary | None

    def __str__(self) -> str:
        good = f"{self.num_good} of {self.num_requests} good, {self.num_good / self.num_requests:.1%}"
        return f"{self.deadline_s * 1e3:g} ms: {good}; {self.latency or 'no answer'}"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Outcome of one load run. Immutable.

    Args:
        load: How the requests arrived, in words.
        seconds: From the first arrival to the last answer.
        statuses: Requests by status name, most frequent first.
        num_images: Images in answered requests.
        num_good: Requests answered within their deadline, as counted from their arrival; without deadlines, requests answered.
        num_late: Requests answered, but later.
        latency: Of answered requests, from their arrival; None when none was answered.
        histogram: The same in full: (upper bound in s, requests) of each bucket that is not empty.
        send_lag: How late the generator sent, in an open loop; a lag near the latency means that this measured the
            generator, not the server. None in a closed loop.
        deadlines: One entry for each deadline, where there were several.
        picture: The histogram as lines of text.
        results: The best label's index for each image in the order sent, None for the images of a failed request; empty
            unless asked for.
    """

    load: str
    seconds: float
    statuses: Mapping[str, int]
    num_images: int
    num_good: int
    num_late: int
    latency: DurationSummary | None
    histogram: tuple[tuple[float, int], ...]
    send_lag: DurationSummary | None
    deadlines: tuple[DeadlineReport, ...] = ()
    picture: str = ""
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
        """Answered requests a second, in time or late."""
        return self._rate(self.num_answered)

    @property
    def goodput_per_s(self) -> float:
        """Requests answered within their deadline, a second: what was worth the work."""
        return self._rate(self.num_good)

    @property
    def images_per_s(self) -> float:
        """Images in answered requests, a second."""
        return self._rate(self.num_images)

    def _rate(self, count: int) -> float:
        return count / self.seconds if self.seconds > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; durations in seconds, without results and picture."""
        values = asdict(self)
        del values["results"], values["picture"]
        rates = {
            "requests_per_s": self.requests_per_s,
            "goodput_per_s": self.goodput_per_s,
            "images_per_s": self.images_per_s,
        }
        return {**values, "statuses": dict(self.statuses), "num_requests": self.num_requests, **rates}

    def __str__(self) -> str:
        since = "sending" if self.send_lag is None else "the scheduled arrival"
        lines = [
            f"{self.load}: {self.num_requests} requests in {self.seconds:.2f} s",
            f"rate      {self.requests_per_s:.1f} requests/s, {self.images_per_s:.1f} images/s",
            f"goodput   {self.goodput_per_s:.1f} requests/s answered in time, {self.num_late} late",
            f"latency   {self.latency or 'nothing was answered'}  (OK answers, from {since})",
            "status    " + "  ".join(f"{name} {count}" for name, count in self.statuses.items()),
        ]
        if self.send_lag is not None:
            lines.append(f"send lag  {self.send_lag}  (how late this generator sent)")
        lines += [f"deadline  {deadline}" for deadline in self.deadlines]
        if self.picture:
            lines += ["histogram of latency", self.picture]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Progress:
    """What became of the requests that ended in the last moments of a run. Immutable.

    Args:
        elapsed_s: Since the start, warm-up included.
        warming_up: Whether requests are not counted yet.
        in_flight: Requests that are not answered yet.
        requests_per_s: Answered lately.
        goodput_per_s: Answered lately, and in time.
        failures_per_s: Ended lately with another status.
        p99_s: Of the latency of those answered; None when none was.
    """

    elapsed_s: float
    warming_up: bool
    in_flight: int
    requests_per_s: float
    goodput_per_s: float
    failures_per_s: float
    p99_s: float | None

    def __str__(self) -> str:
        p99 = "" if self.p99_s is None else f", p99 {self.p99_s * 1e3:.3g} ms"
        return (
            f"{self.elapsed_s:6.1f} s{' (warm-up)' if self.warming_up else ''}: {self.requests_per_s:.0f} answers/s, "
            f"{self.goodput_per_s:.0f} in time, {self.failures_per_s:.0f} failures/s, {self.in_flight} under way{p99}"
        )


@dataclass(slots=True)
class _DeadlineTally:
    """The requests with one deadline. Owned by one thread; not checked: the tally's."""

    num_requests: int = 0
    num_good: int = 0
    latency: Histogram = field(default_factory=Histogram)


class Tally:
    """Adds up samples; its size does not depend on their number. Owned by one thread; not checked: whoever adds to it.

    Args:
        keep_results: Whether predictions are kept, which do take memory for each request.
    """

    def __init__(self, *, keep_results: bool = False) -> None:
        self.latency = Histogram()
        self.num_good = 0
        self.statuses: Counter[str] = Counter()
        self._keep_results = keep_results
        self._send_lag = Histogram()
        self._num_images = 0
        self._by_deadline: dict[float, _DeadlineTally] = {}
        self._first_s = math.inf
        self._last_s = -math.inf
        self._results: dict[int, tuple[int | None, ...]] = {}

    def add(self, sample: Sample) -> None:
        """Count a request that has ended."""
        answered, good = sample.status == OK, sample.is_good
        self.statuses[sample.status] += 1
        self.num_good += good
        self._first_s = min(self._first_s, sample.arrival_s)
        self._last_s = max(self._last_s, sample.finished_s)
        self._send_lag.add(sample.sent_s - sample.arrival_s)
        if answered:
            self.latency.add(sample.latency_s)
            self._num_images += sample.num_images
        if sample.deadline_s is not None:
            if sample.deadline_s not in self._by_deadline:
                self._by_deadline[sample.deadline_s] = _DeadlineTally()
            of_deadline = self._by_deadline[sample.deadline_s]
            of_deadline.num_requests += 1
            of_deadline.num_good += good
            if answered:
                of_deadline.latency.add(sample.latency_s)
        if self._keep_results:
            self._results[sample.index] = sample.predicted if answered else (None,) * sample.num_images

    def report(self, load: str, *, open_loop: bool) -> LoadReport:
        """The report of all that was added.

        Args:
            load: How the requests arrived, in words.
            open_loop: Whether arrivals were scheduled, so that a send lag has a meaning.
        """
        deadlines = tuple(
            DeadlineReport(deadline_s, found.num_requests, found.num_good, found.latency.summary())
            for deadline_s, found in sorted(self._by_deadline.items())
        )
        return LoadReport(
            load=load,
            seconds=max(0.0, self._last_s - self._first_s),
            statuses=dict(self.statuses.most_common()),
            num_images=self._num_images,
            num_good=self.num_good,
            num_late=self.statuses[OK] - self.num_good,
            latency=self.latency.summary(),
            histogram=self.latency.buckets(),
            send_lag=self._send_lag.summary() if open_loop else None,
            deadlines=deadlines if len(deadlines) > 1 else (),
            picture=str(self.latency),
            results=tuple(best for index in sorted(self._results) for best in self._results[index]),
        )

    def progress(self, elapsed_s: float, over_s: float, in_flight: int, *, warming_up: bool) -> Progress:
        """How a run goes, of a tally that was begun over_s seconds ago."""
        answered = self.statuses[OK]
        return Progress(
            elapsed_s,
            warming_up,
            in_flight,
            answered / over_s,
            self.num_good / over_s,
            (self.statuses.total() - answered) / over_s,
            self.latency.percentile(99) if answered else None,
        )
