"""Choosing an algorithm, in one place and without knowing the backend. Timing them is `dnncore.find`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from dnncore.backend import Algorithm, Device, Launch
from dnncore.descriptors.settings import settle, whole
from dnncore.errors import BadParamError, NotSupportedError
from dnncore.problems import Problem

__all__ = ["AlgorithmPerformance", "Plan", "Preference", "candidates", "get_algorithms", "make_plan"]


@dataclass(frozen=True, slots=True)
class Preference:
    """What the choice may take. Immutable.

    Args:
        workspace_limit_bytes: Most bytes of workspace; None for as many as the fastest algorithm wants.
        deterministic: Whether equal inputs must give equal bits.
    """

    workspace_limit_bytes: int | None = None
    deterministic: bool = False
    NO_WORKSPACE: ClassVar[Preference]
    PREFER_FASTEST: ClassVar[Preference]

    def __post_init__(self) -> None:
        if self.workspace_limit_bytes is None:
            return
        limit = whole(self.workspace_limit_bytes, "workspace_limit_bytes")
        if limit < 0:
            raise BadParamError(f"workspace limit {limit} B must not be negative")
        settle(self, workspace_limit_bytes=limit)

    def refuses(self, nbytes: int, *, deterministic: bool = True) -> str | None:
        """The reason why an algorithm with such a workspace is not allowed, None when it is."""
        if self.workspace_limit_bytes is not None and nbytes > self.workspace_limit_bytes:
            return f"needs {nbytes} B of workspace, the limit is {self.workspace_limit_bytes} B"
        if self.deterministic and not deterministic:
            return "is not deterministic, which the preference demands"
        return None


Preference.NO_WORKSPACE = Preference(0)
Preference.PREFER_FASTEST = Preference(None)


@dataclass(frozen=True, slots=True)
class Plan:
    """A problem with the algorithm that was chosen for it, ready to launch. Owned by the thread of its handle.

    Args:
        problem: What is solved.
        algorithm: The algorithm's name.
        workspace_bytes: Scratch memory a launch takes.
        deterministic: Whether equal inputs give equal bits.
        math: What it accumulates with.
        launch: The backend's function.
        device: The handle's device; a plan holds parameters of its own, so no other handle may run it.
    """

    problem: Problem
    algorithm: str
    workspace_bytes: int
    deterministic: bool
    math: str
    launch: Launch = field(repr=False)
    device: Device = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class AlgorithmPerformance:
    """What is known of an algorithm for a problem, as cuDNN's convolution AlgoPerf has it. Immutable.

    Args:
        name: For `Handle.plan(problem, algorithm=name)`.
        status: None when it can be used, else why not.
        workspace_bytes: Scratch memory a launch takes; None where it does not support the problem.
        deterministic: Whether equal inputs give equal bits.
        math: What it accumulates with.
        time_ms: Median of a launch on the device; None where it was not timed.
    """

    name: str
    status: str | None
    workspace_bytes: int | None
    deterministic: bool
    math: str
    time_ms: float | None = None


def candidates(problem: Problem, device: Device, preference: Preference) -> list[tuple[Algorithm, str | None]]:
    """Every algorithm for the problem, fastest first, with the reason why it is out (None when it is in)."""
    result = []
    for algorithm in device.algorithms(problem):
        reason = algorithm.supports(problem, device)
        if reason is None:
            reason = preference.refuses(algorithm.workspace_bytes(problem), deterministic=algorithm.deterministic)
        result.append((algorithm, reason))
    return result


def get_algorithms(problem: Problem, device: Device, preference: Preference) -> list[AlgorithmPerformance]:
    """What is known of every algorithm without running it: those that can be used first, in the order of the heuristics."""
    found = [
        AlgorithmPerformance(
            algorithm.name,
            reason,
            algorithm.workspace_bytes(problem) if algorithm.supports(problem, device) is None else None,
            algorithm.deterministic,
            algorithm.math,
        )
        for algorithm, reason in candidates(problem, device, preference)
    ]
    return sorted(found, key=lambda algorithm: algorithm.status is not None)


def make_plan(problem: Problem, device: Device, preference: Preference, algorithm: str | None = None) -> Plan:
    """Choose and prepare.

    Args:
        problem: What to solve.
        device: Where.
        preference: What it may take.
        algorithm: Take this one, by name, and no other.

    Raises:
        NotSupportedError: nothing fits; the message lists each algorithm and why.
    """
    options = [(a, why) for a, why in candidates(problem, device, preference) if algorithm in (None, a.name)]
    chosen = next((a for a, why in options if why is None), None)
    if chosen is None:
        names = ", ".join(a.name for a in device.algorithms(problem))
        reasons = "; ".join(f"{a.name}: {why}" for a, why in options) or f"no algorithm {algorithm!r} among {names}"
        raise NotSupportedError(f"{device.info.name} has nothing for {problem}: {reasons}")
    return Plan(
        problem,
        chosen.name,
        chosen.workspace_bytes(problem),
        chosen.deterministic,
        chosen.math,
        chosen.prepare(problem, device),
        device,
    )
