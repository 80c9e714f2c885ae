"""A server's metrics, for the rules and the dashboard that read them."""

from __future__ import annotations

from typing import Any

import pytest
from dnnserve.engine.runner import Runner
from dnnserve.envelope import ModelKey
from dnnserve.lifecycle.versions import IndexEntry
from dnnserve.metrics import Metrics, MetricsPage, StateCollector
from dnnserve.scheduler import Scheduler
from dnnserve.scheduling.entry import Limits
from dnnserve.statistics import Statistics
from prometheus_client.parser import text_string_to_metric_families


@pytest.fixture(scope="session")
def served() -> tuple[set[str], set[str]]:
    """Names of the samples on a server's /metrics, and of their labels."""
    model = ModelKey("digits", 1)
    statistics, metrics, scheduler = Statistics([model]), Metrics([model]), Scheduler()
    scheduler.add_model(model, Limits(max_batch_rows=1, max_queue_requests=1))

    def no_device(device: str) -> Any:
        raise AssertionError(f"{device} is not opened: the runner is never started")

    runner = Runner("cpu", "cpu", {model: 1}, no_device, scheduler)
    metrics.registry.register(
        StateCollector(scheduler, [runner], lambda: True, lambda: [IndexEntry("digits", 1, "READY")])
    )
    metrics.record_load(model, 0.1, failed=False)
    metrics.record_calls(None, "Classify", "NOT_FOUND", (0,))
    page = MetricsPage(metrics, statistics, scheduler).render().decode()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {sample.name for sample in samples}, {label for sample in samples for label in sample.labels}
