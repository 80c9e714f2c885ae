"""Images a second through the server, for a real net: uint8 pixels over gRPC from client processes on the same machine.

    python -m benchmarks.throughput --net resnet50 --precision fp16 --devices cuda:0 --front-ends 0,4 --out benchmarks/results

Beside the rate stand how busy the devices were, how many cores each kind of process took, and what an executor alone does with the
largest batch, its input in host memory: that is the most that a server could reach.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from dnnserve.config import PRECISIONS
from dnnserve.engine.net import NetHost, ServedModel
from dnnserve.envelope import ModelKey

from benchmarks.core_client import keep_in_flight
from benchmarks.document import Document
from benchmarks.front_end import INFER, children_of, processor_ns, request_message
from benchmarks.server import RunningServer
from dnncore import devices
from dnncore.nn import Package
from dnncore.nn.passes import for_inference
from dnncore.nn.zoo import ZOO
from dnncore.preprocessing import preset

__all__ = ["main"]

KEY = ModelKey("net", 1)
WARM_UP_S = 2.0
CONNECTIONS = 8  # of each client process: the kernel deals them out to the front ends


@dataclass(frozen=True, slots=True)
class Setting:
    """What is tried. Immutable; its fields are those of `Result`."""

    engines: str
    front_ends: int
    rows: int


@dataclass(frozen=True, slots=True)
class Result:
    """One load. Immutable.

    Args:
        front_ends: Processes that take calls; 0: the server's own.
        engines: "process" or "thread".
        clients: Client processes.
        in_flight: Requests of each.
        rows: Images of a request.
        ready_s: From the server's start until it was ready.
        images_per_s: Answered.
        device_busy: Part of the time, mean of the devices.
        mean_rows: Of a batch.
        server_us: Processor time of all of the server's processes per image.
        cores: Processors that the scheduler's process kept busy, all front ends, all engines, and all clients; what runs in the
            server's own process counts as the scheduler's.
        p50_ms, p99_ms: From sending to answer, of the first client process.
        failed: Requests.
        in_place: Of the images' bytes, the part that devices read where front ends had put them.
    """

    front_ends: int
    engines: str
    clients: int
    in_flight: int
    rows: int
    ready_s: float
    images_per_s: float
    device_busy: float
    mean_rows: float
    server_us: float
    cores: dict[str, float]
    p50_ms: float
    p99_ms: float
    failed: int
    in_place: float


def package(net: str) -> Package:
    """A net of the zoo with fresh weights: the time does not depend on what it has learned."""
    graph = ZOO[net]()
    shape = tuple(int(extent) for extent in graph.inputs[0].shape[1:])
    return Package("net", graph, graph.initialize(0), preset("torchvision", shape), None, {})


def alone(served: ServedModel, device: str, max_batch: int, seconds: float) -> float:
    """Images a second of an executor of the largest batch, pixels in page-locked memory, without a server."""
    host = NetHost(device, {KEY: served})
    try:
        instance = host.load(KEY, max_batch).instance
        instance.slots[0].pixels[0][...] = 1
        count, end = 0, time.perf_counter() + seconds
        began = time.perf_counter()
        while time.perf_counter() < end:
            instance.begin(0, instance.max_batch_rows, True, (0,))
            instance.finish()
            count += instance.max_batch_rows
        return count / (time.perf_counter() - began)
    finally:
        host.close()


def drive(
    server: RunningServer, shape: tuple[int, ...], setting: Setting, ready_s: float, options: argparse.Namespace
) -> Result:
    """One load from all client processes; shape: of the images of a request."""
    command = [sys.executable, "-m", "benchmarks.throughput", "--load", server.grpc, "--shape", *map(str, shape)]
    command += ["--in-flight", str(options.in_flight), "--seconds", str(options.seconds)]
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(options.clients)]
    time.sleep(WARM_UP_S + options.seconds / 4)
    pids = [client.pid for client in clients]
    before, began, used_before = _counters(server), time.monotonic(), _processor_ns(server, pids)
    read_before = _input_bytes(server)
    time.sleep(options.seconds / 2)
    after, elapsed, used_after = _counters(server), time.monotonic() - began, _processor_ns(server, pids)
    reports = [json.loads(client.communicate()[0]) for client in clients]
    read = {place: nbytes - read_before[place] for place, nbytes in _input_bytes(server).items()}
    images, batches, busy = (b - a for a, b in zip(before, after, strict=True))
    used = {group: used_after[group] - ns for group, ns in used_before.items()}
    return Result(
        setting.front_ends,
        setting.engines,
        options.clients,
        options.in_flight,
        setting.rows,
        round(ready_s, 2),
        round(images / elapsed, 1),
        round(busy / elapsed / len(server.devices), 3),
        round(images / max(batches, 1), 1),
        round((sum(used.values()) - used["clients"]) / 1e3 / max(images, 1), 1),
        {group: round(ns / 1e9 / elapsed, 2) for group, ns in used.items()},
        round(reports[0]["p50_ms"], 2),
        round(reports[0]["p99_ms"], 2),
        sum(report["failed"] for report in reports),
        round(read["arena"] / max(sum(read.values()), 1), 3),
    )


def _counters(server: RunningServer) -> tuple[float, float, float]:
    """Images answered, batches run, and seconds that all devices computed."""
    names = ("dnnserve_batch_rows_sum", "dnnserve_batch_rows_count", "dnnserve_device_busy_seconds_total")
    images, batches, busy = (sum(server.counters(name).values()) for name in names)
    return images, batches, busy


def _input_bytes(server: RunningServer) -> dict[str, float]:
    """Bytes of images that all devices have read, by place."""
    places = {"arena": 0.0, "slot": 0.0}
    for labels, nbytes in server.counters("dnnserve_device_input_bytes_total").items():
        places[dict(labels)["place"]] += nbytes
    return places


def _processor_ns(server: RunningServer, clients: Sequence[int]) -> dict[str, int]:
    """What the scheduler's process, the front ends, the engines and the clients have computed so far."""
    children = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in children_of(server.pid)}
    fronts = [pid for pid, name in children.items() if name == "dnnserve-front"]
    engines = [pid for pid, name in children.items() if name == "dnnserve-engine"]
    groups = {"front_ends": fronts, "engines": engines, "clients": clients}
    used = {group: sum(map(processor_ns, pids)) for group, pids in groups.items()}
    return {"scheduler": processor_ns(server.pid, children=False), **used}


