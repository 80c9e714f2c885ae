"""Three emulated devices serve one model under load, one fails in the middle of it, and every request is answered rightly."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from dnnclient import ClosedLoop, run_load

from benchmarks.server import RunningServer
from benchmarks.serving import untrained_package
from examples.demo import encode_png
from tests.conftest import EMULATOR
from tests.e2e.emulated import use_emulator
from tests.processes import children
from tests.server.fakes import wait_until
from tests.server.packages import probabilities

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.timeout(600),  # the first that serves on emulated devices compiles the kernels for servers
    pytest.mark.skipif(not EMULATOR, reason="faults are injected by the emulated driver: run `make test`"),
]

REQUESTS = 360
DEVICES = ("cuda:0", "cuda:1", "cuda:2")
FLAGS = ("--devices", ",".join(DEVICES), "--max-batch", "4")


THREAD = "--engines=thread"
PROCESS = "--engines=process"


@pytest.mark.parametrize("engines", [THREAD, PROCESS])
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
    engines: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_emulator(monkeypatch, devices=len(DEVICES), build="fast", faults=fault)
    load = Load(tmp_path)
    # A device that hangs is given up after so long. Others have the default: a machine under load is slow, but has not failed.
    patience = ("--batch-timeout-seconds", "5") if "hang" in fault else ()
    with RunningServer(tmp_path / "digits", tmp_path, *FLAGS, engines, *patience) as server:
        load.run(server)
        if engines == PROCESS:  # it comes back, as a process that has launched nothing yet
            wait_until(lambda: load.healthy(server) == dict.fromkeys(DEVICES, 1.0))
            assert load.restarts(server)["cuda:2"] >= 1, "the fault did not strike"
        else:
            assert load.healthy(server) == {**dict.fromkeys(DEVICES, 1.0), "cuda:2": 0.0}, "the fault did not strike"


@pytest.mark.parametrize("engines", [THREAD, PROCESS])
def test_every_request_is_answered_though_a_device_has_no_memory_for_a_batch(
    engines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_emulator(monkeypatch, devices=len(DEVICES), build="fast", faults="cuda:2 enqueue=55 oom")
    load = Load(tmp_path)
    with RunningServer(tmp_path / "digits", tmp_path, *FLAGS, engines) as server:
        load.run(server)
        (repeats,) = server.counters("dnnserve_repeated_requests_total").values()
        assert 1 <= repeats <= 4, "the fault did not strike, or not one batch"
        assert load.healthy(server) == dict.fromkeys(DEVICES, 1.0)
        assert load.restarts(server) == dict.fromkeys(DEVICES, 0.0)


def test_every_request_is_answered_though_engines_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_emulator(monkeypatch, devices=len(DEVICES), build="fast")
    load = Load(tmp_path)
    with RunningServer(tmp_path / "digits", tmp_path, *FLAGS, PROCESS) as server:
        victims = children(server.pid)
        assert len(victims) == len(DEVICES)
        with ThreadPoolExecutor(1) as pool:
            killed = pool.submit(load.kill_one_after_another, server, victims[:2])
            while not killed.done():
                load.run(server)
            killed.result()
    assert not [pid for pid in children(os.getpid()) if pid in victims]


class Load:
    """The same images again and again, from 16 clients, each answer compared with the net's own."""

    def __init__(self, folder: Path) -> None:
        package = untrained_package()
        package.save(folder / "digits")
        pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 1), np.uint8)
        self._images = [encode_png(image) for image in pixels]
        self._expected = probabilities(package, package.of_images[0].normalize(pixels)).argmax(axis=1)
        self.underway = threading.Event()

    def run(self, server: RunningServer) -> None:
        self.underway.set()
        report = run_load(
            *(server.grpc, self._images), model="digits", arrivals=ClosedLoop(16), requests=REQUESTS, keep_results=True
        )
        assert report.statuses == {"OK": REQUESTS}
        assert list(report.results) == [int(self._expected[i % len(self._images)]) for i in range(REQUESTS)]

    def kill_one_after_another(self, server: RunningServer, victims: Sequence[int]) -> None:
        """Once the last one is back: a request that loses a second device is answered so."""
        self.underway.wait()
        for count, victim in enumerate(victims, start=1):
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda count=count: sum(self.restarts(server).values()) == count)  # type: ignore[misc]
            wait_until(lambda: self.healthy(server) == dict.fromkeys(DEVICES, 1.0))

    def healthy(self, server: RunningServer) -> dict[str, float]:
        return self._by_device(server, "dnnserve_device_healthy")

    def restarts(self, server: RunningServer) -> dict[str, float]:
        return self._by_device(server, "dnnserve_device_restarts_total")

    @staticmethod
    def _by_device(server: RunningServer, name: str) -> dict[str, float]:
        return {dict(labels)["device"]: value for labels, value in server.counters(name).items()}
