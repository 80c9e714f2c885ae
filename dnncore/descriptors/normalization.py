"""What is normalised together: windows of local response normalisation, the statistics of batch normalisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from dnncore.descriptors.settings import HashedOnce, member, number, settle, whole
from dnncore.errors import BadParamError

__all__ = ["BatchNormMode", "LRNDescriptor", "LRNMode"]


class BatchNormMode(Enum):
    """SPATIAL takes a mean and a variance for each channel, PER_ACTIVATION for each channel and place."""

    SPATIAL = "spatial"
    PER_ACTIVATION = "per_activation"


class LRNMode(Enum):
    """ACROSS_CHANNELS sums squares over neighbouring channels at a place, WITHIN_CHANNEL over neighbouring places of a channel."""

    ACROSS_CHANNELS = "across_channels"
    WITHIN_CHANNEL = "within_channel"


@dataclass(frozen=True, slots=True)
class LRNDescriptor(HashedOnce):
    """Local response normalisation: y = x / (k + alpha / size * sum of x^2 over a window)^beta. Immutable.

    The window goes from (n - 1) / 2, rounded down, before an element to n - 1 - that behind it, and is cut at the borders; the
    divisor stays. Within a channel the window has n elements in each spatial dimension and the divisor is their number.

    Args:
        mode: Across channels or within one.
        n: Extent of the window, 1 or more; cuDNN has 16 as the most.
        alpha: Weight of the sum.
        beta: Exponent, at least 0.01 as in cuDNN.
        k: What is added, at least 1e-5 as in cuDNN, so that zeros are not divided by zero.

    Source: cuDNN, cudnnSetLRNDescriptor; Caffe's LRN layer for the divisor within a channel.
    """

    mode: LRNMode = LRNMode.ACROSS_CHANNELS
    n: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 2.0

    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        settle(
            self,
            mode=member(LRNMode, self.mode),
            n=whole(self.n, "n"),
            alpha=number(self.alpha, "alpha"),
            beta=number(self.beta, "beta"),
            k=number(self.k, "k"),
        )
        if self.n < 1:
            raise BadParamError(f"n {self.n} must be 1 or more")
        if not math.isfinite(self.alpha) or self.alpha < 0:
            raise BadParamError(f"alpha {self.alpha} must be finite and not negative")
        if not 0.01 <= self.beta < math.inf:
            raise BadParamError(f"beta {self.beta} must be finite and at least 0.01")
        if not 1e-5 <= self.k < math.inf:
            raise BadParamError(f"k {self.k} must be finite and at least 1e-5")

    @classmethod
    def make(
        cls,
        mode: LRNMode | str = LRNMode.ACROSS_CHANNELS,
        n: int = 5,
        *,
        alpha: float = 1e-4,
        beta: float = 0.75,
        k: float = 2.0,
    ) -> LRNDescriptor:
        """Build one by name; without more it is cuDNN's default."""
        return cls(member(LRNMode, mode), n, alpha, beta, k)

    @property
    def before(self) -> int:
        """Elements of the window before its own."""
        return (self.n - 1) // 2

    @property
    def after(self) -> int:
        """Elements of the window behind its own."""
        return self.n - 1 - self.before
