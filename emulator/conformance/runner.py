"""Runs families in processes of their own: a fault or a hang costs one check, and the rest goes on in the next process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.conformance import families, report

if TYPE_CHECKING:
    from collections.abc import Callable

    from emulator.conformance.checks import Family

ROOT = Path(__file__).parents[2]
RESTARTS = 16  # processes that a family may lose before the rest of it is given up


@dataclass(frozen=True)
class Runner:
    """How to run families.

    Attributes:
        build: Where compiled modules are kept.
        against: A report to compare with.
        seconds: How long one check may take, its family's compilation included.
        only: Runs the checks whose names contain this.
        say: Takes lines about the progress.
    """

    build: Path
    against: Path | None = None
    seconds: float = 240
    only: str = ""
    say: Callable[[str], None] = print

    def run(self, name: str) -> dict[str, report.Record]:
        """The records of a family's checks."""
        family = families.load(name)
        family.validate()
        started = time.monotonic()
        records = self._run_family(family)
        counts = ", ".join(f"{count} {status}" for status, count in sorted(report.summary({name: records}).items()))
        self.say(f"{name}: {counts or 'nothing to do'} in {time.monotonic() - started:.1f} s")
        return records

    def _run_family(self, family: Family) -> dict[str, report.Record]:
        chosen = [check for check in family.checks if self.only in check.name]
        shared = [check.name for check in chosen if not check.alone]
        records: dict[str, report.Record] = {}
        for names in [shared, *([check.name] for check in chosen if check.alone)]:
            self._run_checks(family.name, names, records)
        for check in chosen:
            records[check.name] |= {"covers": list(check.covers), "comparison": check.comparison.words}
        return {check.name: records[check.name] for check in chosen}

    def _run_checks(self, family: str, names: list[str], records: dict[str, report.Record]) -> None:
        remaining = list(names)
        for _ in range(RESTARTS):
            if not remaining:
                return
            culprit, message = self._process(family, remaining, records)
            remaining = [name for name in remaining if name not in records]
            if not remaining:
                return
            if message:
                records[culprit or remaining[0]] = {"status": report.ERROR, "message": message}
                remaining = [name for name in remaining if name not in records]
        for name in remaining:
            records[name] = {"status": report.ERROR, "message": f"not run: {RESTARTS} processes were lost before it"}

    def _process(self, family: str, names: list[str], records: dict[str, report.Record]) -> tuple[str, str]:
        """One process; the check that it broke in, if it was one, and how."""
        with tempfile.TemporaryDirectory() as directory:
            results, checks, log = (Path(directory) / name for name in ("results", "checks", "log"))
            checks.write_text("\n".join(names))
            results.touch()
            command = [sys.executable, "-m", "emulator.conformance.worker", family, "--build", str(self.build)]
            command += ["--results", str(results), "--checks", str(checks)]
            command += ["--against", str(self.against)] if self.against else []
            with log.open("wb") as sink:
                process = subprocess.Popen(command, cwd=ROOT, stdout=sink, stderr=subprocess.STDOUT)
                hung = self._watch(process, results)
            begun = ""
            for line in results.read_text().splitlines():
                entry = json.loads(line)
                begun = entry.get("begin", begun)
                if "check" in entry:
                    records[entry["check"]] = entry["record"]
            words = log.read_text(errors="replace").strip()[-1500:]
            last = records.get(begun)
            if words and last is not None and last["status"] == report.ERROR and process.returncode:
                last["message"] += "\n" + words  # what the process said when it lost its context
        if hung:
            return begun, f"no end within {self.seconds:g} s\n{words}"
        if begun in records or process.returncode == 0:
            return "", "" if begun in records else f"the process ended early\n{words}"
        return begun, f"the process ended with status {process.returncode}\n{words}"

    def _watch(self, process: subprocess.Popen[bytes], results: Path) -> bool:
        """Waits for a process; True if it made no progress for too long and was killed."""
        size, since = -1, time.monotonic()
        while True:
            try:
                process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                grown = results.stat().st_size
                if grown != size:
                    size, since = grown, time.monotonic()
                elif time.monotonic() - since > self.seconds:
                    process.kill()
                    process.wait()
                    return True
            else:
                return False
