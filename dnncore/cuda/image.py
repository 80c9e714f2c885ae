"""Images of 8 bits a channel: table lookups on their way to a net's input, and resampling in fixed point."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, blocks_for, in_order, kernel_call
from dnncore.cuda.params import ADDRESS, BLEND, DIVISOR, c_type, divisor, generate, generate_together, record, struct
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ImageNormalizationProblem, ImageResizeProblem

__all__ = ["NORMALIZATION", "RESIZE", "ImageNormalization", "ImageResize"]

_THREADS = 256
"""A block fills its table, of up to 768 floats, with a few loads per thread."""

_CHANNELS = 4
"""kImageChannels and kResizeChannels."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
_GROUP = 4
"""Neighbouring pixels that a thread of `pixels` takes."""

_NORMALIZATION = struct(
    *BLEND,
    *((name, ADDRESS) for name in ("x", "table", "mean", "y")),
    ("items", "<i8"),
    *((name, DIVISOR) for name in ("channels", "rows", "columns")),
    ("x_strides", "<i8", 4),
    ("y_strides", "<i8", 4),
    ("mean_strides", "<i8", 3),
    *((name, "<i8") for name in ("height", "width", "top", "left")),
    ("order", "<i4", _CHANNELS),
    ("border", "<i4", _CHANNELS),
    ("row_length", "<i4"),
    ("interleaved", "<i4"),
)
_RESIZE = struct(
    *BLEND,
    *((name, ADDRESS) for name in ("pixels", "images", "taps", "y")),
    ("size", "<i8"),
    ("rows", DIVISOR),
    ("columns", DIVISOR),
    ("y_strides", "<i8", 4),
    ("channels", "<i4"),
    ("border", "<i4", _CHANNELS),
    ("rounds_between", "<i4"),
)

_OF_MEMORY_RATE = {"pixels": 0.8, "strided": 0.35}
"""Assumed, as other kernels that read and write vectors, and as those that divide for each element."""

_OF_MEMORY_RATE_RESIZING = 0.2
"""Assumed: the bytes of a large image are read once from memory, and several times from the caches."""


@dataclass(frozen=True, slots=True)
class ImageNormalization:
    """y = table[x] - mean. Immutable.

    Args:
        name: "pixels", 4 neighbours at a time; or "strided", which takes anything.
    """

    name: str

    def offer(self, problem: ImageNormalizationProblem, figures: DeviceFigures) -> Offer | str:
        """What it would take; or the reason why it cannot."""
        if self.name == "pixels":
            channels, x = problem.x.shape[1], problem.x
            if channels not in (1, 3):
                return f"x has {channels} channels; it takes 1 or 3"
            if x.strides[3] != channels or (channels > 1 and x.strides[1] != 1):
                return f"x ({x}) does not have its channels innermost, pixel behind pixel"
        nbytes = problem.x.size + problem.y.size * problem.y.dtype.itemsize
        rate = figures.bytes_per_second * _OF_MEMORY_RATE[self.name]
        return Offer(figures.launch_seconds + nbytes / rate, partial(self._prepare, problem, figures))

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype of y, and for gray and coloured images."""
        kinds = (1, 3) if self.name == "pixels" else (0,)
        return tuple(self._unit(dtype, channels) for dtype in _DTYPES for channels in kinds)

    def _prepare(self, problem: ImageNormalizationProblem, figures: DeviceFigures) -> Calls:
        x, y, mean = problem.x, problem.y, problem.mean
        (batch, channels, rows, row_length), grouped = y.shape, self.name == "pixels"
        columns = -(-row_length // _GROUP) if grouped else row_length
        items = batch * rows * columns * (1 if grouped else channels)
        assert problem.order is not None
        assert problem.border is not None
        unused = (0,) * (_CHANNELS - channels)
        params = record(
            _NORMALIZATION,
            items=items,
            channels=divisor(channels),
            rows=divisor(rows),
            columns=divisor(columns),
            x_strides=x.strides,
            y_strides=y.strides,
            mean_strides=(0, 0, 0) if mean is None else mean.strides,
            height=x.shape[2],
            width=x.shape[3],
            top=problem.offset[0],
            left=problem.offset[1],
            order=(*problem.order, *unused),
            border=(*problem.border, *unused),
            row_length=row_length,
            interleaved=channels > 1 and y.strides[1] == 1 and y.strides[3] == channels,
        )
        unit = self._unit(y.dtype, channels if grouped else 0)
        operands = in_order("x", "table", *(() if mean is None else ("mean",)), "y")
        return kernel_call(unit, blocks_for(figures, items, _THREADS), _THREADS, params, operands)

    def _unit(self, dtype: DType, channels: int) -> Unit:
        """The kernel for images of so many channels, or for any where it is 0; all of a dtype are compiled together."""
        element = c_type(dtype)
        functions = {0: f"strided<{element}>", 1: f"pixels<{element}, 1>", 3: f"pixels<{element}, 3>"}
        entries = {kind: f"image_normalization_{element}_{kind or 'strided'}" for kind in functions}
        units = generate_together(
            "dnncore/image_normalization.cuh",
            {entries[kind]: f"image_normalization_{function}" for kind, function in functions.items()},
            "ImageNormalizationParams",
            _NORMALIZATION,
            _THREADS,
        )
        return units[entries[channels]]


@dataclass(frozen=True, slots=True)
class ImageResize:
    """Resampling in fixed point, a thread for each pixel of the results. Immutable."""

    name: str = "pixel_per_thread"

    def offer(self, problem: ImageResizeProblem, figures: DeviceFigures) -> Offer:
        """See `backend.Algorithm`; it supports everything that is legal."""
        seconds = operand_bytes(problem) / (figures.bytes_per_second * _OF_MEMORY_RATE_RESIZING)
        return Offer(figures.launch_seconds + seconds, partial(_prepare_resize, problem, figures))

    def units(self) -> tuple[Unit, ...]:
        """One."""
        return (_RESIZE_UNIT,)


_RESIZE_UNIT = generate(
    "dnncore/image_resize.cuh", "image_resize", "dnncore::image_resize", "ImageResizeParams", _RESIZE, _THREADS
)


def _prepare_resize(problem: ImageResizeProblem, figures: DeviceFigures) -> Calls:
    batch, channels, rows, columns = problem.y.shape
    assert problem.border is not None
    params = record(
        _RESIZE,
        size=batch * rows * columns,
        rows=divisor(rows),
        columns=divisor(columns),
        y_strides=problem.y.strides,
        channels=channels,
        border=(*problem.border, *(0,) * (_CHANNELS - channels)),
        rounds_between=problem.rounds_between,
    )
    blocks = blocks_for(figures, batch * rows * columns, _THREADS)
    return kernel_call(_RESIZE_UNIT, blocks, _THREADS, params, in_order("pixels", "images", "taps", "y"))


NORMALIZATION = (ImageNormalization("pixels"), ImageNormalization("strided"))
RESIZE = (ImageResize(),)
