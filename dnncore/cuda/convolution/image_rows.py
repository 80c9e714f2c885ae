"""Rows of channels-last images of few channels as chunks of 16 bytes, which threads lay out for the matrix units. Pure.

What a row of a filter meets of a row of x are neighbours in memory, wherever they begin, and as many as there are taps times
channels: a network's first layer has 21 or 33 of them. The picture is in `convolution/image_rows.cuh`. What is read is
x, or pixels of 8 bits that become x when threads look them up.
"""

from __future__ import annotations

import numpy as np

from dnncore.cuda.convolution.wgmma_tile import WARPGROUP
from dnncore.cuda.params import ADDRESS, record, struct
from dnncore.cuda.tensor_map import FARTHEST_BYTES, BoxMap
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, FusedConvolutionProblem

__all__ = [
    "CHUNK_BYTES",
    "IMAGE_ROWS",
    "MOST_CHUNKS",
    "PLACE_BYTES",
    "PLACE_OUTPUTS",
    "chunk_values",
    "image_rows",
    "laying_out_clocks",
    "row_values",
    "runs_map",
    "why_no_rows",
    "why_not_neighbours",
]

CHUNK_BYTES = 16

_WORD_BYTES = 4
"""What threads load at a time where they can."""

PLACE_OUTPUTS = 8
PLACE_BYTES = CHUNK_BYTES * PLACE_OUTPUTS
"""Of a stage: a chunk of each of the outputs that are neighbours in a row."""

MOST_CHUNKS = WARPGROUP // PLACE_OUTPUTS
"""Of a filter's row: of eight outputs, as many as a warpgroup lays out at once."""

