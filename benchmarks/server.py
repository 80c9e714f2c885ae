"""A `dnnserve` process for demos and benchmarks: started as a user would, stopped with SIGTERM, read through its metrics."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["RunningServer", "run_command"]

_START_SECONDS = 600.0
"""Only a server that hangs takes it: where kernels were not compiled ahead, nvcc runs first, beside whatever else runs."""
_STOP_SECONDS = 40.0
_MODULES = {"dnntrain": "dnncore.train", "dnnserve": "dnnserve"}


def _command(name: str, *arguments: str) -> list[str]:
    """Through this interpreter, so that a checkout works without an installed script on PATH."""
    return [sys.executable, "-m", _MODULES[name], *arguments]


def run_command(name: str, *arguments: str) -> None:
    """Run one of the project's commands to its end.

    Raises:
        CalledProcessError: it ended with another status than 0.
    """
    subprocess.run(_command(name, *arguments), check=True)


class RunningServer:
    """A server of one package on free loopback ports. Owned by one thread.

    Args:
        package: What to serve.
        scratch: A folder for the file in which the server says that it is ready.
        arguments: More of the command line.
        program: What takes dnnserve's command line; None: dnnserve.
    """

    def __init__(self, package: Path, scratch: Path, *arguments: str, program: Sequence[str] | None = None) -> None:
        self._ready_file = scratch / f"ready-{time.monotonic_ns()}.json"
        ports = ("--grpc-port", "0", "--metrics-port", "0", "--ready-file", str(self._ready_file))
        # There is no load balancer that would have to notice, and no run may depend on one before, nor on the machine's cores.
        alone = ("--lame-duck-seconds", "0", "--no-save-costs", "--front-ends", "0")
        program = _command("dnnserve") if program is None else program
        self._command = [*program, "--model", str(package), *ports, *alone, *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self.grpc = self.metrics = ""
        self.devices: list[str] = []

    @property
    def pid(self) -> int:
        """Of the server's process, while it runs."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> RunningServer:
        self._process = subprocess.Popen(self._command, env=os.environ.copy())
        try:
            self._wait_ready(self._process)
        except BaseException:  # also what ends a test that takes too long: nothing is left running
            self._process.kill()
            self._process.wait()
            raise
        ready = json.loads(self._ready_file.read_text())
        self.grpc, self.metrics, self.devices = ready["grpc"], ready["metrics"], ready["devices"]
        return self

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        give_up = time.monotonic() + _START_SECONDS
        while not self._ready_file.exists():
            if process.poll() is not None:
                raise RuntimeError(f"dnnserve ended with status {process.returncode} before it was ready")
            if time.monotonic() > give_up:
                raise RuntimeError(f"dnnserve was not ready after {_START_SECONDS:.0f} s")
            time.sleep(0.02)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        if status and kind is None:
            raise RuntimeError(f"dnnserve ended with status {status}")

    def counters(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Values of one metric by its labels."""
        with urllib.request.urlopen(self.metrics, timeout=10) as page:
            text = page.read().decode()
        return {
            tuple(sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        }

    def mean_batch_rows(self) -> float:
        """Images that an executed batch had on average, since the start."""
        batches = sum(self.counters("dnnserve_batch_rows_count").values())
        return sum(self.counters("dnnserve_batch_rows_sum").values()) / batches if batches else 0.0
