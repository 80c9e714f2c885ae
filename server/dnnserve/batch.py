"""Requests that run together, as a runner takes them from the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dnnserve.envelope import InferenceRequest, ModelKey
from dnnserve.scheduling.policy import Decision

__all__ = ["Batch", "BatchObserver"]


class Batch(NamedTuple):
    """Requests of one model that run together. Immutable; a tuple, because it is quick to make.

    Args:
        device: Where.
        model: Whose.
        requests: In the order of their rows.
        decision: The policy's, with what the batch is expected to take.
    """

    device: str
    model: ModelKey
    requests: tuple[InferenceRequest, ...]
    decision: Decision

    @property
    def taken_ns(self) -> int:
        """When the device took it."""
        return self.decision.now_ns

    @property
    def rows(self) -> int:
        """Rows of all its requests."""
        return self.decision.rows


BatchObserver = Callable[[Batch, int], None]
"""Called with every batch that was answered and the nanoseconds it took, outside any lock of the scheduler; must not raise."""
