"""Choosing an algorithm, in one place and without knowing the backend. Timing them is `dnncore.find`."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import ClassVar

from dnncore.backend import Algorithm, Device, Launch, Offer, Work
from dnncore.choice import fastest, fastest_measured, is_current, with_measured
from dnncore.descriptors.settings import settle, whole
from dnncore.errors import BadParamError, NotSupportedError
from dnncore.figures import Maths
from dnncore.measured import MeasuredChoices
from dnncore.problems import Problem

__all__ = ["BY_ESTIMATE", "AlgorithmPerformance", "Plan", "Preference", "choose", "make_plan", "rank", "summary"]

BY_ESTIMATE = MeasuredChoices()
"""To choose by estimates alone: nothing was measured."""


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
        offer: What it takes: seconds, estimated or measured, workspace, determinism, maths.
        work: What it prepared: calls as data on CUDA.
        launch: What enqueues it.
        device: The handle's device; a plan holds parameters of its own, so no other handle may run it.
        nbytes: Of each operand, from its first element to the end of its last.
    """

    problem: Problem
    algorithm: str
    offer: Offer
    work: Work = field(repr=False)
    launch: Launch = field(repr=False)
    device: Device = field(repr=False, compare=False)
    nbytes: tuple[int, ...] = field(repr=False)

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory that a launch takes."""
        return self.offer.workspace_bytes

    @property
    def deterministic(self) -> bool:
        """Whether equal inputs give equal bits."""
        return self.offer.deterministic

    @property
    def math(self) -> str:
        """What it accumulates with."""
        return self.offer.math

    @property
    def roofline_seconds(self) -> float:
        """What its products take at the full rate of the device's units for its dtype, or its operands memory, whichever is more.

        An algorithm that has fewer products than the definition, as Winograd's, or takes them to other units, may take less.
        """
        problem, figures = self.problem, self.device.figures
        multiplied = getattr(problem, "w", problem.inputs[0]) if problem.inputs else problem.outputs[0]
        rate = figures.products_per_second(Maths.of(multiplied.dtype))
        nbytes = sum(tensor.size * tensor.dtype.itemsize for tensor in (*problem.inputs, *problem.outputs))
        return max(problem.macs / rate if rate else 0.0, nbytes / figures.bytes_per_second)

    def describe(self) -> str:
        """The algorithm, what it takes, and a line for each launch: kernel, grid, block."""
        return "\n".join((summary(self), *(f"  {line}" for line in self.device.describe(self.work))))


@dataclass(frozen=True, slots=True)
class AlgorithmPerformance:
    """What is known of an algorithm for a problem, as cuDNN's convolution AlgoPerf has it. Immutable.

    Args:
        name: For `Handle.plan(problem, algorithm=name)`.
        status: None when it can be used, else why not.
        offer: What it would take; None where it does not support the problem.
        time_ms: Median of a launch on the device; None where it was not timed.
    """

    name: str
    status: str | None
    offer: Offer | None
    time_ms: float | None = None

    @property
    def estimated_ms(self) -> float | None:
        """What the ranking goes by: measured where `offer.is_measured`; None where it does not support the problem."""
        return None if self.offer is None else self.offer.seconds * 1e3

    @property
    def workspace_bytes(self) -> int | None:
        """Scratch memory that a launch takes; None where it does not support the problem."""
        return None if self.offer is None else self.offer.workspace_bytes

    @property
    def deterministic(self) -> bool | None:
        """Whether equal inputs give equal bits; None where it does not support the problem."""
        return None if self.offer is None else self.offer.deterministic

    @property
    def math(self) -> str | None:
        """What it accumulates with; None where it does not support the problem."""
        return None if self.offer is None else self.offer.math


def summary(plan: Plan) -> str:
    """One line: the kind of problem, the algorithm, its time and whether that is estimated or measured, bytes and products."""
    problem, nbytes = plan.problem, sum(plan.nbytes)
    flops = f", {2 * problem.macs / 1e9:.3g} GFLOP" if problem.macs else ""
    kind = type(problem).__name__.removesuffix("Problem")
    return (
        f"{kind} {problem.outputs[0]} by {plan.algorithm}: {plan.offer.seconds * 1e6:.1f} us "
        f"{'measured' if plan.offer.is_measured else 'estimated'}, "
        f"{nbytes / 1e6:.3g} MB of operands{flops}, {plan.workspace_bytes} B of workspace"
    )


def check_dimensions(problem: Problem) -> None:
    """Refuse operands without a dimension: what kernels are told of a tensor begins with its first one.

    Raises:
        BadParamError: there is one.
    """
    for tensor in (*problem.inputs, *problem.outputs):
        if not tensor.shape:
            raise BadParamError(
                f"an operand ({tensor}) has 0 dimensions; see it as one of [1]: `tensor.reshape(1)`, or call `dnncore.functional`"
            )


def rank(
    problem: Problem, device: Device, preference: Preference, choices: MeasuredChoices = BY_ESTIMATE
) -> list[AlgorithmPerformance]:
    """Every algorithm for the problem: those that can be used, as they would be taken, then the others, each with the reason.

    Those that were measured are first, fastest first, then others by estimate; of equal estimates the first in the backend's tuple.
    Each is asked once.
    """
    usable: list[tuple[tuple[bool, float], AlgorithmPerformance]] = []
    out: list[AlgorithmPerformance] = []
    check_dimensions(problem)
    algorithms = device.algorithms(problem)
    measured = choices.of(problem)
    current = measured is not None and is_current(measured, algorithms)
    for algorithm in algorithms:
        offer = algorithm.offer(problem, device.figures)
        if isinstance(offer, str):
            out.append(AlgorithmPerformance(algorithm.name, offer, None))
            continue
        reason = preference.refuses(offer.workspace_bytes, deterministic=offer.deterministic)
        offer = with_measured(offer, algorithm.name, measured)
        found = AlgorithmPerformance(algorithm.name, reason, offer)
        if reason is None:
            usable.append(((current and not offer.is_measured, offer.seconds), found))
        else:
            out.append(found)
    usable.sort(key=itemgetter(0))
    return [found for _, found in usable] + out


def choose(
    problem: Problem,
    device: Device,
    preference: Preference,
    algorithm: str | None = None,
    choices: MeasuredChoices = BY_ESTIMATE,
) -> tuple[Algorithm, Offer] | None:
    """The algorithm that a plan takes, and its offer; None where nothing fits. Prepares nothing.

    Args:
        problem: What to solve.
        device: Where.
        preference: What it may take.
        algorithm: Take this one, by name, and no other.
        choices: What was measured.
    """

    def allows(offer: Offer) -> bool:
        return preference.refuses(offer.workspace_bytes, deterministic=offer.deterministic) is None

    check_dimensions(problem)
    every = device.algorithms(problem)
    options = every if algorithm is None else [option for option in every if option.name == algorithm]
    measured = choices.of(problem)
    if measured is None:
        return fastest(options, problem, device.figures, allows)
    return fastest_measured(options, problem, device.figures, allows, measured, current=is_current(measured, every))


def make_plan(
    problem: Problem,
    device: Device,
    preference: Preference,
    algorithm: str | None = None,
    chosen: tuple[Algorithm, Offer] | None = None,
    choices: MeasuredChoices = BY_ESTIMATE,
) -> Plan:
    """Choose and prepare.

    Args:
        problem: What to solve.
        device: Where.
        preference: What it may take.
        algorithm: Take this one, by name, and no other.
        chosen: What `choose` found for all these, if that is known.
        choices: What was measured.

    Raises:
        NotSupportedError: nothing fits; the message lists each algorithm and why.
    """
    chosen = chosen or choose(problem, device, preference, algorithm, choices)
    if chosen is None:
        raise NotSupportedError(_why_none(problem, device, preference, algorithm))
    taken, offer = chosen
    work = offer.prepare()
    return Plan(
        problem,
        taken.name,
        offer,
        work,
        device.bind(work),
        device,
        tuple(tensor.nbytes for tensor in (*problem.inputs, *problem.outputs)),
    )


def _why_none(problem: Problem, device: Device, preference: Preference, algorithm: str | None) -> str:
    ranked = rank(problem, device, preference)
    reasons = "; ".join(f"{found.name}: {found.status}" for found in ranked if algorithm in (None, found.name))
    if not reasons:
        reasons = f"no algorithm {algorithm!r} among {', '.join(found.name for found in ranked)}"
    return f"{device.info.name} has nothing for {problem}: {reasons}"
