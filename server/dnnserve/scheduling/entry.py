"""What the policy knows of a request, and the bounds of a model's queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["DEFAULT_PRIORITY", "LAST_PRIORITY", "PATIENCE_NS", "Entry", "Limits", "level_of"]

PATIENCE_NS = 1_000_000_000
"""What a request waits for that has no deadline, or one farther away: it takes its place as if this were its deadline. A request
one level less important stands this much farther back: so both age, and whatever has waited for long enough stands in front."""

DEFAULT_PRIORITY = 2
"""The level of requests that name none (0)."""

LAST_PRIORITY = 8
"""The least important level: those behind count as this one, so that the wait of any is bounded."""

_FIRST = -(1 << 62)


def level_of(priority: int) -> int:
    """The level that a priority stands for: 1 to `LAST_PRIORITY`."""
    return min(priority, LAST_PRIORITY) if priority else DEFAULT_PRIORITY


class Entry(NamedTuple):
    """What the policy needs to know of a request. Immutable; a tuple, because one is made for each request, in the order of turns.

    Args:
        turn_ns: Its place in the queue: what has less goes first, and of equals the one submitted first.
        ticket: Unique among all requests ever submitted.
        rows: Its share of a batch.
        arrival_ns: When it was submitted.
        deadline_ns: It must be answered before this moment; None: whenever.
        hurried: Whether its deadline comes before patience ends.
        repeated: A device was lost while it ran: it goes before all others.
    """

    turn_ns: int
    ticket: int
    rows: int
    arrival_ns: int
    deadline_ns: int | None
    hurried: bool
    repeated: bool = False

    @classmethod
    def of(cls, ticket: int, rows: int, arrival_ns: int, deadline_ns: int | None = None, priority: int = 0) -> Entry:
        """A request that comes now; priority 1 is the most important level, and 0 stands for `DEFAULT_PRIORITY`."""
        turn_ns = arrival_ns + PATIENCE_NS
        hurried = deadline_ns is not None and deadline_ns < turn_ns
        if deadline_ns is not None and hurried:
            turn_ns = deadline_ns
        if priority:
            turn_ns += (level_of(priority) - DEFAULT_PRIORITY) * PATIENCE_NS
        return cls(turn_ns, ticket, rows, arrival_ns, deadline_ns, hurried)

    def again(self) -> Entry:
        """The same request, once more."""
        return self._replace(turn_ns=_FIRST, repeated=True)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one model's queue and batches. Immutable.

    Args:
        max_batch_rows: Rows of a batch; also of a request.
        max_queue_requests: Requests that may wait.
        max_queue_delay_ns: How long the oldest request waits for company while a device is idle; 0: not at all.
        hold_until_requests: Nothing is taken before this many requests wait at once, the first time only: makes the first batches
            of a test deterministic.
    """

    max_batch_rows: int
    max_queue_requests: int
    max_queue_delay_ns: int = 0
    hold_until_requests: int = 0

    def __post_init__(self) -> None:
        if self.max_batch_rows < 1 or self.max_queue_requests < 1:
            raise ValueError(
                f"max_batch_rows {self.max_batch_rows} and max_queue_requests {self.max_queue_requests} must be 1 or more"
            )
        if self.max_queue_delay_ns < 0 or not 0 <= self.hold_until_requests <= self.max_queue_requests:
            raise ValueError(
                f"max_queue_delay_ns {self.max_queue_delay_ns} must not be negative, hold_until_requests "
                f"{self.hold_until_requests} must lie in 0..{self.max_queue_requests}"
            )
