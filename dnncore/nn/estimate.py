"""What a net would take on a GPU of which only the figures are known: time, memory and algorithms, on any machine."""

from __future__ import annotations

from dnncore.cuda.absent import AbsentDevice
from dnncore.figures import DeviceFigures
from dnncore.handle import Handle
from dnncore.nn.graph import Graph
from dnncore.nn.schedule import Schedule, schedule

__all__ = ["estimate"]


def estimate(graph: Graph, figures: DeviceFigures, batch: int, limit_bytes: int | None = None) -> Schedule:
    """How an executor would compute a graph there. Sums of estimates leave out what launches in a row gain or lose by each other.

    Args:
        graph: As it is run; see `dnncore.nn.passes`.
        figures: The GPU's.
        batch: Number of images.
        limit_bytes: See `schedule`.
    """
    with Handle(AbsentDevice(figures)) as handle:
        return schedule(graph, handle, batch, limit_bytes)
