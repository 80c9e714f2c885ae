"""Changes that break no gate, told at the end of a test run: tests leave them with their reports, which xdist carries along."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict

import pytest

from .verdict import Change, table

__all__ = ["keep", "write"]

_CHANGES = "gates.changes"
_COMPILER = "gates.compiler"
_ROWS = 30


def keep(record: Callable[[str, object], None], found: Iterable[Change], compiler: str, baseline_compiler: str) -> None:
    """Leave changes with the report of the test that runs; `record` is pytest's record_property."""
    record(_CHANGES, json.dumps([asdict(change) for change in found]))
    if compiler != baseline_compiler:
        record(_COMPILER, f"the baseline is of nvcc {baseline_compiler or '(none)'}, this is nvcc {compiler}")


def write(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests left; for the hook of the same argument, pytest_terminal_summary."""
    properties = [
        item
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for item in report.user_properties
    ]
    compilers = {str(value) for name, value in properties if name == _COMPILER}
    found = [Change(**item) for name, value in properties if name == _CHANGES for item in json.loads(str(value))]
    if found or compilers:
        terminalreporter.section("kernels that are not as in the baseline")
        for line in (*sorted(compilers), *table(found, most=_ROWS)):
            terminalreporter.write_line(line)
