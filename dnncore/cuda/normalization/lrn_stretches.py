"""Local response normalisation across channels in windows of five, from registers: what AlexNet and GoogLeNet have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, WhereAligned, kernel_call
from dnncore.cuda.normalization.lrn import AcrossChannels, LRNProblem, places_of, settings_of, tensors_of
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    SMALL_DIVISOR,
    c_type,
    collapse,
    generate_together,
    record,
    small_divisor,
    struct,
)
from dnncore.cuda.unit import Unit
from dnncore.descriptors import LRNMode
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import LRNBackwardProblem

__all__ = ["ChannelVectors", "ChannelWalk"]

_WINDOW = 5
"""kLrnWindow in lrn_stretches.cuh."""

_STRETCH = {"forward": 8, "backward": 4}
"""Channels that a walk has in registers beside those of the windows; kLrnForward and kLrnBackward there."""

_THREADS = 128
_VECTOR_BYTES, _PAIR_BYTES = 16, 4

_OF_THREADS = 0.5
"""Of those that the multiprocessors can hold: as many walks are wanted."""

_LEAST = 8
"""Channels of a part of a walk, where there are too few walks otherwise: a part reads again what its windows reach on either side,
but that costs less than to wait for memory from stretch to stretch."""

_OF_MEMORY_RATE = {"forward": {2: 0.75, 4: 0.93}, "backward": {2: 0.69, 4: 0.91}}
"""By the bytes of an element [measured on an H200: 64 x 64 x 112 x 112, planes]."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
_TENSORS = 3
"""x, dy and the output."""

