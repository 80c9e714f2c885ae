"""A recorded sequence of launches: what an executor replays, with every plan chosen and every address known.

Recording costs one pass through the ordinary operations; a replay is one call a kernel. It is also the unit that a CUDA graph
can be captured from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dnncore.backend import Address
from dnncore.plan import Plan

__all__ = ["Program", "Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """One launch with its operands' addresses. Immutable; valid as long as the tensors it was recorded with.

    Args:
        plan: What runs.
        alpha: Factor of the operation's result.
        inputs: Addresses in the problem's order.
        beta: Factor of what the outputs held.
        outputs: Addresses in the problem's order.
    """

    plan: Plan
    alpha: float
    inputs: Sequence[Address] = field(repr=False)
    beta: float
    outputs: Sequence[Address] = field(repr=False)


@dataclass
class Program:
    """Launches in the order in which they were recorded by `Handle.record`. Owned by one thread; its handle checks.

    Args:
        launch: The handle's way to enqueue one step.
        steps: What was recorded.
    """

    launch: Callable[[Step], None] = field(repr=False)
    steps: list[Step] = field(default_factory=list)

    def run(self) -> None:
        """Enqueue every step."""
        for step in self.steps:
            self.launch(step)
