"""Images a second through the server, for the demo's net: on the CPU, and on one and several GPUs where there are some.

The client runs on the same machine and in one process, so on a fast device these are figures of the Python front end and the
client, not of the kernels; `device_busy` says how much of the time the devices computed.

    python -m benchmarks.serving --out benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from dnnclient import ClosedLoop, run_load

from benchmarks.environment import environment
from benchmarks.server import RunningServer
from dnncore import devices
from dnncore.errors import BackendUnavailableError
from dnncore.nn import Package
from dnncore.nn.zoo import lenet
from dnncore.preprocessing import Preprocessing
from examples.demo import encode_png

CONCURRENCY = (1, 16, 64)


def device_sets() -> list[str]:
    """The CPU, one GPU, two, and all of them."""
    try:
        count = devices.cuda_count()
    except BackendUnavailableError:
        count = 0
    counts = sorted({n for n in (1, 2, count) if 0 < n <= count})
    return ["cpu", *(",".join(f"cuda:{i}" for i in range(n)) for n in counts)]


def untrained_package() -> Package:
    """The demo's net with fresh weights: the time does not depend on what it learned."""
    net = lenet()
    preprocessing = Preprocessing.squash("gray", 8, 8, 1 / 255, (0.5,), (0.5,))
    return Package("digits", net, net.initialize(0), preprocessing, tuple("0123456789"), {})


def measure(
    server: RunningServer, images: list[bytes], clients: int, per_request: int, seconds: float
) -> dict[str, Any]:
    """One load, with the server's own counters before and after."""

    def read() -> tuple[float, float, float]:
        names = ("dnnserve_batch_rows_sum", "dnnserve_batch_rows_count", "dnnserve_device_busy_seconds_total")
        rows, batches, busy = (sum(server.counters(name).values()) for name in names)
        return rows, batches, busy

    before, started = read(), time.monotonic()
    report = run_load(
        server.grpc,
        images,
        model="digits",
        arrivals=ClosedLoop(clients),
        duration_s=seconds,
        images_per_request=per_request,
    )
    rows, batches, busy = (b - a for a, b in zip(before, read(), strict=True))
    elapsed = time.monotonic() - started
    assert report.latency is not None
    return {
        "clients": clients,
        "images_per_request": per_request,
        "images_per_s": round(report.images_per_s, 1),
        "failed": report.num_failed,
        "mean_batch": round(rows / max(batches, 1), 2),
        "p50_ms": round(report.latency.p50 * 1e3, 3),
        "p99_ms": round(report.latency.p99 * 1e3, 3),
        "device_busy": round(busy / elapsed / len(server.devices), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each load")
    options = parser.parse_args()
    results = []
    pixels = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 1), np.uint8)
    images = [encode_png(image) for image in pixels]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "digits"
        untrained_package().save(package)
        for names in device_sets():
            with RunningServer(package, Path(folder), "--devices", names, "--max-batch", "64") as server:
                measure(server, images, 16, 1, 1.0)  # warm-up
                for clients, per_request in [*((c, 1) for c in CONCURRENCY), (16, 32)]:
                    row = {"devices": names, **measure(server, images, clients, per_request, options.seconds)}
                    results.append(row)
                    print(json.dumps(row), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    where = "cpu" if len({row["devices"] for row in results}) == 1 else "gpu"
    path = options.out / f"serving-{where}.json"
    document = {"environment": environment(), "net": "lenet", "input": "8x8 PNG", "results": results}
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
