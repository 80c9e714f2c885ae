"""`make demo`: train a digit classifier, serve it, classify the held-out images over gRPC, and say what was measured.

Every step is a command that a user types: `dnntrain`, `dnnserve`, and the client library's load generator. Exits with 1 if the
served predictions differ from those of the training script's own evaluation.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from dnnclient import ClosedLoop, LoadReport, run_load
from PIL import Image

from benchmarks.server import RunningServer, run_command
from dnncore.nn import Package
from dnncore.train.data.digits import Digits

CONFIG = Path(__file__).with_name("digits.toml")
CLIENTS = 16
PASSES = 10
"""Times that each held-out image is sent, so that the rate is measured over a few thousand requests."""


def main() -> int:
    started = time.monotonic()
    run = Path("runs/digits")
    print("1. training\n", flush=True)
    run_command("dnntrain", str(CONFIG), f"output.run={run}", "--fresh")
    package = Package.load(run / "package")
    evaluation = json.loads((run / "evaluation.json").read_text())

    print("\n2. serving, and classifying the held-out images, one per request\n", flush=True)
    images = held_out_images(package)
    with tempfile.TemporaryDirectory() as folder, RunningServer(run / "package", Path(folder)) as server:
        print(f"   gRPC on {server.grpc}, metrics at {server.metrics}", flush=True)
        report = run_load(
            server.grpc,
            images,
            model=package.name,
            arrivals=ClosedLoop(CLIENTS),
            requests=PASSES * len(images),
            keep_results=True,
        )
        mean_batch = server.mean_batch_rows()
        devices = ", ".join(server.devices)
    print_report(report, evaluation, mean_batch, devices, time.monotonic() - started)
    expected = evaluation["predictions"] * PASSES
    if list(report.results) != expected:
        wrong = sum(a != b for a, b in zip(report.results, expected, strict=False)) + abs(
            len(expected) - len(report.results)
        )
        print(
            f"FAILED: {wrong} of {len(expected)} answers differ from the training script's evaluation", file=sys.stderr
        )
        return 1
    return 0


def held_out_images(package: Package) -> list[bytes]:
    """The images that the package's provenance says were held out, as PNG files."""
    split = package.provenance["split"]
    pixels = Digits().read(np.asarray(split["held_out"]))
    return [encode_png(image) for image in pixels]


def encode_png(pixels: np.ndarray) -> bytes:
    """Encode uint8 [H, W, 1] losslessly."""
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0]).save(file, "PNG")
    return file.getvalue()


def print_report(
    report: LoadReport, evaluation: dict[str, object], mean_batch: float, devices: str, seconds: float
) -> None:
    labels = evaluation["labels"]
    assert isinstance(labels, list)
    assert report.latency is not None
    first = report.results[: len(labels)]
    served = sum(a == b for a, b in zip(first, labels, strict=True)) / len(labels)
    print(
        f"""
   trained accuracy   {evaluation["top1"]:.2%} of {len(labels)} held-out images
   served accuracy    {served:.2%}
   requests           {report.num_answered} answered, {report.num_failed} failed, from {CLIENTS} concurrent clients
   throughput         {report.images_per_s:,.0f} images/s
   mean batch         {mean_batch:.2f} images
   latency            p50 {report.latency.p50 * 1e3:.2f} ms, p99 {report.latency.p99 * 1e3:.2f} ms
   devices            {devices}
   everything         {seconds:.0f} s; the server has stopped; the model is in runs/digits/package"""
    )


if __name__ == "__main__":
    sys.exit(main())
