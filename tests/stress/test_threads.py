"""Many threads on several devices, and handles made and closed in a loop."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dnncore import RELU, Handle, devices, ops
from tests.conftest import CUDA_DEVICES, EMULATOR
from tests.e2e.emulated import use_emulator
from tests.unit.foreign import Array, Device, open_capsule

ROOT = Path(__file__).resolve().parents[2]
DEVICES, THREADS = 4, 8
JOBS = int(os.environ.get("DNNCORE_STRESS_JOBS", "4"))
"""Operations a thread; 1000 and more for a long run."""

FILES = Path("/proc/self/fd")

ROUNDS = int(os.environ.get("DNNCORE_STRESS_ROUNDS", "40"))
"""Handles that are made and closed."""

ATTEMPTS = 4
"""Other processes may take memory of the same GPU meanwhile; what a round leaks, 16 MiB, would be lost in every attempt."""


@pytest.mark.cuda
@pytest.mark.timeout(120 + 60 * JOBS)
def test_results_of_many_threads_are_the_serial_ones_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    use_emulator(monkeypatch, devices=DEVICES)
    count = DEVICES if EMULATOR else min(DEVICES, devices.cuda_count())
    command = [sys.executable, "-m", "tests.stress", "--devices", count, "--threads", THREADS, "--jobs", JOBS]
    run = subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100 + 60 * JOBS
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert (report["wrong"], report["errors"]) == ([], [])
    assert report["results"] == count * THREADS * JOBS
    assert report["cases"] > 10


def ours() -> Counter[str]:
    """Live objects of the library."""
    gc.collect()
    return Counter(type(o).__name__ for o in gc.get_objects() if str(type(o).__module__).startswith("dnncore"))


def use(name: str, device: Device | None, nbytes: int) -> None:
    """Everything that a handle can own, some of it left for `close`."""
    stream = None if device is None else device.create_stream()
    foreign = Array(np.ones(16, np.float32), device)
    with Handle(name) as handle, Handle(name, stream=stream) as other:
        handle.tensor((nbytes // 4,))
        x = handle.upload(np.arange(16, dtype=np.float32))
        ops.activation_forward(handle, RELU, 1.0, x, 0.0, x)
        other.wait(handle.record_event())
        theirs = other.from_dlpack(x)
        ops.add(other, 1.0, other.from_dlpack(foreign), 1.0, theirs)
        other.record_event().synchronize()
        kept = open_capsule(x.__dlpack__(max_version=(1, 0)))
        never_taken = x.__dlpack__()
        assert theirs.numpy().tolist() == list(range(1, 17))
    del never_taken
    kept.delete()
    assert foreign.deleted == 1
    foreign.free()
    if device is not None and stream is not None:
        device.destroy_stream(stream)


@pytest.mark.parametrize("name", ["cpu", *CUDA_DEVICES[:1]])
def test_handles_made_and_closed_in_a_loop_leave_nothing(name: str) -> None:
    device = None if name == "cpu" else Device(0)
    nbytes = 16 << 20
    for _ in range(2):
        use(name, device, nbytes)
    objects, threads = ours(), threading.active_count()
    files = len(list(FILES.iterdir()))
    lost = []
    for _ in range(ATTEMPTS):
        free = device.free_bytes() if device else 0
        for _ in range(ROUNDS):
            use(name, device, nbytes)
        lost.append(free - device.free_bytes() if device else 0)
        if lost[-1] < ROUNDS * nbytes // 2:
            break
    assert ours() == objects
    assert threading.active_count() == threads
    assert len(list(FILES.iterdir())) == files
    assert min(lost) < ROUNDS * nbytes // 2
