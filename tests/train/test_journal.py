from __future__ import annotations

import json
from pathlib import Path

import pytest

from dnncore.train.journal import Journal


def test_every_event_is_on_disk_at_once_as_one_line(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, lambda: 12.5) as journal:
        journal.write("step", iteration=1, name="a\nb")
        assert [json.loads(line) for line in path.read_text().splitlines()] == [
            {"event": "step", "time": 12.5, "iteration": 1, "name": "a\nb"}
        ]


def test_half_a_line_of_a_killed_run_does_not_swallow_the_next_event(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"event": "start"}\n{"event": "st')
    with Journal(path, lambda: 0.0) as journal:
        journal.write("start")
    lines = path.read_text().splitlines()
    assert lines[1] == '{"event": "st'
    assert json.loads(lines[2]) == {"event": "start", "time": 0.0}


def test_a_number_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl", lambda: 0.0) as journal, pytest.raises(ValueError, match="JSON"):
        journal.write("step", loss=float("nan"))
    assert (tmp_path / "journal.jsonl").read_bytes() == b""