IMAGE_ROWS = struct(
    ("images", ADDRESS),
    ("strides", "<i8", 2),
    ("step", "<i8"),
    *((name, "<i4") for name in ("chunks", "pitch", "stage_rows", "rows_at_once", "height", "row_values")),
    *((name, "<i4") for name in ("row_step", "value_step", "rows_before", "values_before")),
    ("tail", "<u4", CHUNK_BYTES // _WORD_BYTES),
    ("in_words", "<u4"),
)
"""`wgmma::ImageRows`."""

_MOST_OF_BOX = 256
"""Along each dimension."""

# Of a multiprocessor that lays out the rows of one rectangle of outputs, fitted to first layers of 16 bits on an H200
# (docs/worklog-convolution.md): clocks, and clocks for 32 outputs' chunks. Rows that are no whole words are read value by value, as
# fitted for the 8 of a chunk of 16 bits, and of pixels each is looked up [assumed].
_LAYING_OUT_CLOCKS, _CHUNK_CLOCKS = 219, 68
_EIGHT_SINGLE_VALUES = 2.0
_LOOKUPS = 1.25


def chunk_values(dtype: DType) -> int:
    """Values of a filter's row that are laid out together, if they are of a dtype when they are multiplied."""
    return CHUNK_BYTES // dtype.itemsize


def why_no_rows(problem: ConvolutionProblem, x: TensorDescriptor) -> str | None:
    """None where what a row of a filter meets are neighbours in x, which is what is read, else the reason."""
    channels = x.shape[1]
    reason = why_not_neighbours(problem)
    if reason is not None:
        return reason
    if (x.shape[3] > 1 and x.strides[3] != channels) or (channels > 1 and x.strides[1] != 1):
        return f"x ({x}) does not have its channels innermost, pixel behind pixel"
    return None


def why_not_neighbours(problem: ConvolutionProblem) -> str | None:
    """None where taps of a row of a filter meet neighbouring pixels, else the reason."""
    conv = problem.convolution
    if any(step > 1 and taps > 1 for step, taps in zip(conv.dilation, problem.w.shape[2:], strict=True)):
        return f"dilation {conv.dilation}; the values of a row are neighbours"
    return None


def row_values(problem: ConvolutionProblem | FusedConvolutionProblem) -> int:
    """Of a row of a filter."""
    return problem.w.shape[3] * problem.w.shape[1]


def image_rows(
    problem: ConvolutionProblem,
    x: TensorDescriptor,
    *,
    chunks: int,
    pitch: int,
    stage_rows: int,
    rows_at_once: int,
    used: int | None = None,
) -> np.ndarray:
    """The struct IMAGE_ROWS, all but the address.

    Args:
        problem: Of which x is laid out.
        x: What is read.
        chunks: Of a row of a filter.
        pitch: Places from a row of a stage to the next.
        stage_rows: Rows of a stage.
        rows_at_once: Of these, that a warpgroup lays out.
        used: Values of these chunks; what follows in the last one is filled up with zeros. None for all values.
    """
    conv, (_, channels, height, width) = problem.convolution, x.shape
    chunk, steps = chunk_values(problem.w.dtype), _steps(x)
    left_over = (chunks * chunk if used is None else used) - (chunks - 1) * chunk
    word_bits = _WORD_BYTES * 8
    left_over_bits = left_over * problem.w.dtype.itemsize * 8
    return record(
        IMAGE_ROWS,
        strides=steps,
        step=steps[1] * rows_at_once,
        chunks=chunks,
        pitch=pitch,
        stage_rows=stage_rows,
        rows_at_once=rows_at_once,
        height=height,
        row_values=width * channels,
        row_step=conv.stride[0],
        value_step=conv.stride[1] * channels,
        rows_before=conv.padding[0][0],
        values_before=conv.padding[1][0] * channels,
        tail=[
            (1 << min(max(left_over_bits - word_bits * i, 0), word_bits)) - 1 for i in range(CHUNK_BYTES // _WORD_BYTES)
        ],
        in_words=_is_in_words(x),
    )


def runs_map(x: TensorDescriptor, values: int, rows: int) -> BoxMap | None:
    """x as rows of values, so many of so many of which are copied at a time; None where the copy engine cannot take it.

    Args:
        x: Whose channels are innermost, pixel behind pixel.
        values: Neighbours in a row, whole chunks.
        rows: Of an image.
    """
    n, channels, height, width = x.shape
    length, itemsize, chunk = width * channels, x.dtype.itemsize, chunk_values(x.dtype)
    of_row = x.strides[2] if height > 1 else -(-length // chunk) * chunk
    of_image = x.strides[0] if n > 1 else of_row * height
    takes = all(0 < step * itemsize < FARTHEST_BYTES and step % chunk == 0 for step in (of_row, of_image))
    if not takes or max(values, rows) > _MOST_OF_BOX:
        return None
    steps_bytes = of_row * itemsize, of_image * itemsize
    return BoxMap(x.dtype, (length, height, n), steps_bytes, (values, rows, 1), swizzles=False)


def laying_out_clocks(problem: ConvolutionProblem, x: TensorDescriptor, chunks: float) -> float:
    """Of a multiprocessor that reads x and lays out so many chunks for a problem, those of a rectangle of outputs."""
    singles = _EIGHT_SINGLE_VALUES * chunk_values(problem.w.dtype) / 8
    clocks = _CHUNK_CLOCKS * (1.0 if _is_in_words(x) else singles) * (_LOOKUPS if x.dtype is DType.UINT8 else 1.0)
    return _LAYING_OUT_CLOCKS + chunks / 32 * clocks


def _steps(x: TensorDescriptor) -> tuple[int, int]:
    """Values from image to image and from row to row."""
    return x.strides[0] if x.shape[0] > 1 else 0, x.strides[2] if x.shape[2] > 1 else 0


def _is_in_words(x: TensorDescriptor) -> bool:
    """Whether all rows begin and end at words of 4 bytes, if the first one does."""
    values = _WORD_BYTES // x.dtype.itemsize
    return all(step % values == 0 for step in (*_steps(x), x.shape[3] * x.shape[1]))