_PARAMS = struct(
    *BLEND,
    ("x", ADDRESS),
    ("dy", ADDRESS),
    ("output", ADDRESS),
    ("share", "<f8"),
    ("exponent", "<f8"),
    ("k", "<f8"),
    ("image", "<i8", _TENSORS),
    ("place", "<i8", _TENSORS),
    ("channel", "<i8", _TENSORS),
    ("places", SMALL_DIVISOR),
    ("parts", SMALL_DIVISOR),
    ("part", "<i4"),
    ("channels", "<i4"),
    ("items", "<i4"),
)


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where x, dy and the output are: `images` times `places`, each with all channels. Steps count elements."""

    images: int
    places: int
    image: tuple[int, ...]
    place: tuple[int, ...]
    channel: tuple[int, ...]

    @classmethod
    def of(cls, problem: LRNProblem) -> _Frame | str:
        """The frame; or the reason why there is none."""
        lrn = problem.lrn
        if lrn.mode is not LRNMode.ACROSS_CHANNELS or lrn.n != _WINDOW:
            return f"windows of {lrn.n}, mode {lrn.mode.value}; it is for {_WINDOW} channels"
        if problem.x.dtype not in _DTYPES:
            return f"x is {problem.x.dtype.value}"
        if not 0 < problem.x.size < 2**31:
            return f"x has {problem.x.size} elements"
        tensors = tensors_of(problem)
        others = [axis for axis in range(problem.x.ndim) if axis != 1]
        extents, *steps = collapse(
            [problem.x.shape[axis] for axis in others], *([t.strides[axis] for axis in others] for t in tensors)
        )
        if len(extents) > 2:
            return f"images and their places are {len(extents)} dimensions in memory, at least; it is for 2"
        channel = tuple(tensor.strides[1] for tensor in tensors)
        images = extents[0] if len(extents) == 2 else 1
        image = tuple(step[0] if len(extents) == 2 else 0 for step in steps)
        return cls(images, extents[-1], image, tuple(step[-1] for step in steps), channel)

    def are_multiples(self, of: int, *steps: tuple[int, ...]) -> bool:
        """Whether all steps are, and those from image to image."""
        return all(step % of == 0 for each in (*steps, self.image) for step in each)


def _units(dtype: DType, direction: str) -> dict[int, Unit]:
    """By the bytes that a thread reads at once: vectors of channels, pairs of places, and single ones."""
    element, is_backward = c_type(dtype), str(direction == "backward").lower()
    functions = {_VECTOR_BYTES: f"lrn_vectors<{element}, {is_backward}>"} | {
        nbytes: f"lrn_walk<{element}, {nbytes // dtype.itemsize}, {is_backward}>"
        for nbytes in (_PAIR_BYTES, dtype.itemsize)
    }
    names = {nbytes: f"lrn_{direction}_stretches_{element}_{nbytes}" for nbytes in functions}
    entries = {names[nbytes]: function for nbytes, function in functions.items()}
    units = generate_together(
        "dnncore/normalization/lrn_stretches.cuh", entries, "LrnStretchParams", _PARAMS, _THREADS, starts_early=True
    )
    return {nbytes: units[name] for nbytes, name in names.items()}


def _call(
    problem: LRNProblem, frame: _Frame, figures: DeviceFigures, direction: str, nbytes: int, shares: Mapping[str, int]
) -> Calls:
    """One launch.

    Args:
        problem: Either direction.
        frame: Of it.
        figures: Of the device.
        direction: "forward" or "backward".
        nbytes: What a thread reads at once.
        shares: `places` and `parts` of an image, and the channels of a `part`.
    """
    items = frame.images * shares["places"] * shares["parts"]
    params = record(
        _PARAMS,
        **settings_of(problem, "share", "exponent", "k"),
        image=frame.image,
        place=frame.place,
        channel=frame.channel,
        places=small_divisor(shares["places"]),
        parts=small_divisor(shares["parts"]),
        part=shares["part"],
        channels=problem.x.shape[1],
        items=items,
    )
    unit = _units(problem.x.dtype, direction)[nbytes]
    return kernel_call(
        unit, -(-items // _THREADS), _THREADS, params, places_of(problem), starts_early=figures.starts_early
    )


def _where_aligned(problem: LRNProblem, nbytes: int, calls: Calls, otherwise: Callable[[], Calls]) -> Calls:
    operands = {place.operand: place for place in places_of(problem).values()}
    return (WhereAligned(tuple((place, nbytes) for place in operands.values()), calls, otherwise),)


def _offer(problem: LRNProblem, figures: DeviceFigures, direction: str, prepare: partial[Calls]) -> Offer:
    nbytes = sum(tensor.nbytes for tensor in (problem.x, *problem.outputs))
    if isinstance(problem, LRNBackwardProblem):  # y is not read
        nbytes += problem.dy.nbytes
    seconds = nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE[direction][problem.x.dtype.itemsize])
    return Offer(figures.launch_seconds + seconds, prepare)


@dataclass(frozen=True, slots=True)
class ChannelWalk:
    """Channels that are planes: threads walk from plane to plane. Immutable.

    Args:
        direction: "forward" or "backward".
    """

    direction: str
    name: str = "channel_walk"

    def offer(self, problem: LRNProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        frame = _Frame.of(problem)
        if isinstance(frame, str):
            return frame
        if any(step != 1 for step in frame.place):
            return f"neighbours in a plane are {frame.place} elements apart"
        return _offer(problem, figures, self.direction, partial(self._prepare, problem, frame, figures))

    def units(self) -> tuple[Unit, ...]:
        """Two for each narrow dtype, and one for float32."""
        return tuple(
            unit
            for dtype in _DTYPES
            for nbytes, unit in _units(dtype, self.direction).items()
            if nbytes != _VECTOR_BYTES
        )

    def _prepare(self, problem: LRNProblem, frame: _Frame, figures: DeviceFigures) -> Calls:
        itemsize = problem.x.dtype.itemsize
        one_by_one = partial(self._call, problem, frame, figures, itemsize)
        pair = _PAIR_BYTES // itemsize
        if pair == 1 or frame.places % pair or not frame.are_multiples(pair, frame.channel):
            return one_by_one()
        return _where_aligned(problem, _PAIR_BYTES, self._call(problem, frame, figures, _PAIR_BYTES), one_by_one)

    def _call(self, problem: LRNProblem, frame: _Frame, figures: DeviceFigures, nbytes: int) -> Calls:
        channels, stretch = problem.x.shape[1], _STRETCH[self.direction]
        places = frame.places * problem.x.dtype.itemsize // nbytes
        threads = int(figures.multiprocessors * figures.threads_per_multiprocessor * _OF_THREADS)
        wanted = -(-threads // (frame.images * places))
        parts = max(1, min(wanted, channels // _LEAST))
        part = -(-channels // (parts * stretch)) * stretch
        shares = {"places": places, "parts": -(-channels // part), "part": part}
        return _call(problem, frame, figures, self.direction, nbytes, shares)


@dataclass(frozen=True, slots=True)
class ChannelVectors:
    """Channels that are neighbours: a vector of them per thread. Immutable.

    Args:
        direction: "forward" or "backward".
    """

    direction: str
    name: str = "channel_vectors"

    def offer(self, problem: LRNProblem, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`."""
        frame = _Frame.of(problem)
        if isinstance(frame, str):
            return frame
        width = _VECTOR_BYTES // problem.x.dtype.itemsize
        whole = problem.x.shape[1] % width == 0 and frame.are_multiples(width, frame.place)
        if any(step != 1 for step in frame.channel) or not whole:
            return f"x ({problem.x}) and what is written have no vectors of {width} channels"
        anywhere = AcrossChannels(self.direction).offer(problem, figures)
        if isinstance(anywhere, str):
            return anywhere
        return _offer(problem, figures, self.direction, partial(self._prepare, problem, frame, anywhere, figures))

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype, and those for addresses that are not aligned."""
        own = (_units(dtype, self.direction)[_VECTOR_BYTES] for dtype in _DTYPES)
        return (*own, *AcrossChannels(self.direction).units())

    def _prepare(self, problem: LRNProblem, frame: _Frame, anywhere: Offer, figures: DeviceFigures) -> Calls:
        width = _VECTOR_BYTES // problem.x.dtype.itemsize
        shares = {"places": frame.places, "parts": problem.x.shape[1] // width, "part": width}
        calls = _call(problem, frame, figures, self.direction, _VECTOR_BYTES, shares)
        return _where_aligned(problem, _VECTOR_BYTES, calls, anywhere.prepare)
