"""dnnserve on devices whose batches take a set time."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest

from benchmarks import paced
from benchmarks.front_end import INFER
from benchmarks.server import RunningServer
from benchmarks.serving import untrained_package
from benchmarks.soak import answer, request

BATCH_S = 0.2


def test_a_batch_takes_its_time_and_is_computed_all_the_same(tmp_path: Path) -> None:
    package = tmp_path / "digits"
    untrained_package().save(package)
    flags = ("--devices", "cpu", "--engines", "process")
    with (
        RunningServer(package, tmp_path, *flags, program=paced.program(BATCH_S)) as server,
        grpc.insecure_channel(server.grpc) as channel,
    ):
        infer = channel.unary_unary(INFER, None, None)
        began = time.monotonic()
        name, probabilities = answer(infer(request(0.5), timeout=60))
        took = time.monotonic() - began
    assert took >= BATCH_S  # of an idle server, whose time would be a few milliseconds
    assert name == "0.5"
    assert probabilities.sum() == pytest.approx(1, abs=1e-5)
