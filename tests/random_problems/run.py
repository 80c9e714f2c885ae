"""A batch of random convolutions on one handle, by every algorithm that supports them."""

from __future__ import annotations

import collections
import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

if os.environ.get("DNN_EMU_LIB"):
    ctypes.CDLL(os.environ["DNN_EMU_LIB"])  # before PyCUDA, as tests/conftest.py does

import torch

from dnncore import Handle, Preference
from dnncore.plan import rank
from dnncore.problems import ConvolutionProblem
from tests.ops.harness import check
from tests.ops.launches import launches_of
from tests.random_problems.draw import random_case

__all__ = ["Outcome", "run_batch"]


@dataclass(frozen=True)
class Outcome:
    """What came of some problems.

    Args:
        problems: How many there were.
        runs: How often each direction, dtype and algorithm ran.
        wrong: A line for each run that failed.
    """

    problems: int = 0
    runs: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: tuple[str, ...] = ()

    def plus(self, other: Outcome) -> Outcome:
        return Outcome(self.problems + other.problems, self.runs + other.runs, self.wrong + other.wrong)


def run_batch(device: str, numbers: Sequence[int], max_macs: int, max_threads: int | None = None) -> Outcome:
    """Check the problems of these numbers on a handle of their own.

    Args:
        max_threads: Of an algorithm's launches; one that takes more is left out.
    """
    torch.set_num_threads(1)
    runs: collections.Counter[str] = collections.Counter()
    wrong = []
    with Handle(device) as handle:
        for number in numbers:
            case = random_case(number, max_macs)
            problem = case.problem
            assert isinstance(problem, ConvolutionProblem)
            for algorithm in rank(problem, handle.device, Preference.PREFER_FASTEST):
                if algorithm.offer is None or algorithm.status is not None:
                    continue
                if max_threads is not None and launches_of(algorithm.offer).threads > max_threads:
                    continue
                runs[f"{problem.direction.value} {problem.x.dtype.value} {algorithm.name}"] += 1
                try:
                    check(handle, case, algorithm.name)
                except Exception as error:  # noqa: BLE001 (whatever it is, the other problems are still to be run)
                    wrong.append(f"{case.name} by {algorithm.name}, {problem}: {type(error).__name__}: {error}")
    return Outcome(len(numbers), runs, tuple(wrong))
