"""The command: runs every family on the device there is, records what it found, and compares it with a recorded report."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from emulator.conformance import coverage, families, report
from emulator.conformance.compiler import compiler
from emulator.conformance.cuda import Driver
from emulator.conformance.runner import Runner

_DESCRIBE = """
import json, sys
from emulator.conformance.__main__ import describe
json.dump(describe(), sys.stdout)
"""


def describe() -> dict[str, object]:
    """The device and what drives it."""
    driver = Driver()
    version = driver.version()
    return {
        "device": driver.device_name(),
        "emulated": driver.emulated,
        "devices": driver.device_count(),
        "cuda": f"{version // 1000}.{version % 1000 // 10}",
        "compute_capability": f"{driver.attribute(75)}.{driver.attribute(76)}",
    }


def main() -> int:
    """The entry point; 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m emulator.conformance", description=__doc__)
    parser.add_argument("--out", type=Path, help="a directory for the report and for what nvcc makes")
    parser.add_argument("--against", type=Path, help="a report to compare with")
    parser.add_argument("--name", help="of the report; default: from the device's name")
    parser.add_argument("--families", default=",".join(families.NAMES), help="some of " + ", ".join(families.NAMES))
    parser.add_argument("--only", default="", help="run the checks whose names contain this")
    parser.add_argument("--seconds", type=float, help="that a check may take with its compilation")
    options = parser.parse_args()
    if not options.out and not options.against:
        parser.error("--out DIR, --against REPORT.json or both")
    out = options.out or Path("emulator-conformance")
    out.mkdir(parents=True, exist_ok=True)
    header = _header()
    say(f"{header['device']}, driver {header['driver']}, CUDA {header['cuda']}")
    against = options.against.resolve() if options.against else None
    seconds = options.seconds or (240 if header["emulated"] else 60)
    runner = Runner((out / "build").resolve(), against, seconds, options.only, say)
    missing = sorted(_uncovered())
    name = options.name or re.sub(r"\W+", "-", str(header["device"]).lower().replace("nvidia ", "")).strip("-")
    path = out / f"{name}.json"
    found: dict[str, dict[str, report.Record]] = {}
    for family in options.families.split(","):
        found[family] = runner.run(family)
        # Written after each family: a run that is cut off leaves what it found.
        data = header | {"summary": report.summary(found), "uncovered": missing, "families": found}
        path.write_text(report.text(data))
    report.print_failures(found, say)
    report.print_uncovered(missing, say)
    counts = report.summary(found)
    say(", ".join(f"{count} {status}" for status, count in sorted(counts.items())) + f"; written to {path}")
    return int(any(counts.get(status) for status in report.BAD))


def _header() -> dict[str, object]:
    # In a process of its own, so that this one never holds a context.
    done = subprocess.run(
        [sys.executable, "-c", _DESCRIBE], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"no device: {done.stderr.strip()[-1000:]}")
    return {
        **json.loads(done.stdout),
        "driver": _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "nvcc": _nvcc_version(),
        "host": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": os.environ.get("DNNCORE_COMMIT") or _first_line("git", "rev-parse", "HEAD"),
    }


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else ""


def _nvcc_version() -> str:
    try:
        done = subprocess.run([compiler(), "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"release [^\n]*", done.stdout)
    return found[0] if found else ""


def _uncovered() -> set[str]:
    try:
        return coverage.uncovered()
    except ImportError:
        return set()  # the translator is not part of every checkout that is sent to a GPU


def say(text: str) -> None:
    """A line of the progress."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
