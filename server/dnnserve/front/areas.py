"""Tensors of a request that lie in shared memory: what its form says of them is checked once, what lies there is read each time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dnnserve.catalog import ModelSpec, shorten
from dnnserve.errors import InvalidRequestError
from dnnserve.front.parameters import Wanted, integer_of
from dnnserve.front.tensors import Given
from dnnserve.shared_memory.regions import Regions
from dnnserve.shared_memory.requests import Area

__all__ = ["area_of", "check_area", "destinations_of", "held", "read_area", "release"]


def area_of(parameters: Any) -> Area | None:
    """Where a tensor with these parameters lies; None: not in shared memory."""
    if "shared_memory_region" not in parameters:
        return None
    region = parameters["shared_memory_region"]
    if region.WhichOneof("parameter_choice") != "string_param":
        raise InvalidRequestError("parameter 'shared_memory_region' is no string; send string_param")
    offset, nbytes = (
        integer_of(parameters[name], name) if name in parameters else 0
        for name in ("shared_memory_offset", "shared_memory_byte_size")
    )
    if offset < 0 or nbytes < 1:
        raise InvalidRequestError(
            f"there is no shared memory of {nbytes} bytes from {offset} on; send shared_memory_byte_size, and shared_memory_offset "
            "from 0 on"
        )
    return Area(region.string_param, offset, nbytes)


def check_area(given: Given, area: Area | None) -> None:
    """Raise for an input that lies in more than one place, or takes other bytes of shared memory than its shape says."""
    if area is None:
        return
    name, tensor = shorten(given.tensor.name), given.tensor
    if tensor.HasField("contents"):
        raise InvalidRequestError(f"input {name} has contents and lies in shared memory; send one of the two")
    if given.dtype is not None and area.nbytes != given.nbytes:
        raise InvalidRequestError(
            f"input {name} has {area.nbytes} bytes in shared memory; {tensor.datatype}{list(given.shape)} has {given.nbytes}"
        )


def read_area(regions: Regions, area: Area, *, images: bool) -> memoryview:
    """A copy of what lies in an area: as many bytes as a model says, or of images as many as a message may have.

    Raises:
        RegionNotFoundError: there is no such region.
        InvalidRequestError: the area is not in it, or the images are too large.
    """
    if images and area.nbytes > regions.most_image_bytes:
        raise InvalidRequestError(
            f"the images in shared memory have {area.nbytes} bytes; at most {regions.most_image_bytes} are read (--max-message-mib)"
        )
    return regions.read(area)


def destinations_of(message: Any, spec: ModelSpec, wanted: Sequence[Wanted], rows: int) -> Sequence[Area | None]:
    """Areas of the outputs that are wanted, each with room for so many rows; none where all go into the response."""
    areas = [area_of(output.parameters) for output in message.outputs]
    if not any(areas):
        return ()
    for (place, *_), area in zip(wanted, areas, strict=True):
        output = spec.outputs[place]
        nbytes = rows * math.prod(output.shape) * output.dtype.itemsize
        if area is not None and area.nbytes < nbytes:
            raise InvalidRequestError(
                f"output {output.name!r} has {nbytes} bytes; {area.nbytes} are there for it in shared memory"
            )
    return areas


def held(regions: Regions, wanted: Sequence[Wanted], areas: Sequence[Area | None]) -> Sequence[Wanted]:
    """What is wanted, with the destinations of those outputs that have an area, which are held until `release`.

    Raises:
        RegionNotFoundError: there is no such region; nothing is held.
        InvalidRequestError: an area is not in it, or must not be written; likewise.
    """
    placed: list[Wanted] = []
    try:
        for each, area in zip(wanted, areas, strict=True):
            placed.append(each if area is None else each._replace(destination=regions.destination(area)))
    except BaseException:
        release(placed)
        raise
    return placed


def release(wanted: Sequence[Wanted]) -> None:
    """Let go of destinations."""
    for each in wanted:
        if each.destination is not None:
            each.destination.release()
