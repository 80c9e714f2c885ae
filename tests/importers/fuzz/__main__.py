"""Import damaged files, and say what came of it: no crash, no hang, no more than 2 GB, no error but the importers' own.

python -m tests.importers.fuzz onnx --cases 100000
python -m tests.importers.fuzz onnx --case 4711          this one again, with its traceback

Every case is a whole file with some mutations (mutations.py), which follow from --seed and the case's number. They are imported in
another process (worker.py), which is bounded in memory and time; where a case ends it, the next one begins in a new one.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.importers.fuzz.targets import TARGETS
from tests.importers.fuzz.worker import MAX_BYTES, damaged

_MAX_FAILURES = 20
_MAX_SECONDS = 60.0
"""For one case, of wall-clock time: fillers of a gigabyte take some seconds, more where a machine runs other things too."""

_PROGRESS_SECONDS = 10.0


@dataclass
class Report:
    """What came of the cases; `peak_bytes` is of the workers that came to their end."""

    target: str
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    peak_bytes: int = 0
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        return sum(self.outcomes.values()) + len(self.failures)

    def __str__(self) -> str:
        what = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        memory = f"peak {self.peak_bytes / 1e6:.0f} MB resident"
        return (
            f"{self.target}: {self.cases} cases in {self.seconds:.0f} s: {what}, {len(self.failures)} failed; {memory}"
        )


def fuzz(target: str, cases: int, seed: int = 0, *, seconds: float = _MAX_SECONDS, progress: bool = False) -> Report:
    """Run cases 0 to `cases`, of at most so many seconds each; stops early after 20 that failed."""
    report, started, said = Report(target), time.monotonic(), time.monotonic()
    following = 0
    while following < cases and len(report.failures) < _MAX_FAILURES:
        command = [sys.executable, "-m", "tests.importers.fuzz.worker", target]
        command += map(str, (following, cases, seed, seconds))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as worker:
            assert worker.stdout is not None
            for line in worker.stdout:
                first, _, rest = line.rstrip().partition(" ")
                if first == "peak":
                    report.peak_bytes = max(report.peak_bytes, int(rest.removesuffix(" KiB")) * 1024)
                    continue
                following = int(first) + 1
                if rest in ("imported", "refused"):
                    report.outcomes[rest] += 1
                else:
                    report.failures[int(first)] = rest
                report.seconds = time.monotonic() - started
                if progress and time.monotonic() - said > _PROGRESS_SECONDS:
                    said = time.monotonic()
                    print(f"  {following} of {cases}, {len(report.failures)} failed", flush=True)
        if worker.returncode:
            report.failures[following] = _ending(worker.returncode)
            following += 1
    report.seconds = time.monotonic() - started
    return report


def _ending(status: int) -> str:
    """How a worker ended, from its exit status."""
    if status == -signal.SIGALRM:
        return "took too long"
    return f"ended the process by {signal.Signals(-status).name}" if status < 0 else f"ended the process: {status}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS, help="whose files")
    parser.add_argument("--cases", type=int, default=100_000, help="how many (default: 100000)")
    parser.add_argument("--seed", type=int, default=0, help="for other ones (default: 0)")
    parser.add_argument("--case", type=int, help="this one alone, in this process")
    options = parser.parse_args()
    if options.case is not None:
        seeds = TARGETS[options.target]()
        print(f"{seeds.of(options.case).name}, damaged")
        seeds.of(options.case).load(damaged(seeds, options.seed, options.case))
        return 0
    print(f"at most {MAX_BYTES >> 20} MiB of address space, {_MAX_SECONDS:.0f} s for each case")
    report = fuzz(options.target, options.cases, options.seed, progress=True)
    print(report)
    for case, what in report.failures.items():
        print(f"  --case {case} --seed {options.seed}: {what}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
