"""Tensors of a request that lie in shared memory: what its form says of them is checked once, what lies there is read each time.

A request takes hold of its areas when it comes. They are read later, when it is known that it is worth it: image files, and
what is large, by the threads that decode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dnnserve.catalog import ModelSpec, shorten
from dnnserve.errors import InvalidRequestError
from dnnserve.front.parameters import Wanted, integer_of
from dnnserve.front.sources import Checkpoint, Images
from dnnserve.front.tensors import Given, images_of, rows_of
from dnnserve.shared_memory.regions import Origin, Regions
from dnnserve.shared_memory.requests import Area

__all__ = [
    "SharedImages",
    "SharedRows",
    "area_of",
    "bytes_to_write",
    "check_area",
    "destinations_of",
    "held",
    "origins_of",
    "release",
]


@dataclass(frozen=True, slots=True, eq=False)
class SharedRows:
    """Rows of inputs some of which lie in shared memory, to be read once. Immutable.

    Args:
        inputs: In the model's order.
        contents: Of those whose bytes are in the request.
        origins: Of the others, whose places come behind theirs.
    """

    inputs: Sequence[Given]
    contents: Sequence[bytes | memoryview]
    origins: Sequence[Origin]

    @property
    def nbytes(self) -> int:
        """What is read."""
        return sum(origin.nbytes for origin in self.origins)

    def count_pixels(self, checkpoint: Checkpoint) -> int:  # noqa: ARG002 - RowSource's argument
        """None: there is nothing to decode."""
        return 0

    def rows(self, checkpoint: Checkpoint) -> Sequence[np.ndarray]:
        """The rows of each input.

        Raises:
            InvalidRequestError: a client has cut its memory off.
        """
        contents = [*self.contents, *(origin.read(checkpoint) for origin in self.origins)]
        return [rows_of(each, contents) for each in self.inputs]


@dataclass(slots=True, eq=False)
class SharedImages:
    """Image files in shared memory. Owned by one thread at a time: the first who asks for anything reads them.

    Args:
        given: The model's only input.
        origin: Where its BYTES tensor lies.
        spec: The model's.
    """

    given: Given
    origin: Origin
    spec: ModelSpec
    _images: Images | None = field(default=None, init=False)

    def count_pixels(self, checkpoint: Checkpoint) -> int:
        """Pixels of all files, before they are resized."""
        return self._read(checkpoint).count_pixels(checkpoint)

    def rows(self, checkpoint: Checkpoint) -> Sequence[np.ndarray]:
        """The files' pixels at the net's size."""
        return self._read(checkpoint).rows(checkpoint)

    def _read(self, checkpoint: Checkpoint) -> Images:
        if self._images is None:
            # Once: files whose pixels were counted are those that are decoded, whatever the client writes over them.
            self._images = images_of(self.given, [self.origin.read(checkpoint)], self.spec)
        return self._images


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


def origins_of(regions: Regions, areas: Sequence[Area], *, images: bool) -> Sequence[Origin]:
    """Areas of inputs, which are held until `release`: as many bytes as a model says, or of images as many as a message may have.

    Raises:
        RegionNotFoundError: there is no such region; nothing is held.
        InvalidRequestError: an area is not in it, or an input is too large; likewise.
        QueueFullError: there is no room for a copy of it now; likewise.
    """
    if images and (nbytes := sum(area.nbytes for area in areas)) > regions.most_image_bytes:
        raise InvalidRequestError(
            f"the images in shared memory have {nbytes} bytes; at most {regions.most_image_bytes} are read (--max-message-mib)"
        )
    origins: list[Origin] = []
    try:
        for area in areas:
            origins.append(regions.origin(area))  # noqa: PERF401 - those before one that fails are released
    except BaseException:
        release(origins=origins)
        raise
    return origins


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


def bytes_to_write(wanted: Sequence[Wanted], outputs: Mapping[int, np.ndarray]) -> int:
    """What goes to destinations, of a request's outputs by number."""
    return sum([outputs[place].nbytes for place, classes, area in wanted if area is not None and not classes])


def release(wanted: Sequence[Wanted] = (), origins: Sequence[Origin] = ()) -> None:
    """Let go of destinations and origins."""
    for origin in origins:
        origin.release()
    for each in wanted:
        if each.destination is not None:
            each.destination.release()
