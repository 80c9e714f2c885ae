"""Right kernels whose synchronisation is easy to take for wrong: the checker says nothing, and the results are right.

The kernels are those of `bugs/patterns.cu`. The settings are read when the driver is loaded, so that each of their combinations has
a process of its own, which this file is the program of.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from emulator.conformance.cuda import Buffer, CudaError
from emulator.tests.test_seeded_bugs import Bench, pytestmark

__all__ = ["pytestmark"]

ROUNDS = 9


def copy_ring(bench: Bench) -> None:
    y = bench.zeros(64)
    bench.launch("copy_ring", 1, 64, [bench.floats(64 * ROUNDS), y, ROUNDS])
    expect(bench, y, np.arange(64 * ROUNDS).reshape(ROUNDS, 64).sum(0)[::-1])


def multiply_ring(bench: Bench, name: str) -> None:
    # Constant tiles: what they sum up to does not depend on the order of elements.
    a, b, y = (bench.driver.allocate(n * 2) for n in (ROUNDS * 64 * 64, ROUNDS * 8 * 64, 64 * 8 * 2))
    rounds = np.arange(1, ROUNDS + 1)
    bench.driver.write(a, np.repeat(rounds, 64 * 64).astype(np.float16))
    bench.driver.write(b, np.repeat(rounds, 8 * 64).astype(np.float16))
    bench.launch(name, 1, 160, [a, b, y, ROUNDS])
    expect(bench, y, np.full(64 * 8, 16 * (rounds**2).sum()))


def multiply_ring_of_warps(bench: Bench) -> None:
    multiply_ring(bench, "multiply_ring_of_warps")


def multiply_ring_of_groups(bench: Bench) -> None:
    multiply_ring(bench, "multiply_ring_of_groups")


def staged_stores(bench: Bench) -> None:
    y = bench.zeros(64 * ROUNDS)
    bench.launch("staged_stores", 1, 64, [y, ROUNDS])
    expect(bench, y, np.arange(64 * ROUNDS))


def early_look(bench: Bench) -> None:
    y = bench.zeros(32)
    bench.launch("early_look", 1, 64, [bench.floats(32 * ROUNDS), y, ROUNDS])
    expect(bench, y, np.arange(32 * ROUNDS).reshape(ROUNDS, 32).sum(0))


def multicast_ring(bench: Bench) -> None:
    y = bench.zeros(64)
    bench.launch("multicast_ring", 2, 64, [bench.floats(64 * ROUNDS), y, ROUNDS])
    sums = np.arange(64 * ROUNDS).reshape(ROUNDS, 2, 32).sum((0, 1))
    expect(bench, y, np.concatenate([sums, sums]))


def split_cluster_barrier(bench: Bench) -> None:
    y = bench.zeros(64)
    bench.launch("split_cluster_barrier", 2, 32, [y])
    expect(bench, y, np.roll(np.arange(64), 32))


def arrive_and_return(bench: Bench) -> None:
    y = bench.zeros(64)
    bench.launch("arrive_and_return", 2, 64, [y])
    expect(bench, y, np.repeat([1, 0], 32))


def split_sum(bench: Bench) -> None:
    partial, ticket, y = bench.zeros(64 * 6), bench.zeros(1), bench.zeros(1)
    for _ in range(2):
        bench.launch("split_sum", 6, 64, [partial, ticket, y])
        expect(bench, y, np.array([64 * 6]))


def parts_of_a_warp(bench: Bench) -> None:
    y = bench.zeros(32)
    bench.launch("parts_of_a_warp", 1, 32, [y])
    lanes = np.arange(32)
    expect(bench, y, np.where(lanes < 16, 16 - lanes, np.where(lanes < 24, 48 - lanes, 47 - lanes)))


def warps_that_return(bench: Bench) -> None:
    y = bench.zeros(64)
    bench.launch("warps_that_return", 1, 128, [y])
    expect(bench, y, np.full(64, 64))


def chain_of_blocks(bench: Bench) -> None:
    y = bench.zeros(1)
    bench.launch("chain_of_blocks", 5, 32, [bench.zeros(5), bench.zeros(5), y])
    expect(bench, y, np.array([5]))


def gathered_additions(bench: Bench) -> None:
    y = bench.zeros(2)
    bench.launch("gathered_additions", 1, 64, [y])
    expect(bench, y, np.array([11, 21]))


def chain_of_grids(bench: Bench) -> None:
    x, y = bench.zeros(32), bench.zeros(32)
    link = bench.driver.function(bench._module, "link")
    bench.driver.launch(link, 1, 32, [x, y])
    bench.driver.launch(link, 1, 32, [y, x], programmatic=True)
    bench.driver.launch(link, 1, 32, [x, y], programmatic=True)
    bench.driver.synchronize()
    expect(bench, y, np.full(32, 3))


PATTERNS = (
    copy_ring, multiply_ring_of_warps, multiply_ring_of_groups, staged_stores, early_look, multicast_ring,
    split_cluster_barrier, arrive_and_return,
    split_sum, parts_of_a_warp, warps_that_return, chain_of_blocks, gathered_additions, chain_of_grids,
)  # fmt: skip


def expect(bench: Bench, buffer: Buffer, wanted: np.ndarray) -> None:
    """Compare a buffer's first floats."""
    bench.driver.synchronize()
    np.testing.assert_array_equal(bench.driver.read(buffer, np.float32)[: wanted.size], wanted)


def main(images: Path) -> int:
    """Run every pattern in this process's settings; say what went wrong."""
    failed = 0
    for pattern in PATTERNS:
        bench = Bench("patterns", images)
        try:
            pattern(bench)
        except (CudaError, AssertionError) as error:  # reported, or wrong: the others run all the same
            print(f"{pattern.__name__}: {error}")
            failed += 1
        bench.close()
    return failed


@pytest.mark.parametrize("schedule", ["fwd", "rev", "7"])
@pytest.mark.parametrize("landing", ["lazy", "eager", "random"])
def test_right_kernels_run_in_silence(landing: str, schedule: str) -> None:
    environment = {**os.environ, "EMU_ASYNC": landing, "EMU_SCHED": schedule}
    command = [sys.executable, "-m", "emulator.tests.test_no_false_alarms"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


if __name__ == "__main__":
    cache = os.environ.get("DNNCORE_CACHE_DIR")
    sys.exit(main(Path(cache or tempfile.gettempdir()) / "seeded-bugs"))
