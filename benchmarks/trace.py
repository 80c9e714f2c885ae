"""Traffic as a server saw it: lines of dnnserve's access log as JSON become arrivals of the simulator.

dnnserve ... --access-log --log-format json 2> traffic.jsonl
python -m benchmarks.scheduling --trace traffic.jsonl
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from dnnserve.envelope import ModelKey

from benchmarks.simulator import SECOND_NS, Arrival

__all__ = ["TraceError", "read_trace"]

_LOGGER = "dnnserve.access"


class TraceError(ValueError):
    """A file is no access log, or has no inference in it."""


def read_trace(path: Path, speed: float = 1.0) -> list[Arrival]:
    """Requests that came to a scheduler, in the order of time; the first comes at 0.

    Lines of other loggers, and calls whose request came to none, are left out.

    Args:
        path: Of the log.
        speed: How many times as fast they come; their deadlines stay as they were.

    Raises:
        TraceError: a line is no JSON object or lacks a field, or there is no request at all.
    """
    with path.open() as lines:
        found = sorted(_requests(path, lines), key=lambda pair: pair[0])
    if not found:
        raise TraceError(f"{path}: no inference; dnnserve writes them with --access-log --log-format json")
    first_s = found[0][0]
    return [
        Arrival(int((at_s - first_s) / speed * SECOND_NS), like.model, like.rows, like.slack_ns, like.priority)
        for at_s, like in found
    ]


def _requests(path: Path, lines: Iterable[str]) -> Iterable[tuple[float, Arrival]]:
    """Seconds since the epoch, and the request that came then."""
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            if fields["logger"] != _LOGGER or "rows" not in fields:
                continue
            name, _, version = fields["model"].rpartition("/")
            deadline_ms = fields["deadline_ms"]
            slack_ns = None if deadline_ms is None else int(deadline_ms * 1e6)
            yield (
                float(fields["arrived"]),
                Arrival(0, ModelKey(name, int(version)), fields["rows"], slack_ns, fields["priority"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TraceError(f"{path}:{number}: no line of an access log as JSON: {error!r}") from error
