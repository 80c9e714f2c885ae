"""What a request costs the server: processor time and requests a second, with each front end and a model that is free.

The server is a process of its own whose device copies rows, as every device does, and answers zeros. The client, in this process,
keeps so many requests in flight over four connections, and sends bytes that were made once.

    python -m benchmarks.front_end
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from dnnserve.allocator import keep_freed_memory
from dnnserve.app import Server
from dnnserve.catalog import ModelSpec
from dnnserve.config import ServerConfig
from dnnserve.engine.host import Buffers, Host
from dnnserve.engine.slot import Slot
from dnnserve.envelope import ModelKey

from benchmarks.environment import environment
from dnncore.preprocessing import preset

PROCESSES = "processes"
FRONT_ENDS = ("fast", "public", PROCESSES)
"""The lane and grpcio's own server in the server's process, and two processes of the lane."""
IN_FLIGHT = (1, 16, 64)
CLASSES = 10
CONNECTIONS = 4
MAX_ROWS = 32
_METHOD = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True, slots=True)
class Payload:
    """What a request carries. Immutable."""

    name: str
    model: str
    datatype: str
    shape: tuple[int, ...]

    def message(self) -> bytes:
        """A serialized request."""
        request = inference.ModelInferRequest(model_name=self.model, id="1")
        request.inputs.add(name="data", datatype=self.datatype, shape=self.shape)
        dtype = {"FP32": np.float32, "UINT8": np.uint8}[self.datatype]
        request.raw_input_contents.append(np.ones(self.shape, dtype).tobytes())
        return bytes(request.SerializeToString())


PAYLOADS = (
    Payload("1 KB fp32", "tiny", "FP32", (1, 1, 16, 16)),
    Payload("150 KB uint8", "image", "UINT8", (1, 224, 224, 3)),
    Payload("602 KB fp32", "image", "FP32", (1, 3, 224, 224)),
)
SPECS = tuple(
    ModelSpec(ModelKey(name, 1), "data", shape, "scores", CLASSES, (), preprocessing, MAX_ROWS)
    for name, shape, preprocessing in (
        ("tiny", (1, 16, 16), None),
        ("image", (3, 224, 224), preset("torchvision", (3, 224, 224))),
    )
)


@dataclass(frozen=True, slots=True)
class Result:
    """One load on one server. Immutable."""

    front_end: str
    payload: str
    in_flight: int
    requests_per_s: float
    server_us: float
    p50_ms: float
    p99_ms: float
    failed: int


class FreeInstance:
    """A model that costs the copy of its rows and nothing else. Owned by one thread; not checked."""

    output_shape = (CLASSES,)
    computed_ns = 0

    def __init__(self, spec: ModelSpec, max_batch_rows: int) -> None:
        self.max_batch_rows = max_batch_rows
        memory = np.zeros(Slot.nbytes(max_batch_rows, spec.input_shape), np.uint8)
        self.slots = (Slot(memory, max_batch_rows, spec.input_shape, spec.preprocessing),)
        self._outputs = np.zeros((max_batch_rows, CLASSES), np.float32)
        self._begun = 0

    def begin(self, slot: int, rows: int, pixels: bool) -> None:  # noqa: ARG002 - as the Protocol has it
        """Remember how many."""
        self._begun = rows

    def finish(self) -> np.ndarray:
        """Zeros."""
        return self._outputs[: self._begun]


class FreeHost(Host):
    """A device of such models. Owned by one thread; not checked."""

    def __init__(self, _device: str) -> None:
        self._specs = {spec.key: spec for spec in SPECS}

    def load(self, model: ModelKey, max_batch_rows: int, buffers: Buffers | None = None) -> FreeInstance:  # noqa: ARG002
        """A model of `SPECS`."""
        return FreeInstance(self._specs[model], max_batch_rows)

    def on_loss(self, act: Callable[[], None]) -> None:
        """It is never lost."""

    def kill(self) -> bool:
        """Nothing hangs."""
        return False

    def close(self) -> None:
        """Nothing is open."""


def serve(front_end: str) -> None:
    """Serve until SIGTERM; the address is the first line of the output."""
    keep_freed_memory()  # as dnnserve's command does
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    config = ServerConfig(
        model=Path("unused"),
        grpc_port=0,
        metrics_port=0,
        front_end="fast" if front_end == PROCESSES else front_end,
        front_ends=2 if front_end == PROCESSES else 0,
        max_batch_rows=MAX_ROWS,
        lame_duck_seconds=0,
    )
    server = Server(config, ("cpu",), SPECS, FreeHost)
    server.start()
    print(server.addresses.grpc, flush=True)
    signal.sigwait({signal.SIGTERM})
    server.drain()


@contextmanager
def running(front_end: str) -> Iterator[tuple[int, str]]:
    """A server in a process of its own: its process id and its address."""
    command = [sys.executable, "-m", "benchmarks.front_end", "--serve", front_end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.terminate()


def processor_ns(pid: int) -> int:
    """What all threads of a process and of its children have computed so far."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
            children = (task / "children").read_text().split()
        except FileNotFoundError:  # it ended
            continue
        total += sum(map(processor_ns, map(int, children)))
    return total


