"""Access logs as traffic of the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.scheduling import Machine, replay
from benchmarks.trace import TraceError, read_trace


def line(arrived: float, model: str = "toy/1", **others: object) -> str:
    fields = {
        "logger": "dnnserve.access",
        "arrived": arrived,
        "model": model,
        "rows": 1,
        "deadline_ms": None,
        "priority": 0,
    }
    return json.dumps(fields | others)


def test_requests_come_in_the_order_in_which_they_came_whatever_the_log_says_first(tmp_path: Path) -> None:
    path = tmp_path / "log"
    refused = json.dumps({"logger": "dnnserve.access", "arrived": 4.0, "model": None})
    other = json.dumps({"logger": "dnnserve", "message": "ready"})
    path.write_text("\n".join([line(12.5, "a/b/2", rows=3, deadline_ms=50.0), other, refused, line(12.0, priority=2)]))
    first, second = read_trace(path, speed=2.0)
    assert (first.at_ns, str(first.model), first.rows, first.slack_ns, first.priority) == (0, "toy/1", 1, None, 2)
    assert (second.at_ns, str(second.model), second.rows, second.slack_ns) == (250_000_000, "a/b/2", 3, 50_000_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2026-01-01 INFO dnnserve: ready", "log:1: no line of an access log as JSON"),
        (line(1.0, "toy"), "log:1"),
        (line(1.0) + "\n[]", "log:2"),
        ('{"logger": "dnnserve"}', "no inference; dnnserve writes them with --access-log --log-format json"),
    ],
)
def test_what_is_no_access_log_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_a_replay_says_what_became_of_each_models_requests(tmp_path: Path) -> None:
    """A device that takes 10 ms for any batch of one row: of two requests at once, with 15 ms each, one is in time."""
    path = tmp_path / "log"
    path.write_text(
        "\n".join([line(i, "a/1", deadline_ms=15.0) for i in range(9)] + [line(0, "b/1", deadline_ms=15.0)])
    )
    total, _, *lines = replay(Machine(10.0, 0.0, 1, 0.0), read_trace(path), jitter=0.0, devices=1)
    assert total == "10 requests, 10 rows in 8.0 s; devices busy 1 %, 1.1 rows per batch"
    found = {name: (int(count), float(good)) for name, count, good, *_ in map(str.split, lines)}
    assert sum(count * good / 100 for count, good in found.values()) == pytest.approx(9, abs=0.01)
    assert {name: count for name, (count, _) in found.items()} == {"a/1": 9, "b/1": 1}
