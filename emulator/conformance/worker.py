"""Runs the checks of one family in this process and writes a line of JSON for each as soon as it is over."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.conformance import families, report
from emulator.conformance.bench import Bench
from emulator.conformance.compiler import CompileError
from emulator.conformance.cuda import CudaError

if TYPE_CHECKING:
    from emulator.conformance.checks import Check

UNUSABLE = 3  # exit status: the context is lost, the rest needs another process


def main() -> int:
    """The entry point of a worker process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("family")
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--checks", type=Path, required=True, help="a file with a name a line")
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    wanted = set(options.checks.read_text().splitlines())
    family = families.load(options.family)
    reference = report.load(options.against) if options.against else None
    with options.results.open("a") as file:

        def write(**line: object) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        write(begin="")  # loading the driver counts as work too
        bench = Bench(options.build)
        for check in family.checks:
            if check.name in wanted:
                write(begin=check.name)
                record = _run(bench, family.name, check, reference)
                write(check=check.name, record=record)
                if not _usable(bench):
                    return UNUSABLE
    return 0


def _run(bench: Bench, family: str, check: Check, reference: report.Reference | None) -> report.Record:
    try:
        return report.judge(family, check, check.run(bench), reference)
    except report.SkippedCheck as reason:
        return {"status": report.SKIPPED, "message": str(reason)}
    except (CompileError, CudaError) as error:
        return {"status": report.ERROR, "message": str(error)}
    except Exception as error:  # noqa: BLE001 - a check with a fault of its own must not take the family with it
        return {"status": report.ERROR, "message": f"{type(error).__name__}: {error}"}


def _usable(bench: Bench) -> bool:
    try:
        bench.driver.synchronize()
        bench.release()
    except CudaError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
