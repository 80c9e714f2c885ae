"""What a request costs the server: processor time and requests a second, with each front end and a model that is free.

The server is a process of its own whose device copies rows, as every device does, and answers zeros. The client, in this process,
keeps so many requests in flight over four connections, and sends bytes that were made once; then it sends half as many requests a
second at equal intervals, for the 99th percentile of the time that each took: of several servers half as many as the slowest took,
the same number to each.

    python -m benchmarks.front_end

With a peer, another server of the Open Inference Protocol, the two are measured in turns:

    python -m benchmarks.front_end --front-end fast --in-flight 64 --peer 'COMMAND' --peer-address 127.0.0.1:9501

COMMAND starts it, and what it serves are free models `tiny`, `image` and `large` of one input: some numbers, 150,528 uint8 and
150,528 float32. What requests look like is asked of the peer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc
import numpy as np
from dnnapi.inference import grpc_service_pb2 as inference
from dnnapi.inference import grpc_service_pb2_grpc as inference_grpc
from dnnserve.allocator import keep_freed_memory
from dnnserve.app import Server
from dnnserve.catalog import ModelSpec
from dnnserve.config import ServerConfig
from dnnserve.engine.host import Fresh, Host
from dnnserve.engine.pipeline import LocalPipeline
from dnnserve.engine.slot import Apart, Slot
from dnnserve.envelope import ModelKey
from dnnserve.garbage import collect_seldom
from dnnserve.signature import Signature, TensorSpec

from benchmarks.core_client import keep_in_flight, send_at_rate
from benchmarks.environment import environment
from dnncore.dtypes import DType
from dnncore.preprocessing import preset

PEER = "peer"
PROCESSES = "processes"
FRONT_ENDS = ("fast", "public", PROCESSES)
"""The lane and grpcio's own server in the server's process, and two processes of the lane."""
IN_FLIGHT = (1, 16, 64)
CLASSES = 10
CONNECTIONS = 4
MAX_ROWS = 32
INFER = "/inference.GRPCInferenceService/ModelInfer"
_DTYPES = {"FP32": np.float32, "UINT8": np.uint8}
_READY_S = 60.0


def request_message(model: str, name: str, datatype: str, shape: Sequence[int]) -> bytes:
    """A serialized request for a model of one input."""
    request = inference.ModelInferRequest(model_name=model, id="1")
    request.inputs.add(name=name, datatype=datatype, shape=shape)
    request.raw_input_contents.append(np.ones(shape, _DTYPES[datatype]).tobytes())
    return bytes(request.SerializeToString())


@dataclass(frozen=True, slots=True)
class Payload:
    """What a request carries. Immutable.

    Args:
        name: Of the row in the table.
        model: Ours.
        peer_model: The peer's, which takes about as many bytes.
        datatype: Of our model's input.
        shape: Of that.
    """

    name: str
    model: str
    peer_model: str
    datatype: str
    shape: tuple[int, ...]

    def message(self) -> bytes:
        """A serialized request to our server."""
        return request_message(self.model, "data", self.datatype, self.shape)

    def peer_message(self, address: str) -> bytes:
        """A serialized request as the peer's model wants it."""
        with grpc.insecure_channel(address) as channel:
            stub = inference_grpc.GRPCInferenceServiceStub(channel)
            model = stub.ModelMetadata(inference.ModelMetadataRequest(name=self.peer_model))
        (tensor,) = model.inputs
        return request_message(self.peer_model, tensor.name, tensor.datatype, [max(1, e) for e in tensor.shape])


