from __future__ import annotations

import json
import logging
import os

import pytest
from dnnserve.logs import JsonFormatter, TextFormatter, configure_logging


def record(message: str, *arguments: object, error: Exception | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("dnnserve.test", logging.WARNING, __file__, 1, message, arguments, info)


def test_a_client_cannot_forge_a_line() -> None:
    line = TextFormatter().format(record("model %s", "x\n2026-01-01 ERROR forged"))
    assert "\n" not in line
    assert "x\\n2026-01-01 ERROR forged" in line


def test_json_is_one_object_a_line_with_its_traceback() -> None:
    line = JsonFormatter().format(record("model %s", "x\ny", error=RuntimeError("bad luck")))
    assert "\n" not in line
    fields = json.loads(line)
    assert (fields["level"], fields["logger"], fields["message"]) == ("WARNING", "dnnserve.test", "model x\ny")
    assert "RuntimeError: bad luck" in fields["traceback"]


def test_json_has_a_records_own_fields() -> None:
    given = record("a call")
    given.fields = {"rows": 3, "deadline_ms": None}
    fields = json.loads(JsonFormatter().format(given))
    assert (fields["rows"], fields["deadline_ms"], fields["message"]) == (3, None, "a call")


def test_lines_of_grpcs_core_are_not_among_json(monkeypatch: pytest.MonkeyPatch) -> None:
    for log_format, given, expected in (("text", None, None), ("json", None, "NONE"), ("json", "ERROR", "ERROR")):
        monkeypatch.setenv("GRPC_VERBOSITY", given or "")
        if given is None:
            monkeypatch.delenv("GRPC_VERBOSITY")
        monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
        configure_logging(log_format)
        assert os.environ.get("GRPC_VERBOSITY") == expected
