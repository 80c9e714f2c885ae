"""Images and filters as phases: their descriptors, and the launches that split them and join them again. Pure.

With a stride of s, place t of a padded axis is place t // s of phase t % s. Phases of an image are channels of their own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np

from dnncore.cuda.calls import Calls, Place, blocks_for, in_order, kernel_call
from dnncore.cuda.geometry import taps
from dnncore.cuda.params import ADDRESS, BLEND, FLOATING, SMALL_DIVISOR, c_type, generate, packer, small_divisor, struct
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ConvolutionDescriptor, Layout, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures

__all__ = ["MOST", "MOST_SPATIAL", "Phases", "least_moving_seconds", "units"]

_THREADS = 128
_RUN_AXES, _OUTER_AXES, _ROWS = 2, 3, 8
"""As in space_to_depth.cuh."""

MOST_SPATIAL = 3
"""Spatial dimensions."""

MOST = 2**31 - 1
"""Elements of an image with its padding: they are counted in 32 bits."""

# As first layers and larger ones took on an H200: the share of the memory rate, for both sides together, and a lane's clocks for an
# element. A multiprocessor has so many lanes.
_OF_MEMORY_RATE = 0.4
_ELEMENT_CLOCKS, _LANES = 100, 128
_LAUNCHES = 1.3
"""Of a split or a join; assumed."""

_AXIS = struct(
    ("extent", SMALL_DIVISOR),
    ("phases", SMALL_DIVISOR),
    ("first", "<i4"),
    ("before", "<i4"),
    ("image", "<i4"),
    ("places", "<i4"),
    ("image_stride", "<i8"),
    ("phase_stride", "<i8"),
    ("place_stride", "<i8"),
)
_PARAMS = struct(
    *BLEND,
    ("input", ADDRESS),
    ("output", ADDRESS),
    ("items", "<i4"),
    ("run", "<i4"),
    ("run_tiles", SMALL_DIVISOR),
    ("row_tiles", SMALL_DIVISOR),
    ("outer", _AXIS, (_OUTER_AXES,)),
    ("rows", _AXIS),
    ("runs", _AXIS, (_RUN_AXES,)),
)
_PACKED_PARAMS = packer(_PARAMS)


class _Axis(NamedTuple):
    """One axis of an image. Immutable."""

    image: int
    before: int
    phases: int
    places: int
    image_stride: int
    phase_stride: int
    place_stride: int

    def extent(self, *, splits: bool) -> int:
        """Of what is counted: all places of all phases, or the image."""
        return self.phases * self.places if splits else self.image


_NO_AXIS = _Axis(1, 0, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Phases:
    """A tensor [M, C, *spatial] and its phases [M, channels, *places]. Immutable.

    Channels of the phases are counted channel by channel, the phases of each in row-major order; or, where channels are innermost,
    phase by phase. Those beyond are zeros.

    Args:
        image: The tensor as it is given.
        phases: The other, without gaps.
        axes: Of the spatial dimensions, and before them those of M and C.
        offset: Elements from the image's address to the place that all axes count from.
        at: And from the phases' address: several images may share them.
    """

    image: TensorDescriptor
    phases: TensorDescriptor
    axes: tuple[_Axis, ...]
    offset: int = 0
    at: int = 0

    @classmethod
    def of(
        cls,
        image: TensorDescriptor,
        places: tuple[int, ...],
        stride: tuple[int, ...],
        channels: int,
        *,
        innermost: bool,
        before: tuple[int, ...] | None = None,
        taps_of: ConvolutionDescriptor | None = None,
    ) -> Phases:
        """Split an image or a filter.

        Args:
            image: [M, C, *spatial].
            places: Extents of a phase.
            stride: There are phases of.
            channels: Of the phases: at least C times the phases.
            innermost: Whether channels are innermost in the phases.
            before: Places of padding that phases begin with; none by default.
            taps_of: Of a filter, whose taps may be counted from the last.
        """
        shape = (image.shape[0], channels, *places)
        phases = TensorDescriptor.packed(shape, image.dtype, Layout.NHWC if innermost else Layout.NCHW)
        counts = [math.prod(stride[i + 1 :]) for i in range(len(stride))]
        of_channel = 1 if innermost else math.prod(stride)
        of_phase = image.shape[1] if innermost else 1
        offset, steps = 0, image.strides[2:]
        if taps_of is not None:
            offset, steps = taps(image.shape[2:], image.strides[2:], taps_of)
        step = phases.strides[1]
        axes = (
            _Axis(image.shape[0], 0, 1, image.shape[0], image.strides[0], 0, phases.strides[0]),
            _Axis(image.shape[1], 0, 1, image.shape[1], image.strides[1], 0, of_channel * step),
            *map(
                _Axis,
                image.shape[2:],
                (0,) * len(stride) if before is None else before,
                stride,
                places,
                steps,
                [count * of_phase * step for count in counts],
                phases.strides[2:],
            ),
        )
        return cls(image, phases, axes, offset)

    def in_rows(self, rows: int, step: int) -> Phases:
        """Phases of more rows (M), of which these are the first and then each `step` rows on; the others belong to others."""
        phases = TensorDescriptor(self.phases.dtype, (rows, *self.phases.shape[1:]), self.phases.strides)
        of_rows = self.axes[0]._replace(place_stride=step * phases.strides[0])
        return replace(self, phases=phases, axes=(of_rows, *self.axes[1:]))

    def beside(self, first: int, before: Sequence[int]) -> Phases:
        """The same image in other ones of these rows, from the first on, with so many places of padding."""
        spatial = [axis._replace(before=places) for axis, places in zip(self.axes[2:], before, strict=True)]
        return replace(self, axes=(*self.axes[:2], *spatial), at=first * self.phases.strides[0])

    @property
    def has_more_channels(self) -> bool:
        """Whether there are channels of zeros."""
        return self.phases.shape[1] > self.image.shape[1] * math.prod([axis.phases for axis in self.axes])

    @property
    def padded_size(self) -> int:
        """Elements of the image as far as phases reach, or of the image, whichever are more."""
        return math.prod([max(axis.phases * axis.places, axis.image) for axis in self.axes])

    def seconds(self, figures: DeviceFigures) -> float:
        """Estimated time of a split or of a join."""
        count = math.prod([axis.phases * axis.places for axis in self.axes])
        nbytes = self.image.nbytes + count * self.phases.dtype.itemsize
        lanes = _LANES * figures.multiprocessors * figures.clock_hz
        busy = max(nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE), count * _ELEMENT_CLOCKS / lanes)
        return _LAUNCHES * figures.launch_seconds + busy

    def split(self, image: Place, phases: Place, figures: DeviceFigures) -> Calls:
        """From the image to its phases; what is beyond its channels is left."""
        return self._call(image, phases, figures, splits=True)

    def join(self, phases: Place, image: Place, figures: DeviceFigures) -> Calls:
        """From phases to the image, blended with what it held."""
        return self._call(phases, image, figures, splits=False)

    def _call(self, source: Place, target: Place, figures: DeviceFigures, *, splits: bool) -> Calls:
        # In the image's order in memory; of extents that are not there, none.
        axes = sorted(self.axes, key=lambda axis: -abs(axis.image_stride))
        innermost = 1 if axes[-1].extent(splits=splits) >= _THREADS else _RUN_AXES
        *outer, rows = axes[:-innermost]
        runs = axes[-innermost:]
        run, row_count = math.prod([axis.extent(splits=splits) for axis in runs]), rows.extent(splits=splits)
        run_tiles, row_tiles = -(-run // _THREADS), -(-row_count // _ROWS)
        items = math.prod([axis.extent(splits=splits) for axis in outer]) * run_tiles * row_tiles
        missing = [_NO_AXIS] * (_OUTER_AXES - len(outer)), [_NO_AXIS] * (_RUN_AXES - len(runs))
        packed = _PACKED_PARAMS.pack(
            1.0 if splits else 0.0,  # alpha: the phases are the library's own; what is split is taken as it is
            0.0,
            *(0, 0),  # addresses
            items,
            run,
            *small_divisor(run_tiles),
            *small_divisor(row_tiles),
            *[
                number
                for axis in (*missing[0], *outer, rows, *missing[1], *runs)
                for number in _numbers(axis, splits=splits)
            ],
        )
        params = np.frombuffer(packed, _PARAMS).reshape(())
        offset, at = (elements * self.image.dtype.itemsize for elements in (self.offset, self.at))
        places = (source.plus(offset), target.plus(at)) if splits else (source.plus(at), target.plus(offset))
        blocks = blocks_for(figures, items * _THREADS, _THREADS)
        unit = _unit(self.image.dtype, splits=splits)
        fields = dict(zip(in_order("input", "output"), places, strict=True))
        early = figures.starts_early
        return kernel_call(unit, blocks, _THREADS, params, fields, blends=not splits, starts_early=early)


def _numbers(axis: _Axis, *, splits: bool) -> tuple[int, ...]:
    """Of an _AXIS."""
    image, before, phases, places, *strides = axis
    extent = axis.extent(splits=splits)
    return (*small_divisor(extent), *small_divisor(phases), 0 if splits else before, before, image, places, *strides)


def least_moving_seconds(images: Collection[TensorDescriptor], figures: DeviceFigures) -> float:
    """Seconds that splitting or joining images, filters among them, is not below, into whatever phases."""
    nbytes = sum([image.nbytes for image in images])
    return len(images) * _LAUNCHES * figures.launch_seconds + nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE)


@cache
def _unit(dtype: DType, *, splits: bool) -> Unit:
    way = "split" if splits else "join"
    return generate(
        header="dnncore/convolution/space_to_depth.cuh",
        entry=f"convolution_phases_{way}_{c_type(dtype)}",
        function=f"space_to_depth::space_to_depth<{c_type(dtype)}, {str(splits).lower()}>",
        struct_name="space_to_depth::Params",
        dtype=_PARAMS,
        threads=_THREADS,
        starts_early=True,
    )


def units() -> tuple[Unit, ...]:
    """Every unit that splits and joins."""
    return tuple(_unit(dtype, splits=splits) for dtype in FLOATING for splits in (True, False))
