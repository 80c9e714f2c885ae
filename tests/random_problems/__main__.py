"""Check many random convolutions by every algorithm: python -m tests.random_problems --device cpu --count 2000."""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence

from tests.random_problems.run import Outcome, run_batch

_BATCH = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them and say what was wrong; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_problems", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0, ... (default: %(default)s)")
    parser.add_argument("--count", type=int, default=2000, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first (default: %(default)s)")
    parser.add_argument("--max-macs", type=int, default=1 << 40, help="most multiply-adds of one (default: no limit)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)")
    options = parser.parse_args(arguments)
    began, total = time.monotonic(), Outcome()
    numbers = range(options.first, options.first + options.count)
    batches = [list(numbers[i : i + _BATCH]) for i in range(0, len(numbers), _BATCH)]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        futures = [pool.submit(run_batch, options.device, batch, options.max_macs) for batch in batches]
        for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
            outcome = future.result()
            total = total.plus(outcome)
            for line in outcome.wrong:
                print(line, flush=True)
            if done % 10 == 0 or done == len(futures):
                print(
                    f"[{time.monotonic() - began:5.0f} s] {total.problems} problems, {len(total.wrong)} wrong",
                    flush=True,
                )
    runs = collections.Counter(dict(total.runs))
    print(f"{total.problems} problems, {runs.total()} runs on {options.device}, {len(total.wrong)} wrong")
    for name, count in sorted(runs.items()):
        print(f"  {name:60} {count:6}")
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
