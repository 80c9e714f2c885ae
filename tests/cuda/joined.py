"""Products whose parts the last block of each tile joins; `python -m tests.cuda.joined` prints what comes out of them.

A process has one order of blocks. This one is started for each, and imports nothing that it does not need, such as PyTorch.
"""

from __future__ import annotations

import ctypes
import os
from hashlib import sha256

import numpy as np
import pytest

if __name__ == "__main__" and "DNN_EMU_LIB" in os.environ:
    ctypes.CDLL(os.environ["DNN_EMU_LIB"])  # before anything looks for libcuda.so.1

from dnncore import Handle
from dnncore.cuda.gemm import schedule
from dnncore.plan import Plan
from dnncore.problems import MatmulProblem

__all__ = ["SHAPES", "Multiplication", "digests", "split_and_join"]

SHAPES = [("float32", 40, 70, 650), ("float32", 70, 130, 400), ("float16", 20, 40, 404), ("float16", 40, 72, 256)]
"""Several tiles and parts of two sizes in float32, and in float16 few of either kernel."""


def split_and_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let estimates have it that splitting pays for small products already, and joining too."""
    for name in ("_JOINING", "_ADDING"):
        monkeypatch.setattr(schedule, name, {})
    monkeypatch.setattr(schedule, "_JOINING_OF_16_BITS", 0.0)
    monkeypatch.setattr(schedule, "_ADDING_OF_16_BITS", (1.0, 0.0))


class Multiplication:
    """c = a b of random numbers, on a handle."""

    def __init__(self, own: Handle, dtype: str, m: int, n: int, k: int) -> None:
        rng, self.own = np.random.default_rng([m, n, k]), own
        self.a, self.b, self.c = (own.tensor(shape, dtype) for shape in ((m, k), (k, n), (m, n)))
        for tensor in (self.a, self.b):
            tensor.assign(rng.uniform(-1, 1, tensor.shape).astype(tensor.descriptor.dtype.numpy))

    @property
    def plan(self) -> Plan:
        problem = MatmulProblem(self.a.descriptor, self.b.descriptor, self.c.descriptor)
        return self.own.plan(problem, algorithm="gemm_split_k")

    def enqueue(self) -> None:
        self.own.run(self.plan, 1.0, (self.a, self.b), 0.0, (self.c,))

    def bits(self) -> bytes:
        self.enqueue()
        found = self.c.numpy().tobytes()
        self.c.assign(np.zeros(self.c.shape, self.c.descriptor.dtype.numpy))
        return found


def digests(own: Handle) -> list[str]:
    """What comes out in this process's order of blocks."""
    return [sha256(Multiplication(own, *shape).bits()).hexdigest() for shape in SHAPES]


def main() -> None:
    """Print it."""
    with pytest.MonkeyPatch.context() as monkeypatch, Handle("cuda:0") as own:
        split_and_join(monkeypatch)
        print(*digests(own))


if __name__ == "__main__":
    main()
