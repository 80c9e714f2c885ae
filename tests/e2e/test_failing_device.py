"""Four emulated devices serve one model under load, one fails in the middle of it, and every request is answered rightly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dnnclient import ClosedLoop, run_load

from benchmarks.server import RunningServer
from benchmarks.serving import untrained_package
from examples.demo import encode_png
from tests.conftest import EMULATOR
from tests.e2e.emulated import use_emulator
from tests.server.packages import probabilities

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not EMULATOR, reason="faults are injected by the emulated driver: run `make test`"),
]

REQUESTS = 480


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("cuda:2 launch=300 sticky", id="sticky-error"),
        pytest.param("cuda:2 launch=300 hang", id="kernel-that-never-ends"),
        pytest.param("cuda:2 launch=300 disappear", id="device-that-disappears"),
        pytest.param(
            "cuda:2 launch=300 sticky,cuda:0 speed=0.25,cuda:1 launch_us=300", id="sticky-error-beside-slow-devices"
        ),
    ],
)
def test_every_request_is_answered_though_a_device_fails(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_emulator(monkeypatch, devices=4, build="fast", faults=fault)
    package = untrained_package()
    package.save(tmp_path / "digits")
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 1), np.uint8)
    expected = probabilities(package, package.of_images[0].normalize(pixels))

    flags = ("--devices", "cuda:0,cuda:1,cuda:2,cuda:3", "--max-batch", "4", "--batch-timeout-seconds", "2")
    with RunningServer(tmp_path / "digits", tmp_path, *flags) as server:
        images = [encode_png(image) for image in pixels]
        report = run_load(
            server.grpc, images, model="digits", arrivals=ClosedLoop(16), requests=REQUESTS, keep_results=True
        )
        healthy = {
            dict(labels)["device"]: value for labels, value in server.counters("dnnserve_device_healthy").items()
        }
    assert healthy == {"cuda:0": 1.0, "cuda:1": 1.0, "cuda:2": 0.0, "cuda:3": 1.0}, "the fault did not strike"
    assert report.statuses == {"OK": REQUESTS}
    assert list(report.results) == [int(expected[i % len(images)].argmax()) for i in range(REQUESTS)]
