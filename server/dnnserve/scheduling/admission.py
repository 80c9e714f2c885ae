"""The choice at arrival: whether a request can be answered in time, given what goes before it.

The estimate takes a few steps whatever the queue's length, because it is made for each request: the batches that go before, at the
rate of all devices; the share of other models that wait; and the request's own batch on the device that ends it first. What comes
later and is more urgent is not in it, so what was admitted may still be dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from dnnserve.envelope import ModelKey
from dnnserve.scheduling.costs import Costs, Curve
from dnnserve.scheduling.entry import Entry
from dnnserve.scheduling.queue import ModelQueue

__all__ = ["Refusal", "Rejection", "admit"]

_NEVER_NS = 1 << 62


class Rejection(Enum):
    """Why a request was not admitted. Immutable."""

    TOO_MANY_ROWS = auto()
    DEADLINE_PASSED = auto()
    UNREACHABLE = auto()
    OVERLOADED = auto()
    QUEUE_FULL = auto()
    RESTARTING = auto()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was not admitted. Immutable.

    Args:
        reason: Why not.
        needed_ns: UNREACHABLE, OVERLOADED and RESTARTING: from now until it would be answered.
        retry_after_ns: OVERLOADED, QUEUE_FULL and RESTARTING: after about so long there is room for it, if nobody else comes.
        judged: UNREACHABLE and OVERLOADED: the device and the rows of the batch by whose cost it was judged.
    """

    reason: Rejection
    needed_ns: int = 0
    retry_after_ns: int = 0
    judged: tuple[str, int] | None = None


def admit(
    now_ns: int,
    model: ModelKey,
    entry: Entry,
    queues: Mapping[ModelKey, ModelQueue],
    costs: Costs,
    free_ns: Mapping[str, int],
    *,
    idle: bool,
) -> Refusal | None:
    """Say why a request is not worth queueing; changes nothing.

    Args:
        now_ns: The moment.
        model: Whose request it is.
        entry: The request.
        queues: Of all models.
        costs: Of all models on the devices that count and have them; one at least has this one.
        free_ns: When each of these devices is expected to have ended its batch, or to be there.
        idle: Whether a device of the model's has none.
    """
    queue = queues[model]
    limits, rows, deadline_ns = queue.limits, entry.rows, entry.deadline_ns
    most = limits.max_batch_rows
    if rows > most:
        return Refusal(Rejection.TOO_MANY_ROWS)
    if deadline_ns is not None and deadline_ns <= now_ns:
        return Refusal(Rejection.DEADLINE_PASSED)
    if len(queue) >= limits.max_queue_requests:
        return Refusal(Rejection.QUEUE_FULL, retry_after_ns=int(costs.step_ns(model)))
    if deadline_ns is None:
        return None
    curves, step_ns = costs[model], costs.step_ns(model)
    total = queue.rows + rows
    # Others of its batch stand behind it, or come until a device is free: about as many as came last time.
    usual = 0 if idle else queue.last_batch_rows
    size = min(most, max(total, usual))
    end_ns, nearest = _next_end(now_ns, size, curves, free_ns)
    wait_ns = (total - 1) // most * step_ns
    if len(queues) > 1:
        wait_ns += _others_ns(queue, wait_ns, queues, costs, len(curves))
    if end_ns + wait_ns < deadline_ns:
        return None  # there is time even behind all that wait
    if total > most:
        whole = (queue.rows_before(entry, end_ns) + rows - 1) // most
        size = min(most, max(total - whole * most, usual))
        end_ns, nearest = _next_end(now_ns, size, curves, free_ns)
        wait_ns = whole * step_ns
        if len(queues) > 1:
            wait_ns += _others_ns(queue, wait_ns, queues, costs, len(curves))
    end_ns += int(wait_ns)
    if end_ns < deadline_ns:
        return None
    alone_ns, alone = min((curve.bound_ns(rows), device) for device, curve in curves.items())
    if now_ns + alone_ns >= deadline_ns:
        return Refusal(Rejection.UNREACHABLE, alone_ns, judged=(alone, rows))
    return Refusal(Rejection.OVERLOADED, end_ns - now_ns, end_ns - deadline_ns, judged=(nearest, size))


def _next_end(now_ns: int, rows: int, curves: Mapping[str, Curve], free_ns: Mapping[str, int]) -> tuple[int, str]:
    """When the next batch ends, and on which device: the one that ends it first."""
    end_ns, nearest = _NEVER_NS, ""
    for device, curve in curves.items():
        free = free_ns[device]
        device_ns = (free if free > now_ns else now_ns) + curve.bound_ns(rows)
        if device_ns < end_ns:
            end_ns, nearest = device_ns, device
    return end_ns, nearest


def _others_ns(
    queue: ModelQueue, own_ns: float, queues: Mapping[ModelKey, ModelQueue], costs: Costs, num_devices: int
) -> float:
    """What other models are given of the devices' time until this one has had a share of its own."""
    total_ns = 0.0
    for other, theirs in queues.items():
        if theirs.rows and theirs is not queue:
            work_ns = costs.step_ns(other) * -(-theirs.rows // theirs.limits.max_batch_rows)
            total_ns += min(work_ns, max(0.0, own_ns + (queue.served_ns - theirs.served_ns) / num_devices))
    return total_ns
