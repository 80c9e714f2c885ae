"""Launches let other threads of Python run: the interpreter's lock is released while the driver has the call."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from dnncore import RELU, Handle, ops
from dnncore.backend import Wired
from dnncore.tensor import Tensor
from tests.conftest import CUDA_DEVICES

_ROUNDS = 5000
"""So many launches may pass before the other thread has waked up in time; mostly the first few are enough."""


@contextmanager
def _other_thread() -> Iterator[list[None]]:
    """A thread that always wants the lock, and a list that grows with each turn; nobody is made to give the lock up meanwhile."""
    turns: list[None] = []
    is_over = False

    def take_turns() -> None:
        while not is_over:
            turns.append(None)
            time.sleep(0)  # gives the lock up

    thread = threading.Thread(target=take_turns)
    before = sys.getswitchinterval()
    sys.setswitchinterval(600)
    try:
        thread.start()
        yield turns
    finally:
        sys.setswitchinterval(before)
        is_over = True
        thread.join()


def _lets_others_run(turns: list[None], call: Callable[[], object]) -> bool:
    for _ in range(_ROUNDS):
        before = len(turns)
        call()
        if len(turns) > before:
            return True
    return False


def _relu(handle: Handle, x: Tensor, y: Tensor) -> None:
    ops.activation_forward(handle, RELU, 1.0, x, 0.0, y)


@pytest.mark.parametrize("name", CUDA_DEVICES[:1])
@pytest.mark.parametrize("how", ["launch", "wired", "graph"])
def test_another_thread_runs_while_the_driver_has_a_launch(name: str, how: str) -> None:
    with Handle(name) as handle, handle.upload(np.ones(8, np.float32)) as x, handle.tensor((8,)) as y:
        with handle.record() as program:
            _relu(handle, x, y)
        (step,) = program.steps
        captured = program.capture()
        wired = handle.device.wire([Wired(step.plan.work, 1.0, 0.0, ((0, 0), (1, 0)))], handle.stream)
        calls: dict[str, Callable[[], object]] = {
            "launch": lambda: _relu(handle, x, y),
            "wired": lambda: wired(step.addresses),
            "graph": captured.run,
        }
        calls[how]()
        with _other_thread() as turns:
            assert not _lets_others_run(turns, lambda: repr(x.shape)), "the lock is given up by other calls, too"
            assert _lets_others_run(turns, calls[how])
        handle.synchronize()
