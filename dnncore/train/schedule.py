"""Learning rates as pure functions of the iteration, so that a resumed run has them without saving anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from dnncore.errors import BadParamError
from dnncore.train.config import ScheduleConfig

__all__ = [
    *("Constant", "Cosine", "Exponential", "Inverse", "Multistep", "Polynomial", "Schedule", "Sigmoid", "Step"),
    *("Warmup", "make_schedule"),
]


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
class Exponential:
    """lr * gamma ** iteration. Immutable."""

    lr: float
    gamma: float

    def rate(self, iteration: int) -> float:
        """See the class."""
        return self.lr * self.gamma**iteration


@dataclass(frozen=True, slots=True)
class Inverse:
    """lr * (1 + gamma * iteration) ** -power. Immutable."""

    lr: float
    gamma: float
    power: float

    def rate(self, iteration: int) -> float:
        """See the class."""
        return self.lr * math.pow(1 + self.gamma * iteration, -self.power)


@dataclass(frozen=True, slots=True)
class Polynomial:
    """lr * (1 - iteration / iterations) ** power, and 0 from there on. Immutable."""

    lr: float
    iterations: int
    power: float

    def rate(self, iteration: int) -> float:
        """See the class."""
        return self.lr * math.pow(max(1 - iteration / self.iterations, 0.0), self.power)


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """lr / (1 + exp(-gamma * (iteration - middle))). Immutable."""

    lr: float
    gamma: float
    middle: int

    def rate(self, iteration: int) -> float:
        """See the class; the same without an overflow where the exponent is large."""
        exponent = self.gamma * (iteration - self.middle)
        if exponent < 0:
            return self.lr * math.exp(exponent) / (1 + math.exp(exponent))
        return self.lr / (1 + math.exp(-exponent))


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
        config: Lengths in epochs or in iterations.
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
            schedule = Step(lr, config.step_iterations or max(whole(config.step_epochs), 1), config.gamma)
        case "multistep":
            milestones = config.milestone_iterations or tuple(whole(epochs) for epochs in config.milestones)
            schedule = Multistep(lr, milestones, config.gamma)
        case "exp":
            schedule = Exponential(lr, config.gamma)
        case "inv":
            schedule = Inverse(lr, config.gamma, config.power)
        case "poly":
            schedule = Polynomial(lr, iterations, config.power)
        case "sigmoid":
            schedule = Sigmoid(lr, config.gamma, config.step_iterations)
        case "cosine":
            schedule = Cosine(lr, warmup, iterations, config.final_lr)
    return Warmup(schedule, warmup) if warmup else schedule