async def load(address: str, message: bytes, in_flight: int, seconds: float) -> tuple[list[float], int]:
    """Keep so many requests in flight: the seconds that each answered one took, and the number of those that failed."""
    channels = [
        grpc.aio.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        )
        for _ in range(min(CONNECTIONS, in_flight))
    ]
    calls = [channel.unary_unary(_METHOD, None, None) for channel in channels]
    taken: list[float] = []
    failed = 0
    end = time.perf_counter() + seconds

    async def one_after_the_other(number: int) -> None:
        nonlocal failed
        call = calls[number % len(calls)]
        while (started := time.perf_counter()) < end:
            try:
                await call(message)
            except grpc.RpcError:
                failed += 1
            else:
                taken.append(time.perf_counter() - started)

    await asyncio.gather(*map(one_after_the_other, range(in_flight)))
    for channel in channels:
        await channel.close(None)
    return taken, failed


def measure(pid: int, address: str, front_end: str, payload: Payload, in_flight: int, seconds: float) -> Result:
    """One load after a short one that warms everything up."""
    message = payload.message()
    asyncio.run(load(address, message, in_flight, seconds / 4))
    before, started = processor_ns(pid), time.perf_counter()
    taken, failed = asyncio.run(load(address, message, in_flight, seconds))
    elapsed, used_us = time.perf_counter() - started, (processor_ns(pid) - before) / 1e3
    p50, p99 = np.percentile(taken, [50, 99]) * 1e3
    rate = len(taken) / elapsed
    server_us = round(used_us / len(taken), 1)
    return Result(
        front_end,
        payload.name,
        in_flight,
        round(rate, 1),
        server_us,
        round(float(p50), 3),
        round(float(p99), 3),
        failed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", choices=FRONT_ENDS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    parser.add_argument("--front-end", choices=FRONT_ENDS, action="append", help="one alone")
    parser.add_argument("--out", type=Path, help="folder for the JSON")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    results = []
    print(
        f"{'front end':10} {'payload':13} {'in flight':>9} {'requests/s':>10} {'server us':>9} {'p50 ms':>8} {'p99 ms':>8}"
    )
    for front_end in options.front_end or FRONT_ENDS:
        with running(front_end) as (pid, address):
            for payload, in_flight in itertools.product(PAYLOADS, IN_FLIGHT):
                result = measure(pid, address, front_end, payload, in_flight, options.seconds)
                results.append(asdict(result))
                print(
                    f"{front_end:10} {payload.name:13} {in_flight:9} {result.requests_per_s:10.0f} {result.server_us:9.1f} "
                    f"{result.p50_ms:8.2f} {result.p99_ms:8.2f}"
                    + (f"  {result.failed} failed" if result.failed else ""),
                    flush=True,
                )
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        document = {"environment": environment(), "connections": CONNECTIONS, "results": results}
        (options.out / "front-end.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
