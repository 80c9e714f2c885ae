"""The process that imports damaged files: bounded in memory and in time, so that it ends where an importer would not.

It writes a line for each case: its number and what came of it, "imported", "refused", or the error that should not have come. A
case that ends the process has no line.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
from pathlib import Path

import numpy as np

from tests.importers.fuzz.mutations import mutated
from tests.importers.fuzz.seeds import Seeds
from tests.importers.fuzz.targets import TARGETS

__all__ = ["MAX_BYTES", "damaged"]

MAX_BYTES = 2 << 30
"""Of address space, with Python, NumPy and all that is imported."""


def damaged(seeds: Seeds, seed: int, case: int) -> bytes:
    """The file of a case, always the same."""
    return mutated(seeds.of(case).data, np.random.default_rng([seed, case]))


def _outcome(seeds: Seeds, case: int, data: bytes) -> str:
    """What an importer makes of a file: "imported", "refused", or an error that it should not raise."""
    seed = seeds.of(case)
    try:
        seed.load(data)
    except seed.refusal as error:
        return "out of memory" if _is_out_of_memory(error) else "refused"
    except MemoryError:
        return "out of memory"
    except Exception as error:  # noqa: BLE001 (which is what this looks for)
        return f"{type(error).__name__}: {str(error)[:200]!r}"
    return "imported"


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the limit of this process is what refused a file; an importer's own must do that."""
    return error is not None and ("MemoryError" in str(error) or _is_out_of_memory(error.__cause__))


def _peak_kib() -> int:
    """Most memory that was resident. getrusage's figure begins with that of the process which started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    seeds = TARGETS[options.target]()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    for case in range(options.first, options.last):
        signal.setitimer(
            signal.ITIMER_REAL, options.seconds
        )  # nobody handles it, so it ends the process wherever that is
        found = _outcome(seeds, case, damaged(seeds, options.seed, case))
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(f"{case} {found}\n")
        sys.stdout.flush()
    sys.stdout.write(f"peak {_peak_kib()} KiB\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
