"""Goodput under overload over real gRPC: an open loop with deadlines, and a device that sleeps 20 ms for a batch of 8.

    python -m benchmarks.overload

The device is in an engine's process, and batches overlap there as on a GPU. Goodput is what clients had in time, in percent of what
the device can do with full batches; late is what it computed and nobody had in time, in percent of the requests. Beside each line
stands what a sleep of 20 ms took meanwhile: on a machine that is busy with other things the device is no faster than that.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from dnnserve.allocator import keep_freed_memory
from dnnserve.app import Server
from dnnserve.catalog import ModelSpec
from dnnserve.config import ServerConfig
from dnnserve.engine.messages import Assignment
from dnnserve.engine.pipeline import LocalPipeline
from dnnserve.engine.process import EngineProcesses
from dnnserve.engine.slot import Slot
from dnnserve.envelope import ModelKey
from dnnserve.garbage import collect_seldom

from benchmarks.core_client import send_at
from benchmarks.front_end import CONNECTIONS, INFER, PAYLOADS, SPECS, FreeHost, FreeInstance

BASE_S, ROW_S = 0.004, 0.002
MAX_ROWS = 8
CAPACITY = MAX_ROWS / (BASE_S + MAX_ROWS * ROW_S)
SLOTS = 3
LOADS = (1.5, 3.0)
DEADLINES_MS = ((50.0,), (100.0,), (50.0, 100.0))
SPEC = SPECS[0]


class SlowInstance(FreeInstance):
    """A model that takes its time. Owned by one thread; not checked."""

    def __init__(self, spec: ModelSpec, max_batch_rows: int) -> None:
        super().__init__(spec, max_batch_rows)
        nbytes = Slot.nbytes(max_batch_rows, spec.signature)
        memory = [np.zeros(nbytes, np.uint8) for _ in range(SLOTS)]
        self.slots = tuple(Slot(each, max_batch_rows, spec.signature, spec.preprocessing) for each in memory)

    def finish(self) -> Mapping[int, np.ndarray]:
        """Zeros, when they are due."""
        time.sleep(BASE_S + self._begun * ROW_S)
        return super().finish()


class SlowHost(FreeHost):
    """A device of such models. Owned by one thread; not checked."""

    def load(self, model: ModelKey, max_batch_rows: int) -> LocalPipeline:
        """A model of `SPECS`."""
        return LocalPipeline(SlowInstance(self._specs[model], max_batch_rows))


def serve(front_ends: int) -> None:
    """Serve until SIGTERM; the addresses are the first line of the output."""
    keep_freed_memory()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    config = ServerConfig(
        model=Path("unused"),
        grpc_port=0,
        metrics_port=0,
        front_ends=front_ends,
        max_batch_rows=MAX_ROWS,
        lame_duck_seconds=0,
    )
    engines = EngineProcesses(["cpu"])
    engines.tell(Assignment(SlowHost, "text"))
    server = Server(config, ("cpu",), [replace(SPEC, max_batch_rows=MAX_ROWS)], engines, close=engines.close)
    server.start()
    collect_seldom()
    print(server.addresses.grpc, server.addresses.metrics, flush=True)
    signal.sigwait({signal.SIGTERM})
    server.drain()


def arrivals(load: float, seconds: float, deadlines_ms: Sequence[float]) -> Sequence[tuple[float, float]]:
    """When requests come, at random, so much more than the device can do, and the seconds that each may take."""
    generator, calls, at_s = random.Random(0), [], 0.0
    while (at_s := at_s + generator.expovariate(load * CAPACITY)) < seconds:
        calls.append((at_s, generator.choice(deadlines_ms) / 1e3))
    return calls


def rows_and_batches(metrics: str) -> np.ndarray:
    """That the device has computed so far."""
    names = "dnnserve_batch_rows_sum", "dnnserve_batch_rows_count"
    with urllib.request.urlopen(metrics, timeout=10) as page:
        lines = [line.decode() for line in page]
    return np.array([sum(float(line.split()[-1]) for line in lines if line.startswith(name)) for name in names])


class Sleeper(threading.Thread):
    """What a sleep of 20 ms takes meanwhile."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._ended = threading.Event()
        self._seconds: list[float] = []

    def run(self) -> None:
        """Sleep, again and again."""
        while not self._ended.is_set():
            began = time.perf_counter()
            time.sleep(0.02)
            self._seconds.append(time.perf_counter() - began)

    def mean_ms(self) -> float:
        """On average until now."""
        self._ended.set()
        self.join()
        return 1e3 * float(np.mean(self._seconds))


def line(grpc: str, metrics: str, load: float, deadlines_ms: Sequence[float], seconds: float) -> str:
    """A row of the table."""
    calls = arrivals(load, seconds, deadlines_ms)
    before, sleeper = rows_and_batches(metrics), Sleeper()
    sleeper.start()
    taken = send_at(grpc, INFER, PAYLOADS[0].message(), CONNECTIONS, calls)
    sleep_ms = sleeper.mean_ms()
    rows, batches = rows_and_batches(metrics) - before
    name = "/".join(f"{each:g}" for each in deadlines_ms)
    return (
        f"{load:4.1f} {name:>12} {100 * taken.in_time / CAPACITY / seconds:8.1f} "
        f"{100 * (rows - taken.in_time) / len(calls):7.2f} {rows / max(1, batches):10.2f} {sleep_ms:11.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-ends", type=int, default=0, help="processes of their own (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each load")
    options = parser.parse_args()
    program = f"from benchmarks.overload import serve; serve({options.front_ends})"  # by name: engines import it, too
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            grpc, metrics = server.stdout.readline().split()
            line(grpc, metrics, 0.8, (1000.0,), 2.0)
            print("load deadlines/ms goodput%   late% rows/batch 20 ms sleep")
            for load in LOADS:
                for deadlines_ms in DEADLINES_MS:
                    print(line(grpc, metrics, load, deadlines_ms, options.seconds), flush=True)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
