"""What a net takes on a device, before anything is allocated there."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.backend import TICKET_BYTES
from dnncore.handle import Handle
from dnncore.nn.graph import Graph
from dnncore.nn.schedule import schedule
from dnncore.nn.slices import images_of_a_slice, lay_out

__all__ = ["Footprint", "footprint"]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Device memory of a net. Immutable.

    Args:
        constants_bytes: Of its constants, whatever the batch.
        values_bytes: Of all values of a batch, with the scratch memory of their operations; smaller batches can share it.
    """

    constants_bytes: int
    values_bytes: int

    @property
    def nbytes(self) -> int:
        """Both together."""
        return self.constants_bytes + self.values_bytes


def footprint(graph: Graph, handle: Handle, batch: int, slice_images: int | None = None) -> Footprint:
    """Find out what `Parameters.upload` and an `Executor` will take together; allocates nothing.

    Args:
        graph: What is to be run.
        handle: Where.
        batch: N, 1 or more.
        slice_images: As `Executor` has it.

    Raises:
        BadParamError: as `Executor`.
    """
    images = images_of_a_slice(batch, slice_images)
    layout = lay_out(graph, batch, schedule(graph, handle, images).placement, images)
    constants = (graph.descriptor(name, value.spec).nbytes for name, value in graph.constant.items())
    return Footprint(sum(constants), TICKET_BYTES + layout.nbytes)
