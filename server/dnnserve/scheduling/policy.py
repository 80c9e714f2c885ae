"""The choice for a device that is idle: which requests run there next, and which are not worth running any more.

* An idle device takes what is there at once; it waits for company only where that was asked for (`Limits.max_queue_delay_ns`).
* Models share the devices' time, by what their batches are expected to take: next is the one that has had the least of it.
* Within a model, requests go in the order of their turns (`queue.py`).
* A batch holds only requests that it is expected to answer in time. Under overload it stays full: those that cannot be answered
  by a full batch are passed over for those behind them, since batches shrunk to rescue a few cost more requests than that saves.
  Where there are too few behind them, the batch is as large as answers the most rows a second.
* Passed over is dropped only when no device can answer it in time any more, were it the next to run there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from dnnserve.envelope import ModelKey
from dnnserve.scheduling.costs import Costs, Curve
from dnnserve.scheduling.entry import Entry
from dnnserve.scheduling.queue import ModelQueue

__all__ = ["Decision", "Dropped", "choose"]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Requests of one model that cannot be answered in time any more. Immutable.

    Args:
        model: Whose they are.
        entries: Not empty.
        rows: Of the batch by whose cost they were judged.
    """

    model: ModelKey
    entries: tuple[Entry, ...]
    rows: int


class Decision(NamedTuple):
    """What an idle device does now. Immutable; a tuple, because it is quick to make.

    Args:
        now_ns: The moment of the decision.
        model: Whose batch runs; None: none does.
        batch: Its requests.
        rows: Of the batch.
        expected_ns: What the batch is expected to take.
        dropped: What is given up, of any model.
        look_again_ns: When there will be a batch if nothing else happens; None: not without another event.
        others_should_look: A request that would be late here would not be on another device that is idle.
    """

    now_ns: int
    model: ModelKey | None
    batch: list[Entry]
    rows: int
    expected_ns: int
    dropped: tuple[Dropped, ...]
    look_again_ns: int | None
    others_should_look: bool


def choose(
    now_ns: int,
    device: str,
    queues: Mapping[ModelKey, ModelQueue],
    costs: Costs,
    free_ns: Mapping[str, int],
    *,
    ahead: bool = False,
) -> Decision:
    """Decide for a device that is idle now; changes nothing.

    Args:
        now_ns: The moment.
        device: The idle one.
        queues: Of all models.
        costs: Of all models on the healthy devices that have them.
        free_ns: When each healthy device is expected to have ended its batches.
        ahead: The device is not idle: what it does next is decided already if that is a full batch, and nothing is dropped.
    """
    waiting = [model for model, queue in queues.items() if queue.rows and device in costs[model]]
    if len(waiting) > 1:
        waiting.sort(key=lambda model: queues[model].served_ns)
    dropped: list[Dropped] = []
    look_again_ns: int | None = None
    others_should_look = False
    for model in waiting:
        queue, curves = queues[model], costs[model]
        curve = curves[device]
        company_ns = queue.company_ns(now_ns, curve)
        if company_ns is None or company_ns > now_ns:
            look_again_ns = min((t for t in (look_again_ns, company_ns) if t is not None), default=None)
            continue
        if ahead:
            most = queue.limits.max_batch_rows
            batch, rows, late = queue.pick(max(now_ns, free_ns[device]) + curve.bound_ns(most), most)
            if rows < most:
                continue
            return Decision(now_ns, model, batch, rows, curve.mean_ns(rows), (), None, False)
        batch, rows, late = _best_batch(now_ns, queue, curve)
        expected_ns = curve.mean_ns(rows) if batch else 0
        if late:
            next_ns = {**free_ns, device: now_ns + expected_ns}
            places = [(max(now_ns, free), curves[name]) for name, free in next_ns.items() if name in curves]
            lost = tuple(entry for entry in late if not _in_time(entry, places))
            if lost:
                dropped.append(Dropped(model, lost, min(queue.rows, queue.limits.max_batch_rows)))
            if len(lost) < len(late):
                idle = [place for place in places if place[0] == now_ns]
                others_should_look = others_should_look or any(_in_time(entry, idle) for entry in late)
        if batch:
            drops = tuple(dropped)
            return Decision(now_ns, model, batch, rows, expected_ns, drops, None, others_should_look)
    return Decision(now_ns, None, [], 0, 0, tuple(dropped), look_again_ns, others_should_look)


def _best_batch(now_ns: int, queue: ModelQueue, curve: Curve) -> tuple[list[Entry], int, list[Entry]]:
    """The batch to run, its rows, and the requests before its last that would be too late in it."""
    most = min(queue.rows, queue.limits.max_batch_rows)
    picked = queue.pick(now_ns + curve.bound_ns(most), most)
    if not picked[2] or picked[1] == queue.limits.max_batch_rows:
        return picked
    best = _rows_per_ns(picked[1], curve)
    for size in reversed(curve.sizes):
        if size >= most:
            continue
        smaller = queue.pick(now_ns + curve.bound_ns(size), size)
        rate = _rows_per_ns(smaller[1], curve)
        if rate > best or (0 < rate == best and len(smaller[2]) < len(picked[2])):
            picked, best = smaller, rate
    return picked


def _rows_per_ns(rows: int, curve: Curve) -> float:
    return rows / max(1, curve.mean_ns(rows)) if rows else 0.0


def _in_time(entry: Entry, places: Iterable[tuple[int, Curve]]) -> bool:
    """Whether it would be answered in time, were it the next to run in one of these places: when it is free, and its costs."""
    assert entry.deadline_ns is not None
    return any(start_ns + curve.bound_ns(entry.rows) < entry.deadline_ns for start_ns, curve in places)
