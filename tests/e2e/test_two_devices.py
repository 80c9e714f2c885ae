"""Two CUDA devices serve one model side by side, in a server process as an operator starts it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dnnclient import Client, ClosedLoop, run_load

from benchmarks.server import RunningServer
from benchmarks.serving import untrained_package
from examples.demo import encode_png
from tests.conftest import CUDA_DEVICES
from tests.e2e.emulated import use_emulator
from tests.server.fakes import wait_until
from tests.server.packages import probabilities

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.timeout(600),  # the first that serves on emulated devices compiles the kernels for servers
    pytest.mark.skipif(0 < len(CUDA_DEVICES) < 2, reason="needs two CUDA devices, this machine has one"),
]


def test_both_devices_answer_and_agree_with_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_emulator(monkeypatch, devices=2, build="fast")
    package = untrained_package()
    package.save(tmp_path / "digits")
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 1), np.uint8)
    expected = probabilities(package, package.of_images[0].normalize(pixels))

    flags = ("--devices", "cuda:0,cuda:1", "--max-batch", "4")
    with RunningServer(tmp_path / "digits", tmp_path, *flags) as server:
        assert server.devices == ["cuda:0", "cuda:1"]
        images = [encode_png(image) for image in pixels]

        def both_have_been_busy() -> bool:
            report = run_load(server.grpc, images, model="digits", arrivals=ClosedLoop(12), requests=96)
            assert report.num_failed == 0
            busy = server.counters("dnnserve_device_busy_seconds_total")
            return {dict(labels)["device"] for labels, seconds in busy.items() if seconds > 0} == {"cuda:0", "cuda:1"}

        wait_until(both_have_been_busy)  # where cores are few, the thread of one may not run before all is answered
        with Client(server.grpc, model="digits") as client:
            answers = [a for i in range(0, 24, 4) for a in client.classify(images[i : i + 4], top_k=10)]
    found = np.zeros_like(expected)
    for row, answer in enumerate(answers):
        for prediction in answer.predictions:
            found[row, prediction.index] = prediction.probability
    assert np.abs(found - expected).max() < 1e-5