PAYLOADS = (
    Payload("1 KB fp32", "tiny", "tiny", "FP32", (1, 1, 16, 16)),
    Payload("150 KB uint8", "image", "image", "UINT8", (1, 224, 224, 3)),
    Payload("602 KB fp32", "image", "large", "FP32", (1, 3, 224, 224)),
)
SPECS = tuple(
    ModelSpec(
        ModelKey(name, 1),
        Signature(
            (TensorSpec("data", DType.FLOAT32, shape),),
            (TensorSpec("scores", DType.FLOAT32, (CLASSES,)),),
        ),
        (),
        preprocessing,
        MAX_ROWS,
    )
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
    half_rate: float
    half_rate_p99_ms: float
    failed: int


class FreeInstance:
    """A model that costs the copy of its rows and nothing else. Owned by one thread; not checked."""

    computed_ns = 0

    def __init__(self, spec: ModelSpec, max_batch_rows: int) -> None:
        self.max_batch_rows = max_batch_rows
        self.signature = spec.signature
        memory = np.zeros(Slot.nbytes(max_batch_rows, spec.signature), np.uint8)
        self.slots: tuple[Slot, ...] = (Slot(memory, max_batch_rows, spec.signature, spec.preprocessing),)
        self._outputs = np.zeros((max_batch_rows, CLASSES), np.float32)
        self._begun: deque[int] = deque()

    def begin(
        self,
        slot: int,  # noqa: ARG002 - as the Protocol has it; so the rest
        rows: int,
        pixels: bool,  # noqa: ARG002
        wanted: Sequence[int],  # noqa: ARG002
        apart: Sequence[Sequence[Apart]] = (),  # noqa: ARG002
    ) -> None:
        """Remember how many."""
        self._begun.append(rows)

    def finish(self) -> Mapping[int, np.ndarray]:
        """Zeros."""
        return {0: self._outputs[: self._begun.popleft()]}


class FreeHost(Host):
    """A device of such models. Owned by one thread; not checked."""

    def __init__(self, _device: str) -> None:
        self._specs = {spec.key: spec for spec in SPECS}

    def load(self, model: ModelKey, max_batch_rows: int) -> LocalPipeline:
        """A model of `SPECS`."""
        return LocalPipeline(FreeInstance(self._specs[model], max_batch_rows))

    def begin_load(self, model: ModelKey, max_batch_rows: int, warm_up_ns: int) -> None:
        """No model comes later."""
        raise NotImplementedError

    def loaded(self, model: ModelKey) -> Fresh | None:
        """As above."""
        raise NotImplementedError

    def unload(self, model: ModelKey) -> None:
        """Nor goes."""
        raise NotImplementedError

    def watch(self, on_end: Callable[[], None], on_loss: Callable[[], None]) -> None:
        """It is never lost."""

    def look(self) -> None:
        """It is there."""

    def kill(self) -> bool:
        """Nothing hangs."""
        return False

    def close(self) -> None:
        """Nothing is open."""


def serve(front_end: str) -> None:
    """Serve until SIGTERM; the address is the first line of the output."""
    keep_freed_memory()  # as dnnserve's command does; so collect_seldom
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
    collect_seldom()
    print(server.addresses.grpc, flush=True)
    signal.sigwait({signal.SIGTERM})
    server.drain()


@dataclass(frozen=True, slots=True)
class Running:
    """A server in a process of its own. Immutable."""

    front_end: str
    pid: int
    address: str

    def message(self, payload: Payload) -> bytes:
        """A serialized request to it."""
        return payload.peer_message(self.address) if self.front_end == PEER else payload.message()


@contextmanager
def running(front_end: str) -> Iterator[Running]:
    """One of our servers, until the end of the block."""
    command = [sys.executable, "-m", "benchmarks.front_end", "--serve", front_end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Running(front_end, process.pid, process.stdout.readline().strip())
        finally:
            process.terminate()


@contextmanager
def running_peer(command: str, address: str) -> Iterator[Running]:
    """The peer, once it says that it is ready, until the end of the block."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(shlex.split(command), stdout=quiet, stderr=quiet, start_new_session=True) as process:
        try:
            with grpc.insecure_channel(address) as channel:
                stub = inference_grpc.GRPCInferenceServiceStub(channel)
                deadline = time.monotonic() + _READY_S
                while not stub.ServerReady(
                    inference.ServerReadyRequest(), timeout=deadline - time.monotonic(), wait_for_ready=True
                ).ready:
                    time.sleep(0.1)
            yield Running(PEER, process.pid, address)
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def processor_ns(pid: int, *, children: bool = True) -> int:
    """What all threads of a process, and of its children, have computed so far."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # it ended
            total += int((task / "schedstat").read_text().split()[0])
    return total + sum(map(processor_ns, children_of(pid) if children else ()))


def children_of(pid: int) -> Sequence[int]:
    """The processes that a process has started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):
            found += map(int, (task / "children").read_text().split())
    return found


@dataclass(frozen=True, slots=True)
class Full:
    """What a server took with as many requests in flight as there may be. Immutable."""

    requests_per_s: float
    server_us: float
    p50_ms: float
    p99_ms: float
    failed: int


def full_load(server: Running, message: bytes, in_flight: int, seconds: float) -> Full:
    """A load after a short one that warms everything up."""
    keep_in_flight(server.address, INFER, message, CONNECTIONS, in_flight, seconds / 4)
    before, started = processor_ns(server.pid), time.perf_counter()
    taken = keep_in_flight(server.address, INFER, message, CONNECTIONS, in_flight, seconds)
    elapsed, used_us = time.perf_counter() - started, (processor_ns(server.pid) - before) / 1e3
    p50_ms, p99_ms = (float(value) for value in np.percentile(taken.seconds, [50, 99]) * 1e3)
    answered = len(taken.seconds)
    return Full(answered / elapsed, used_us / answered, p50_ms, p99_ms, taken.failed)


def measure(servers: Sequence[Running], payload: Payload, in_flight: int, seconds: float) -> Iterator[Result]:
    """Servers in turns: each as much as it takes, then all half of what the slowest took."""
    messages = [server.message(payload) for server in servers]
    fulls = [full_load(*each, in_flight, seconds) for each in zip(servers, messages, strict=True)]
    half_rate = min(full.requests_per_s for full in fulls) / 2
    for server, message, full in zip(servers, messages, fulls, strict=True):
        half = send_at_rate(server.address, INFER, message, min(CONNECTIONS, in_flight), half_rate, seconds)
        yield Result(
            server.front_end,
            payload.name,
            in_flight,
            round(full.requests_per_s, 1),
            round(full.server_us, 1),
            round(full.p50_ms, 3),
            round(full.p99_ms, 3),
            round(half_rate, 1),
            round(float(np.percentile(half.seconds, 99)) * 1e3, 3),
            full.failed + half.failed,
        )


def line(result: Result) -> str:
    """A row of the table."""
    return (
        f"{result.front_end:10} {result.payload:13} {result.in_flight:9} {result.requests_per_s:10.0f} {result.server_us:9.1f} "
        f"{result.p50_ms:8.2f} {result.p99_ms:8.2f} {result.half_rate_p99_ms:12.2f}"
        + (f"  {result.failed} failed" if result.failed else "")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", choices=FRONT_ENDS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    parser.add_argument("--front-end", choices=FRONT_ENDS, action="append", help="one alone")
    parser.add_argument("--in-flight", type=int, action="append", help="so many requests alone")
    parser.add_argument("--rounds", type=int, default=1, help="how often the servers of a row take turns")
    parser.add_argument("--peer", metavar="COMMAND", help="starts another server, which is measured beside ours")
    parser.add_argument(
        "--peer-address", metavar="HOST:PORT", default="127.0.0.1:8001", help="where that listens for gRPC"
    )
    parser.add_argument("--out", type=Path, help="folder for the JSON")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    results = []
    print(
        f"{'front end':10} {'payload':13} {'in flight':>9} {'requests/s':>10} {'server us':>9} {'p50 ms':>8} {'p99 ms':>8} "
        f"{'p99 at half':>12}"
    )
    for front_end in options.front_end or FRONT_ENDS:
        with ExitStack() as stack:
            servers = [stack.enter_context(running(front_end))]
            if options.peer:
                servers.append(stack.enter_context(running_peer(options.peer, options.peer_address)))
            rows = itertools.product(PAYLOADS, options.in_flight or IN_FLIGHT, range(options.rounds))
            for payload, in_flight, _ in rows:
                for result in measure(servers, payload, in_flight, options.seconds):
                    results.append(asdict(result))
                    print(line(result), flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        document = {"environment": environment(), "connections": CONNECTIONS, "results": results}
        (options.out / "front-end.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
