"""Learning rates as pure functions of the iteration, so that a resumed run has them without saving anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from dnncore.errors import BadParamError
from dnncore.train.config import ScheduleConfig

__all__ = ["Constant", "Cosine", "Multistep", "Schedule", "Step", "Warmup", "make_schedule"]


class Schedule(Protocol):
    """A learning rate for every iteration. Implementations are immutable."""

    def rate(self, iteration: int) -> float:
        """Learning rate of iteration 0, 1, ..."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """The same rate throughout. Immutable."""

    lr: float

    def rate(self, iteration: int) -> float:  # noqa: ARG002 - the protocol's signature
        """lr."""
        return self.lr


@dataclass(frozen=True, slots=True)
class Step:
    """lr * gamma ** floor(iteration / every). Immutable."""

    lr: float
    every: int
    gamma: float

    def __post_init__(self) -> None:
        if self.every < 1:
            raise BadParamError(f"a step schedule every {self.every} iterations; give 1 or more")

    def rate(self, iteration: int) -> float:
        """See the class."""
        return self.lr * self.gamma ** (iteration // self.every)


@dataclass(frozen=True, slots=True)
class Multistep:
    """lr * gamma ** (number of milestones reached); a milestone is the first iteration with the new rate. Immutable."""

    lr: float
    milestones: tuple[int, ...]
    gamma: float

    def rate(self, iteration: int) -> float:
        """See the class."""
        return self.lr * self.gamma ** sum(iteration >= milestone for milestone in self.milestones)


@dataclass(frozen=True, slots=True)
class Cosine:
    """Half a cosine from lr at `start` to final_lr at `end`, and those two rates before and after. Immutable.

    Source: arXiv 1608.03983, equation 5, one cycle.
    """

    lr: float
    start: int
    end: int
    final_lr: float = 0.0

    def rate(self, iteration: int) -> float:
        """See the class."""
        if iteration <= self.start:
            return self.lr
        done = min(1.0, (iteration - self.start) / max(self.end - self.start, 1))
        return self.final_lr + 0.5 * (self.lr - self.final_lr) * (1 + math.cos(math.pi * done))


@dataclass(frozen=True, slots=True)
class Warmup:
    """For the first `iterations`, (iteration + 1) / iterations times the rate of `schedule`; then that rate. Immutable.

    The first iteration has a rate above 0, and the last one of the warm-up has the full rate.
    """

    schedule: Schedule
    iterations: int

    def rate(self, iteration: int) -> float:
        """See the class."""
        rate = self.schedule.rate(iteration)
        return rate if iteration >= self.iterations else rate * (iteration + 1) / self.iterations


def make_schedule(config: ScheduleConfig, lr: float, iterations_per_epoch: int, iterations: int) -> Schedule:
    """The schedule that a configuration describes, its epochs turned into whole iterations.

    Args:
        config: Lengths in epochs.
        lr: Learning rate that it starts from.
        iterations_per_epoch: Batches an epoch.
        iterations: Length of the run.
    """

    def whole(epochs: float) -> int:
        return round(epochs * iterations_per_epoch)

    warmup = whole(config.warmup_epochs)
    schedule: Schedule
    match config.kind:
        case "constant":
            schedule = Constant(lr)
        case "step":
            schedule = Step(lr, max(whole(config.step_epochs), 1), config.gamma)
        case "multistep":
            schedule = Multistep(lr, tuple(whole(epochs) for epochs in config.milestones), config.gamma)
        case "cosine":
            schedule = Cosine(lr, warmup, iterations, config.final_lr)
    return Warmup(schedule, warmup) if warmup else schedule
