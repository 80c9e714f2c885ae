"""Runners over fake devices, and how what was asked of them has ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from dnnserve.engine.runner import Runner
from dnnserve.envelope import InferenceRequest, ModelKey
from dnnserve.processes.restarts import Restarts
from dnnserve.scheduler import Scheduler
from dnnserve.scheduling.entry import Limits

from tests.server.fakes import PATIENCE_S, Inbox, Lab, block_of, make_rows, make_spec

__all__ = ["NEXT", "SPEC", "Ends", "Fleet"]

SPEC = make_spec()
NEXT = ModelKey("toy", 2)
"""A version that comes while the first runs."""


class Fleet:
    """Runners over a lab's fake devices, behind one scheduler."""

    def __init__(
        self,
        lab: Lab,
        *devices: str,
        restarts: Restarts | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.inbox, self.scheduler = Inbox(), Scheduler(clock)
        self.changes: list[tuple[str, str | None]] = []
        models = {SPEC.key: SPEC.max_batch_rows}
        self.runners = [
            Runner(
                *(device, device, models, lab.open_host, self.scheduler),
                on_change=lambda *change: self.changes.append(change),
                restarts=restarts,
                clock=clock,
            )
            for device in devices
        ]
        self.scheduler.start()
        for runner in self.runners:
            runner.start()

    def open(self, **limits: int) -> Fleet:
        for runner in self.runners:
            runner.wait_loaded()
        self.scheduler.add_model(SPEC.key, Limits(**{"max_batch_rows": 8, "max_queue_requests": 100, **limits}))
        return self

    def submit(
        self, value: float, rows: int = 1, model: ModelKey = SPEC.key, deadline_ms: int | None = None
    ) -> InferenceRequest:
        now_ns = self.scheduler._clock()
        deadline_ns = None if deadline_ms is None else now_ns + deadline_ms * 1_000_000
        request = InferenceRequest(model, block_of(make_rows(value, rows)), now_ns, deadline_ns, self.inbox.deliver)
        self.scheduler.submit(request)
        return request

    def close(self) -> None:
        self.scheduler.stop()
        assert all(runner.join(PATIENCE_S) for runner in self.runners)
        for runner in self.runners:  # also one that was given up, whose test must have let it go on
            runner._thread.join(PATIENCE_S)
            assert not runner._thread.is_alive(), f"the thread of {runner.label} is left"


class Ends:
    """How loads and unloads ended."""

    def __init__(self) -> None:
        self.seen: list[int | Exception | None] = []

    def __call__(self, end: int | Exception | None = None) -> None:
        self.seen.append(end)
