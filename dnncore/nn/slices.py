"""Where the values of a graph lie for a batch that is computed in slices: those of one slice, and the whole inputs and outputs.

data [8, ...] --> data of 2 images --> ... --> logits of 2 images --> logits [8, ...]          four times, one after the other
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dnncore.errors import BadParamError
from dnncore.nn.graph import BATCH, Graph
from dnncore.nn.memory import ALIGNMENT_BYTES
from dnncore.nn.placement import Place, Placement

__all__ = ["Layout", "images_of_a_slice", "lay_out"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Places in one block. Immutable.

    Args:
        slices: How many there are.
        slice: Places of the values of a slice, which is all of the batch where there is one.
        whole: Places of the inputs and outputs of the batch; none where there is one slice.
        offsets: Of the storages that are no constants, in bytes from the beginning of the block.
        nbytes: Of the block.
    """

    slices: int
    slice: Placement
    whole: Mapping[str, Place]
    offsets: Mapping[str, int]
    nbytes: int


def images_of_a_slice(batch: int, slice_images: int | None = None) -> int:
    """How many images are computed at a time; None for all.

    Raises:
        BadParamError: there are none, or the batch is no multiple of them.
    """
    if batch < 1:
        raise BadParamError(f"batch {batch} must be 1 or more")
    images = batch if slice_images is None else slice_images
    if images < 1 or batch % images:
        raise BadParamError(f"slices of {images} images do not make a batch of {batch}; use a divisor")
    return images


def lay_out(graph: Graph, batch: int, placement: Placement, images: int) -> Layout:
    """Find places for a graph's inputs and outputs beside the values of a slice.

    Args:
        graph: The net.
        batch: Number of images.
        placement: Of a slice's values.
        images: Of a slice.

    Raises:
        BadParamError: an input or output does not begin with the batch, or the graph updates constants.
    """
    if images == batch:
        return Layout(1, placement, {}, placement.offsets, placement.nbytes)
    handed = [*(value.name for value in graph.inputs), *graph.outputs]
    uncut = [str(graph.values[name]) for name in handed if graph.values[name].shape[:1] != (BATCH,)]
    if uncut or graph.updates:
        changed = [f"{name} is updated" for name in graph.updates]
        raise BadParamError(f"net {graph.name!r} cannot run in slices of a batch: {'; '.join(uncut + changed)}")
    specs, whole, offsets, end = graph.specs(batch), {}, dict(placement.offsets), placement.nbytes
    for name in dict.fromkeys(handed):
        storage = f"{name} of all slices"
        whole[name] = Place(storage, 0, graph.descriptor(name, specs[name]))
        offsets[storage] = end
        end += -(-whole[name].descriptor.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return Layout(batch // images, placement, whole, offsets, end)
