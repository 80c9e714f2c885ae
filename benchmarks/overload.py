"""Goodput under overload over real gRPC: an open loop with deadlines, more than the server can do, and then less again.

    python -m benchmarks.overload --out benchmarks/results

A device is in an engine's process, and batches overlap there as on a GPU. It sleeps: `slow` 20 ms for a batch of 8, `quick` 4 ms
for a batch of 4, where deadlines of 15 ms leave room for a batch before a request's own. `free` takes no time: what the front end
can do is the bound, which is measured in a closed loop first. Goodput is what clients had in time, in percent of what can be done;
late is what was computed and nobody had in time, in percent of the requests. In the last line of each device the load falls to a
half of what can be done after the overload: `recovery` is how many seconds of that passed until every request was answered in time.
Both sides' processor time is that of a call, answered or not. The client, on the same cores, is `frame_client`; with
`--client core` it is `core_client`, which takes as much for a call as the server does, so that the client is measured, too.
Beside each line stands what a sleep of 20 ms took meanwhile: on a machine that is busy with other things a device is no faster.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from dnnserve.allocator import keep_freed_memory
from dnnserve.app import Server
from dnnserve.catalog import ModelSpec
from dnnserve.config import ServerConfig
from dnnserve.engine.messages import Assignment
from dnnserve.engine.pipeline import LocalPipeline
from dnnserve.engine.process import EngineProcesses
from dnnserve.engine.slot import Apart, Slot
from dnnserve.envelope import ModelKey
from dnnserve.garbage import collect_seldom

from benchmarks import core_client, frame_client
from benchmarks.core_client import Taken
from benchmarks.document import Document
from benchmarks.front_end import CONNECTIONS, INFER, PAYLOADS, SPECS, FreeHost, FreeInstance, processor_ns

SLOTS = 3
LOADS = (1.5, 3.0)
CALM = 0.5
IN_FLIGHT = 64
SPEC = SPECS[0]


class Client(Protocol):
    """What is used here of a module that sends calls."""

    def keep_in_flight(
        self, address: str, method: str, message: bytes, connections: int, in_flight: int, seconds: float, /
    ) -> Taken:
        """Keep so many calls in flight for a while."""
        ...

    def send_at(
        self,
        address: str,
        method: str,
        message: bytes,
        connections: int,
        calls: Sequence[tuple[float, float | None]],
        /,
    ) -> Taken:
        """Send calls at these seconds after the start, each with its deadline."""
        ...


CLIENTS: dict[str, Client] = {"frame": frame_client, "core": core_client}


@dataclass(frozen=True, slots=True)
class Shape:
    """A device. Immutable.

    Args:
        base_s: What any batch takes.
        row_s: And each of its rows.
        max_rows: Of a batch.
        deadlines_ms: With which it is loaded, one choice after another: each request has one of them.
    """

    base_s: float
    row_s: float
    max_rows: int
    deadlines_ms: tuple[tuple[float, ...], ...]

    @property
    def capacity(self) -> float | None:
        """Rows a second in full batches; None: the device bounds nothing."""
        batch_s = self.base_s + self.max_rows * self.row_s
        return self.max_rows / batch_s if batch_s else None


SHAPES = {
    "slow": Shape(0.004, 0.002, 8, ((50.0,), (100.0,), (50.0, 100.0))),
    "quick": Shape(0.002, 0.0005, 4, ((15.0,), (15.0, 50.0, 100.0))),
    "free": Shape(0.0, 0.0, 8, ((15.0,), (50.0,), (100.0,), (15.0, 50.0, 100.0))),
}


@dataclass(frozen=True, slots=True)
class Result:
    """One load on one device. Immutable.

    Args:
        device: Its shape's name.
        front_ends: Processes that take calls; 0: the server's own does.
        load: By what can be done.
        deadlines_ms: Of the requests.
        capacity: Requests a second that can be done.
        goodput: Percent of those that were answered in time.
        late: Percent of the requests that were computed for nothing.
        rows_per_batch: On average.
        server_us, client_us: Processor time of a call.
        sleep_ms: What a sleep of 20 ms took.
        recovery_s: Seconds at `CALM` after which every request was answered in time, all of them where it never was; None: the load
            did not change.
    """

    device: str
    front_ends: int
    load: float
    deadlines_ms: tuple[float, ...]
    capacity: float
    goodput: float
    late: float
    rows_per_batch: float
    server_us: float
    client_us: float
    sleep_ms: float
    recovery_s: float | None = None

    @property
    def deadlines(self) -> str:
        """In one word."""
        return "/".join(f"{each:g}" for each in self.deadlines_ms)

    def __str__(self) -> str:
        recovery = "" if self.recovery_s is None else f"{self.recovery_s:8.2f}"
        return (
            f"{self.device:>6} {self.load:4.1f} {self.deadlines:>12} {self.capacity:8.0f} {self.goodput:8.1f} {self.late:7.2f} "
            f"{self.rows_per_batch:10.2f} {self.server_us:9.0f} {self.client_us:9.0f} {self.sleep_ms:11.1f} {recovery:>10}"
        )


HEAD = "device load deadlines/ms  rows/s goodput%   late% rows/batch server us client us 20 ms sleep recovery/s"


class SlowInstance(FreeInstance):
    """A model that takes its time. Owned by one thread; not checked."""

    def __init__(self, spec: ModelSpec, max_batch_rows: int, shape: Shape) -> None:
        super().__init__(spec, max_batch_rows)
        self._shape = shape
        self._free_s = 0.0
        self._due_s: deque[float] = deque()
        nbytes = Slot.nbytes(max_batch_rows, spec.signature)
        memory = [np.zeros(nbytes, np.uint8) for _ in range(SLOTS)]
        self.slots = tuple(Slot(each, max_batch_rows, spec.signature, spec.preprocessing) for each in memory)

    def begin(
        self, slot: int, rows: int, pixels: bool, wanted: Sequence[int], apart: Sequence[Sequence[Apart]] = ()
    ) -> None:
        """Put a batch behind those that have not ended: as on a GPU, it begins when they end, whoever hears of that late."""
        super().begin(slot, rows, pixels, wanted, apart)
        self._free_s = max(self._free_s, time.perf_counter()) + self._shape.base_s + rows * self._shape.row_s
        self._due_s.append(self._free_s)

    def finish(self) -> Mapping[int, np.ndarray]:
        """Zeros, when they are due."""
        due_s = self._due_s.popleft()
        if self._shape.capacity is not None and (left_s := due_s - time.perf_counter()) > 0:
            time.sleep(left_s)
        return super().finish()


class SlowHost(FreeHost):
    """A device of such models. Owned by one thread; not checked."""

    def __init__(self, device: str, shape: Shape) -> None:
        super().__init__(device)
        self._shape = shape

    def load(self, model: ModelKey, max_batch_rows: int) -> LocalPipeline:
        """A model of `SPECS`."""
        return LocalPipeline(SlowInstance(self._specs[model], max_batch_rows, self._shape))


def serve(device: str, front_ends: int) -> None:
    """Serve until SIGTERM; the addresses are the first line of the output."""
    shape = SHAPES[device]
    keep_freed_memory()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    config = ServerConfig(
        model=Path("unused"),
        grpc_port=0,
        metrics_port=0,
        front_ends=front_ends,
        max_batch_rows=shape.max_rows,
        lame_duck_seconds=0,
    )
    engines = EngineProcesses(["cpu"])
    engines.tell(Assignment(partial(SlowHost, shape=shape), "text"))
    server = Server(config, ("cpu",), [replace(SPEC, max_batch_rows=shape.max_rows)], engines, close=engines.close)
    server.start()
    collect_seldom()
    print(server.addresses.grpc, server.addresses.metrics, flush=True)
    signal.sigwait({signal.SIGTERM})
    server.drain()


def arrivals(
    rate: float, seconds: float, deadlines_ms: Sequence[float], start_s: float = 0.0
) -> Sequence[tuple[float, float]]:
    """When requests come, at random, so many a second, and the seconds that each may take."""
    generator, calls, at_s = random.Random(0), [], start_s
    while (at_s := at_s + generator.expovariate(rate)) < start_s + seconds:
        calls.append((at_s, generator.choice(deadlines_ms) / 1e3))
    return calls


def seconds_to_recover(missed: Sequence[float], overload_s: float) -> float:
    """After the end of an overload, until the last moment at which a request came that was not answered in time."""
    return max(0.0, max(missed, default=0.0) - overload_s)


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


class Bench:
    """A server and what it was found to do. Owned by one thread; not checked.

    Args:
        device: The shape's name.
        front_ends: Processes that take calls.
        grpc, metrics: Where it listens.
        pid: The server's process.
        client: A module that sends.
    """

    def __init__(
        self, device: str, front_ends: int, grpc: str, metrics: str, pid: int, client: Client = frame_client
    ) -> None:
        self._pid, self._client = pid, client
        self._device, self._front_ends = device, front_ends
        self._grpc, self._metrics = grpc, metrics
        self._message = PAYLOADS[0].message()
        self.capacity = SHAPES[device].capacity or 0.0

    def warm_up(self, seconds: float) -> None:
        """Let it learn what batches take, and find out what it can do where the device does not say so."""
        taken = self._client.keep_in_flight(self._grpc, INFER, self._message, CONNECTIONS, IN_FLIGHT, seconds)
        self.capacity = self.capacity or len(taken.seconds) / seconds

    def overload(self, load: float, deadlines_ms: tuple[float, ...], seconds: float, calm_s: float = 0.0) -> Result:
        """Send more than it can do, and, if there shall be a calm, a half of that for so long."""
        calls = list(arrivals(load * self.capacity, seconds, deadlines_ms))
        busy = len(calls)
        calls += arrivals(CALM * self.capacity, calm_s, deadlines_ms, seconds) if calm_s else []
        before, sleeper = rows_and_batches(self._metrics), Sleeper()
        sleeper.start()
        server_ns, client_s = processor_ns(self._pid), time.process_time()
        taken = self._client.send_at(self._grpc, INFER, self._message, CONNECTIONS, calls)
        server_ns, client_s = processor_ns(self._pid) - server_ns, time.process_time() - client_s
        sleep_ms = sleeper.mean_ms()
        rows, batches = rows_and_batches(self._metrics) - before
        in_time = busy - sum(due < seconds for due in taken.missed)
        return Result(
            self._device,
            self._front_ends,
            load,
            deadlines_ms,
            self.capacity,
            100 * in_time / self.capacity / seconds,
            100 * (rows - taken.in_time) / len(calls),
            rows / max(1, batches),
            server_ns / 1e3 / len(calls),
            client_s * 1e6 / len(calls),
            sleep_ms,
            seconds_to_recover(taken.missed, seconds) if calm_s else None,
        )


@contextmanager
def serving(device: str, front_ends: int, client: Client = frame_client) -> Iterator[Bench]:
    """A server with such a device, in a process of its own."""
    program = (
        f"from benchmarks.overload import serve; serve({device!r}, {front_ends})"  # by name: engines import it, too
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            grpc, metrics = server.stdout.readline().split()
            yield Bench(device, front_ends, grpc, metrics, server.pid, client)
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-ends", type=int, default=0, help="processes of their own (default: %(default)s)")
    parser.add_argument("--client", choices=CLIENTS, default="frame", help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each load")
    parser.add_argument("--devices", nargs="+", choices=SHAPES, default=list(SHAPES), help="which (default: all)")
    parser.add_argument("--out", type=Path, help="folder of the JSON file; without it, figures are only printed")
    options = parser.parse_args()
    document = None
    if options.out is not None:
        document = Document(
            options.out / "overload.json", ("device", "front_ends", "client", "load", "deadlines_ms", "calm_s")
        )
    print(HEAD)
    for device in options.devices:
        choices = SHAPES[device].deadlines_ms
        lines = [(load, deadlines_ms, 0.0) for load, deadlines_ms in itertools.product(LOADS, choices)]
        lines.append((LOADS[-1], choices[0], options.seconds / 2))
        with serving(device, options.front_ends, CLIENTS[options.client]) as bench:
            bench.warm_up(min(2.0, options.seconds))
            for load, deadlines_ms, calm_s in lines:
                result = bench.overload(load, deadlines_ms, options.seconds, calm_s)
                print(result, flush=True)
                if document is not None:
                    more = {"deadlines_ms": result.deadlines, "calm_s": calm_s, "seconds": options.seconds}
                    more["client"] = options.client
                    document.add([asdict(result) | more])


if __name__ == "__main__":
    main()