def _load(options: argparse.Namespace) -> None:
    message = request_message("net", "data", "UINT8", tuple(options.shape))
    keep_in_flight(options.load, INFER, message, CONNECTIONS, options.in_flight, WARM_UP_S)
    taken = keep_in_flight(options.load, INFER, message, CONNECTIONS, options.in_flight, options.seconds)
    p50, p99 = np.percentile(taken.seconds or [0.0], [50, 99]) * 1e3
    print(json.dumps({"answered": len(taken.seconds), "failed": taken.failed, "p50_ms": p50, "p99_ms": p99}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=sorted(ZOO), default="resnet50")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="fp16")
    parser.add_argument("--devices", default="cuda:0", metavar="LIST", help="as dnnserve has it")
    parser.add_argument("--front-ends", default="0,4", metavar="LIST", help="numbers of processes to try")
    parser.add_argument("--engines", default="process", metavar="LIST", help="process, thread or both")
    parser.add_argument("--rows", default="1", metavar="LIST", help="images of a request to try")
    parser.add_argument("--max-batch", type=int, default=128)
    parser.add_argument("--clients", type=int, default=4, help="client processes")
    parser.add_argument("--in-flight", type=int, default=128, help="requests in flight of each")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--out", type=Path, help="folder for the JSON")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--shape", type=int, nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        _load(options)
        return
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    made = package(options.net)
    assert made.preprocessing is not None
    channels, height, width = made.preprocessing.input_shape
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder, "net"))
        served = ServedModel(for_inference(made.serving_model, PRECISIONS[options.precision]), made.preprocessing)
        (device, *_) = devices.resolve(options.devices)
        most = alone(served, device, options.max_batch, 1.0)
        print(f"an executor alone: {most:.0f} images/s at batch {options.max_batch}", flush=True)
        lists = options.engines.split(","), options.front_ends.split(","), options.rows.split(",")
        for engines, fronts, rows in itertools.product(*lists):
            setting = Setting(engines, int(fronts), int(rows))
            flags = [
                "--devices",
                options.devices,
                "--precision",
                options.precision,
                "--max-batch",
                str(options.max_batch),
            ]
            flags += ["--front-ends", fronts, "--engines", engines, "--max-queue", "100000", "--lame-duck-seconds", "0"]
            began = time.monotonic()
            with RunningServer(Path(folder, "net"), Path(folder), *flags) as server:
                ready_s = time.monotonic() - began
                result = drive(server, (setting.rows, height, width, channels), setting, ready_s, options)
            print(result, flush=True)
            if options.out is not None:
                facts = {"net": options.net, "precision": options.precision, "devices": options.devices}
                row = {**facts, "executor_images_per_s": round(most, 1), **asdict(result)}
                keys = (*facts, "front_ends", "engines", "rows")
                Document(options.out / "throughput.json", keys).add([row])


if __name__ == "__main__":
    main()
