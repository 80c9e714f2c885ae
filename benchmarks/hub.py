"""What a request costs the process between front ends and engines: processor time per request, by process.

Front ends here speak no gRPC: each keeps so many requests in flight and counts their calls, as a real one does, and the engine's
model is free. What is left is the way of a request through the scheduler's process and back.

    python -m benchmarks.hub --front-ends 1,8 --rows 1,8
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from dnnserve.channel import messages
from dnnserve.channel.remote import RemoteScheduler, RemoteStatistics
from dnnserve.config import ServerConfig
from dnnserve.engine.messages import Assignment
from dnnserve.engine.process import EngineProcesses, ProcessHost
from dnnserve.engine.runner import Runner
from dnnserve.envelope import Completion, InferenceRequest, OwnBlock
from dnnserve.front.child import FrontAssignment
from dnnserve.front.processes import FrontProcesses
from dnnserve.garbage import collect_seldom
from dnnserve.metrics import Metrics
from dnnserve.processes.arena import Arena
from dnnserve.processes.child import Children, begin, told
from dnnserve.processes.link import Link
from dnnserve.questions import Answer, Question
from dnnserve.scheduler import Scheduler
from dnnserve.scheduling.entry import Limits
from dnnserve.statistics import Statistics

from benchmarks.environment import environment
from benchmarks.front_end import SPECS, FreeHost, processor_ns

WARM_UP_S = 1.0
MAX_ROWS = 128
"""Of a batch, as a GPU is given them."""


@dataclass(frozen=True, slots=True)
class Result:
    """One load. Immutable.

    Args:
        front_ends: Processes.
        model: Of `benchmarks.front_end.SPECS`.
        rows: Of a request.
        requests_per_s: Answered.
        batch_rows: Mean of the batches.
        hub_us: Processor time of the scheduler's process per request.
        front_ends_us: Of all front ends, without gRPC.
        engine_us: Of the engine.
    """

    front_ends: int
    model: str
    rows: int
    requests_per_s: float
    batch_rows: float
    hub_us: float
    front_ends_us: float
    engine_us: float


class Front:
    """A front end whose clients are in it. Thread-safe.

    Args:
        link: To the scheduler.
        assignment: As a real one's.
        pixels: The rows of every request.
        in_flight: Requests.
    """

    def __init__(self, link: Link, assignment: FrontAssignment, model: str, rows: int, in_flight: int) -> None:
        self._link = link
        (self._spec,) = (spec for spec in SPECS if spec.key.name == model)
        self._pixels = self._spec.preprocessing is not None
        (tensor,) = self._spec.signature.read(pixels=self._pixels)
        self._rows = (np.ones((rows, *tensor.shape), tensor.dtype.numpy),)
        self._in_flight = in_flight
        arena = Arena.of(assignment.arena_bytes)
        link.send(messages.Arena(assignment.arena_bytes), [arena.fd])
        self._scheduler = RemoteScheduler(link, arena, time.monotonic_ns)
        self._statistics = RemoteStatistics(link)
        self._stopping = False

    def run(self) -> None:
        """Do what comes until the other end is closed."""
        while (received := self._link.receive()) is not None:
            message, _ = received
            if type(message) is tuple:
                self._scheduler.complete(message)
            elif isinstance(message, messages.Start):
                self._scheduler.serve(message.models)
                self._link.send(messages.Started("fast"))
                threading.Thread(target=self._fill, daemon=True).start()
            elif isinstance(message, messages.Count):
                self._link.send(messages.Inside(0))
            elif isinstance(message, messages.Stop):
                self._stopping = True
                self._link.send(messages.Stopped())

    def _fill(self) -> None:
        for _ in range(self._in_flight):
            self._submit()

    def _submit(self) -> None:
        now_ns = time.monotonic_ns()
        block = OwnBlock(self._rows, pixels=self._pixels)
        self._scheduler.submit(InferenceRequest(self._spec.key, block, now_ns, now_ns + 60_000_000_000, self._deliver))

    def _deliver(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            taken_ns = completion.finished_ns - completion.request.arrival_ns
            self._statistics.record_calls(self._spec.key, "ModelInfer", "OK", (taken_ns,))
            if not self._stopping:
                self._submit()


class NoControl:
    """Nobody asks it. Thread-safe."""

    def ask(self, question: Question, answer: Callable[[Answer], None]) -> None:
        """Nothing is answered."""
        raise NotImplementedError


def front(options: argparse.Namespace) -> None:
    """Be a front end until the hub closes its end."""
    link = begin(options.front, "dnnserve-front")
    assignment: Any = told(link)
    Front(link, assignment, options.model, options.rows, options.in_flight).run()


def hub(options: argparse.Namespace) -> None:
    """Be the scheduler's process for a while; prints the result."""
    specs = [replace(spec, max_batch_rows=MAX_ROWS) for spec in SPECS if spec.key.name == options.model]
    keys = [spec.key for spec in specs]
    statistics, metrics = Statistics(keys), Metrics(keys)
    scheduler = Scheduler(recorders=[statistics.record, metrics.record], observers=[metrics.observe_batch])
    engines = EngineProcesses(["cpu"])
    engines.tell(Assignment(FreeHost, "text"))
    runner = Runner("cpu", "cpu", dict.fromkeys(keys, MAX_ROWS), engines, scheduler)
    scheduler.start()
    runner.start()
    runner.wait_loaded()
    for key in keys:
        scheduler.add_model(key, Limits(MAX_ROWS, 100_000))
    own = ("--model", options.model, "--rows", str(options.rows), "--in-flight", str(options.in_flight), "--front")
    config = ServerConfig(
        model=Path("unused"), grpc_port=0, front_end="fast", front_ends=options.front_ends, front_memory_mib=128
    )
    fronts = FrontProcesses(
        *(config, scheduler, statistics, metrics.record_calls, metrics.record_refused_connections, NoControl()),
        Children("benchmarks.hub", *own),
    )
    fronts.start(specs)

    host = runner._host
    assert isinstance(host, ProcessHost)

    def counters() -> np.ndarray:
        processes = [each.pid for each in fronts._all()]
        found = statistics.snapshot(keys[0])
        used = [time.process_time_ns(), sum(map(processor_ns, processes)), processor_ns(host.pid)]
        return np.array([found.success.count, found.execution_count, found.inference_count, time.monotonic_ns(), *used])

    collect_seldom()
    time.sleep(WARM_UP_S)
    before = counters()
    time.sleep(options.seconds)
    requests, batches, rows, elapsed_ns, *used_ns = counters() - before
    per_request = [round(each / requests / 1e3, 1) for each in used_ns]
    result = Result(
        *(options.front_ends, options.model, options.rows, round(requests / elapsed_ns * 1e9, 1)),
        *(round(rows / batches, 1), *per_request),
    )
    print(json.dumps(asdict(result)), flush=True)
    fronts.stop(0.0)
    scheduler.stop()
    runner.join(5.0)
    engines.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-ends", default="1,8", metavar="LIST", help="numbers of processes to try")
    parser.add_argument("--rows", default="1,8", metavar="LIST", help="rows of a request to try")
    parser.add_argument("--model", choices=[spec.key.name for spec in SPECS], default="image")
    parser.add_argument("--in-flight", type=int, default=512, help="images in flight, of all front ends")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path, help="folder for the JSON")
    parser.add_argument("--hub", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--front", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hub or options.front:
        options.front_ends, options.rows = int(options.front_ends.split(",")[0]), int(options.rows)
        front(options) if options.front else hub(options)
        return
    results = []
    print("front ends   rows   requests/s   rows of a batch   hub us   front ends us   engine us")
    for fronts, rows in itertools.product(options.front_ends.split(","), options.rows.split(",")):
        command = [sys.executable, "-m", "benchmarks.hub", "--hub", "--front-ends", fronts, "--rows", rows]
        command += ["--model", options.model, "--in-flight", str(max(1, options.in_flight // int(fronts) // int(rows)))]
        command += ["--seconds", str(options.seconds)]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        results.append(found)
        print(
            f"{fronts:>10} {rows:>6} {found['requests_per_s']:12.0f} {found['batch_rows']:17.1f} {found['hub_us']:8.1f} "
            f"{found['front_ends_us']:15.1f} {found['engine_us']:11.1f}",
            flush=True,
        )
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        document = {"environment": environment(), "in_flight": options.in_flight, "results": results}
        (options.out / "hub.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
