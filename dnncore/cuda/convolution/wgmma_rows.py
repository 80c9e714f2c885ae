"""Forward convolution of channels-last images of few channels by the matrix units of sm_90: implicit_gemm_wgmma_rows.

Rows of x are laid out in chunks (`image_rows`); the picture is in `convolution/wgmma_rows.cuh`. Operands have 16 bits, or are
float32 where the caller permits tf32, to which threads round them, and sums are in fp32; or they are int8, whose sums are exact.
Padding is zeros that are multiplied. Where x is pixels of 8 bits, they are looked up on their way into shared memory and become 16
bits; where it is planes of float32, they are rounded to 16 bits there (`image_planes`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from dnncore.backend import Offer
from dnncore.bounds import Bounded, Selective
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Calls, Place, kernel_call
from dnncore.cuda.convolution.copy_engine import StoresChunks, patches_map, why_not_copied, why_not_stored
from dnncore.cuda.convolution.elsewhere import Otherwise, computing_elsewhere, where_aligned
from dnncore.cuda.convolution.image_planes import IMAGE_PLANES, PlaneWindow, planes_clocks, why_no_planes
from dnncore.cuda.convolution.image_rows import (
    CHUNK_BYTES,
    IMAGE_ROWS,
    MOST_CHUNKS,
    PLACE_BYTES,
    PLACE_OUTPUTS,
    chunk_values,
    image_rows,
    laying_out_clocks,
    row_values,
    why_no_rows,
)
from dnncore.cuda.convolution.wgmma_output import finish, residual_map, why_not_finished
from dnncore.cuda.convolution.wgmma_tile import (
    ARCHITECTURE,
    BOX_FILTERS,
    DTYPES,
    MOST,
    RECTANGLE,
    ROW_BYTES,
    WARPGROUP,
    least_of_wgmma,
    multiplies,
    params_dtype,
    why_no_wgmma,
)
from dnncore.cuda.params import ADDRESS, SMALL_DIVISOR, c_type, generate, record, small_divisor, struct
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES, TensorMap
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import (
    ConvolutionKind,
    ConvolutionProblem,
    Direction,
    FusedConvolutionProblem,
    ImageConvolutionProblem,
)

__all__ = ["WgmmaRows"]

Problem = ConvolutionProblem | FusedConvolutionProblem | ImageConvolutionProblem

assert RECTANGLE[1] == PLACE_OUTPUTS
_MOST_STEPS = 50
"""Products of two chunks; kMostSteps in convolution/wgmma_rows.cuh. 11 rows of 33 values in 32 bits are 99 chunks."""

_DTYPES = (*DTYPES, DType.INT8, DType.FLOAT32)
_HALVED = DType.FLOAT32
"""Whose rectangles are stored half by half."""

_WARPGROUPS = 4
_THREADS = _WARPGROUPS * WARPGROUP
_CONSUMERS, _CONSUMERS_OF_PLANES = 2, 3
"""The others produce. A stage must always be the same consumer's, and where there are two of them the same producer's: nothing
orders these, so that one that came to a stage of the other's could be a phase early. So stages are a multiple of consumers."""

_MOST_STAGES = 6
_WINDOWS = 4
"""Of planes; kWindows in convolution/wgmma_rows.cuh."""
_WINDOW_ALIGNMENT = 128
_TABLE_BYTES = 256 * 4 * 4
"""Of a channel, for pixels: 4 copies of a word each; PixelTable of convolution/pixel_table.cuh."""

_BOXES = 2
_MOST_STEP_BYTES = (2**14 - 1) * 16
"""From eight columns of an operand to the next eight."""

# Of the estimate, fitted to first layers of 16 bits on an H200 (docs/worklog-convolution.md): a multiprocessor's clocks of a
# rectangle, for products and stores, if laying out its chunks does not take longer. A step of any dtype has as many bytes, and by
# the units' rates takes as long; outputs of 32 bits are more bytes through shared memory, in and out. Then the share of the
# memory's rate, and what it takes until the first products: in launches, and for the filters, whose chunks had 8 values.
_RECTANGLE_CLOCKS, _STEP_CLOCKS = 1142, 56
_SHARED_BYTES = 128
"""That shared memory moves in a clock."""
_OF_MEMORY_RATE = 0.85
_LAUNCHES = 1.25
_FILTER_CLOCKS = 376


def _params() -> np.dtype:
    """`RowsParams` of convolution/wgmma_rows.cuh: behind what it inherits, fields of its own."""
    inherited = params_dtype(backward=False)
    own = struct(
        ("rows", IMAGE_ROWS),
        ("planes", IMAGE_PLANES),
        ("filters_begin", ADDRESS),
        ("table", ADDRESS),
        ("w_strides", "<i8", 4),
        *((name, SMALL_DIVISOR) for name in ("across", "down")),
        *((name, "<i4") for name in ("rectangles", "blocks_of_filters", "stages", "steps")),
        *((name, "<i4") for name in ("channels", "filter_rows", "filter_values")),
        ("places", "<u4", _MOST_STEPS),
    )
    fields = [
        (dtype, name, start)
        for dtype, start in ((inherited, 0), (own, inherited.itemsize))
        for name in dtype.names or ()
    ]
    found = {name: dtype.fields[name][:2] for dtype, name, _ in fields if dtype.fields is not None}
    return np.dtype(
        {
            "names": [name for _, name, _ in fields],
            "formats": [found[name][0] for _, name, _ in fields],
            "offsets": [start + found[name][1] for _, name, start in fields],
            "itemsize": -(-(inherited.itemsize + own.itemsize) // 64) * 64,
        }
    )


_PARAMS = _params()


@cache
def _unit(dtype: DType, read: DType) -> Unit:
    """The kernel that multiplies one dtype and reads another, or the same."""
    entry = f"convolution_wgmma_rows_{c_type(dtype)}" + ("" if read is dtype else f"_{c_type(read)}")
    return generate(
        header="dnncore/convolution/wgmma_rows.cuh",
        entry=entry,
        function=f"wgmma::RowsKernel<{c_type(dtype)}, {c_type(read)}>::run",
        struct_name="wgmma::RowsParams",
        dtype=_PARAMS,
        threads=_THREADS,
        architectures=(ARCHITECTURE,),
    )


@dataclass(frozen=True)
class WgmmaRows(Bounded, Selective, StoresChunks):
    """A forward convolution of few channels, with its epilogue or without, no workspace. Immutable.

    Args:
        name: See `backend.Algorithm`.
        elsewhere: What computes the same problems where y or a residual does not begin at a multiple of 16 bytes.
        into_copy: See `StoresChunks`.
    """

    name: str
    elsewhere: CudaAlgorithm
    into_copy: bool = False

    def units(self) -> tuple[Unit, ...]:
        """For each dtype one that reads it, and for those of 16 bits one that reads pixels and one that reads planes."""
        return (
            *(_unit(dtype, dtype) for dtype in _DTYPES),
            *(_unit(dtype, read) for read in (DType.UINT8, DType.FLOAT32) for dtype in DTYPES),
        )

    def suits(self, kind: ConvolutionKind) -> bool:
        """Forward, channels of images innermost."""
        x, _, y = kind.inside
        return kind.direction is Direction.FORWARD and multiplies(kind, _DTYPES) and x and y

    def least_seconds(self, problem: Problem, figures: DeviceFigures) -> float:
        """What its products take at the full rate, or memory; infinite of longer rows of filters than are laid out."""
        least = least_of_wgmma(problem, figures, _DTYPES)
        if not 0 < least < math.inf:
            return least
        if problem.w.shape[-1] * problem.w.shape[1] * problem.w.dtype.itemsize > MOST_CHUNKS * CHUNK_BYTES:
            return math.inf
        memory = operand_bytes(problem) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return max(least, memory) + _LAUNCHES * figures.launch_seconds

    def offer(self, problem: Problem, figures: DeviceFigures) -> Offer | str:
        """What it takes; or the reason why it does not suit the problem."""
        finished = problem.fused if isinstance(problem, ImageConvolutionProblem) else problem
        plain = finished if isinstance(finished, ConvolutionProblem) else finished.plain
        rows = _Rows(plain, problem.x)
        reason = (
            _why_not(rows, figures)
            or why_not_stored("y", plain.y, into_copy=self.into_copy)
            or why_not_finished(finished, why_not_copied)
        )
        if reason is not None:
            return reason
        if not rows.stages(figures):
            return f"it takes {rows.shared_bytes(rows.consumers)} B of shared memory; at most {figures.shared_bytes}"
        elsewhere, workspace_bytes = computing_elsewhere(self.elsewhere, problem, figures), 0
        if isinstance(problem, ImageConvolutionProblem):  # what computes that elsewhere takes workspace
            other = self.elsewhere.offer(problem, figures)
            if isinstance(other, str):
                return other
            elsewhere, workspace_bytes = other.prepare, other.workspace_bytes
        return Offer(
            rows.seconds(operand_bytes(problem), figures),
            partial(_calls, problem, finished, rows, figures, elsewhere),
            workspace_bytes,
            math="tf32" if plain.x.dtype is DType.FLOAT32 else "dtype",
        )


def _why_not(rows: _Rows, figures: DeviceFigures) -> str | None:
    """None where the kernel takes the convolution, as far as `why_not_stored` does not say otherwise of y, else the reason."""
    problem, x = rows.problem, rows.x
    y, w = problem.y, problem.w
    if problem.direction is not Direction.FORWARD:
        return f"it has no {problem.direction.value}"
    reason = why_no_wgmma(problem, figures.architecture, _unit(DTYPES[0], DTYPES[0]), _DTYPES)
    if reason is not None:
        return reason
    if rows.looks_up and w.dtype not in DTYPES:
        return f"pixels become {w.dtype.value}; it looks up {', '.join(dtype.value for dtype in DTYPES)}"
    if y.dtype is not w.dtype:
        return f"y is {y.dtype.value}; it stores {w.dtype.value}, as w is"
    reason = why_no_planes(problem, x, rows.window) if rows.rounds else why_no_rows(problem, x)
    if reason is not None:
        return reason
    conv, channels = problem.convolution, x.shape[1]
    if rows.chunks > MOST_CHUNKS or rows.steps > _MOST_STEPS:
        return (
            f"filters of {w.shape[2]} rows of {rows.filter_values} values; "
            f"at most {MOST_CHUNKS * rows.chunk} in a row, {_MOST_STEPS * 2} times {rows.chunk} in all"
        )
    if rows.filter_tiles > figures.multiprocessors:
        return f"{w.shape[0]} filters; a multiprocessor keeps {BOX_FILTERS} of them"
    if rows.row_step_bytes > _MOST_STEP_BYTES:
        return f"rows of outputs {rows.row_step_bytes} B apart; at most {_MOST_STEP_BYTES}"
    most = max(
        2 * rows.rectangles,
        w.shape[0],
        *(extent + sum(padding) for extent, padding in zip(x.shape[2:], conv.padding, strict=True)),
        (x.shape[3] + sum(conv.padding[1]) + w.shape[3] + RECTANGLE[1] * conv.stride[1]) * channels,
        x.shape[2] + sum(conv.padding[0]) + rows.stage_rows + 2 * RECTANGLE[0] * conv.stride[0],
    )
    if most > MOST:
        return f"rectangles, filters, or values of a row: {most}; at most {MOST}"
    return None


@dataclass(frozen=True, slots=True)
class _Rows:
    """A convolution as chunks of the rows of its filters. Immutable.

    Args:
        problem: What is multiplied.
        x: What is read: x of the problem, or the pixels or planes that become it.
    """

    problem: ConvolutionProblem
    x: TensorDescriptor

    @property
    def filter_values(self) -> int:
        """Of a row of a filter."""
        return row_values(self.problem)

    @property
    def chunk(self) -> int:
        """Values of a chunk."""
        return chunk_values(self.problem.w.dtype)

    @property
    def chunks(self) -> int:
        """Of a row of a filter."""
        return -(-self.filter_values // self.chunk)

    @property
    def rows_at_once(self) -> int:
        """Of a stage, that a warpgroup lays out."""
        return MOST_CHUNKS // self.chunks

    @property
    def steps(self) -> int:
        """Products of two chunks."""
        return -(-self.problem.w.shape[2] * self.chunks // 2)

    @property
    def pitch(self) -> int:
        """Chunks from a row of a stage to the next: with one of zeros where their number is odd."""
        return self.chunks + self.problem.w.shape[2] * self.chunks % 2

    @property
    def looks_up(self) -> bool:
        """Whether what is read is pixels."""
        return self.x.dtype is DType.UINT8

    @property
    def rounds(self) -> bool:
        """Whether what is read is planes of float32 that become 16 bits."""
        return self.x.dtype is DType.FLOAT32 and self.problem.w.dtype is not DType.FLOAT32

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return _CONSUMERS_OF_PLANES if self.rounds else _CONSUMERS

    @property
    def window(self) -> PlaneWindow:
        """Of planes, that a stage is laid out from."""
        return PlaneWindow.of(self.problem, self.stage_rows)

    @property
    def stage_rows(self) -> int:
        """Of x, that a rectangle of outputs meets."""
        return (RECTANGLE[0] - 1) * self.problem.convolution.stride[0] + self.problem.w.shape[2]

    @property
    def row_step_bytes(self) -> int:
        """Of a stage, from a row of outputs to the next."""
        return self.problem.convolution.stride[0] * self.pitch * PLACE_BYTES

    @property
    def filter_tiles(self) -> int:
        """Of 64 filters."""
        return -(-self.problem.w.shape[0] // BOX_FILTERS)

    @property
    def rectangles_of_image(self) -> tuple[int, int]:
        """Down and across."""
        p, q = self.problem.y.shape[2:]
        return -(-p // RECTANGLE[0]), -(-q // RECTANGLE[1])

    @property
    def rectangles(self) -> int:
        """Of all images."""
        return self.problem.y.shape[0] * math.prod(self.rectangles_of_image)

    @property
    def box_bytes(self) -> int:
        """Of the outputs that are stored at a time."""
        return math.prod(_box(self.problem.y)) * BOX_FILTERS * self.problem.y.dtype.itemsize

    def shared_bytes(self, stages: int) -> int:
        """The consumers' boxes, filters, a table, stages, windows; a barrier for each box and window, and two for each stage."""
        stage_bytes = self.stage_rows * self.pitch * PLACE_BYTES + 2 * 8
        filter_bytes = 2 * self.steps * BOX_FILTERS * 16
        table_bytes = self.x.shape[1] * _TABLE_BYTES if self.looks_up else 0
        windows_bytes = 0
        if self.rounds:
            window_bytes = -(-self.window.nbytes // _WINDOW_ALIGNMENT) * _WINDOW_ALIGNMENT
            windows_bytes = _WINDOWS * (window_bytes + 8)
        boxes_bytes = self.consumers * _BOXES * (self.box_bytes + 8)
        return boxes_bytes + filter_bytes + table_bytes + stages * stage_bytes + windows_bytes

    def stages(self, figures: DeviceFigures) -> int:
        """As many as fit; 0 where they are too few."""
        fitting = (n for n in range(_MOST_STAGES, 0, -self.consumers) if self.shared_bytes(n) <= figures.shared_bytes)
        return next(fitting, 0)

    def seconds(self, nbytes: int, figures: DeviceFigures) -> float:
        """Of the busiest multiprocessor, or of so many bytes of operands, and until its filters are there."""
        chunks = self.stage_rows * self.chunks * RECTANGLE[1]
        if self.problem.w.dtype is _HALVED:
            # Threads without a chunk, 7 of 16 where a row has 9 chunks, are assumed to wait as long as the others.
            chunks = -(-self.stage_rows // self.rows_at_once) * WARPGROUP
        wider = max(self.problem.y.dtype.itemsize - 2, 0) * math.prod(RECTANGLE) * BOX_FILTERS
        finishing = _RECTANGLE_CLOCKS * _CONSUMERS / self.consumers + 2 * wider / _SHARED_BYTES
        laying_out = planes_clocks(chunks) if self.rounds else laying_out_clocks(self.problem, self.x, chunks)
        clocks = max(finishing + self.steps * _STEP_CLOCKS, laying_out)
        turns = math.ceil(self.rectangles * self.filter_tiles / figures.multiprocessors)
        memory = nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE)
        filter_clocks = self.steps * _FILTER_CLOCKS * self.chunk / 8
        start = _LAUNCHES * figures.launch_seconds + filter_clocks / figures.clock_hz
        return max(turns * clocks / figures.clock_hz, memory) + start

    def descriptor_steps(self) -> list[int]:
        """Of each step, where in a stage its first chunk is, and how far from there the second one: in the bits of a descriptor."""
        places = [row * self.pitch + chunk for row in range(self.problem.w.shape[2]) for chunk in range(self.chunks)]
        places += [places[-1] + 1] if len(places) % 2 else []  # the zeros behind the last
        unit = PLACE_BYTES // 16
        return [
            first * unit | (second - first) * unit << 16
            for first, second in zip(places[::2], places[1::2], strict=True)
        ]

    def params(self, blocks: int, stages: int) -> np.ndarray:
        """The parameter struct, all but addresses and what follows the convolution."""
        w, (down, across) = self.problem.w, self.rectangles_of_image
        params = record(
            _PARAMS,
            filters=w.shape[0],
            filter_tiles=self.filter_tiles,
            w_strides=w.strides,
            across=small_divisor(across),
            down=small_divisor(down),
            rectangles=self.rectangles,
            blocks_of_filters=blocks // self.filter_tiles,
            stages=stages,
            steps=self.steps,
            channels=w.shape[1],
            filter_rows=w.shape[2],
            filter_values=self.filter_values,
        )
        params["rows"] = image_rows(
            self.problem,
            self.x,
            chunks=self.chunks,
            pitch=self.pitch,
            stage_rows=self.stage_rows,
            rows_at_once=self.rows_at_once,
            used=self.filter_values,
        )
        if self.rounds:
            params["planes"] = self.window.params()
        # Patches: two boxes, one below the other.
        params["phases"][0]["output"] = -(-down * RECTANGLE[0] // (2 * _box(self.problem.y)[0])), across
        params["places"][: self.steps] = self.descriptor_steps()
        return params


def _calls(
    problem: Problem,
    finished: ConvolutionProblem | FusedConvolutionProblem,
    rows: _Rows,
    figures: DeviceFigures,
    elsewhere: Otherwise,
) -> Calls:
    y, stages, tiles = rows.problem.y, rows.stages(figures), rows.filter_tiles
    blocks = min(figures.multiprocessors // tiles, rows.rectangles) * tiles  # a block keeps its filters
    params = rows.params(blocks, stages)
    of_y = Place(len(problem.inputs))
    others, maps = finish(params, finished), residual_map(finished, _output_map)
    others["filters_begin"] = Place(1)
    windows = rows.window.map(rows.x) if rows.rounds else None
    if windows is None:
        others["rows", "images"] = Place(0)
    else:
        maps["phases", 0, "x"] = Place(0), windows
    if rows.looks_up:
        others["table"] = Place(problem.input_names.index("table"))
    maps["phases", 0, "y"] = of_y, _output_map(y)
    calls = kernel_call(
        _unit(y.dtype, rows.x.dtype),
        blocks,
        _THREADS,
        params,
        others,
        shared_bytes=rows.shared_bytes(stages),
        maps=maps,
        starts_early=True,
        constants={"reads_filters_early": Place(1)},
    )
    aligned = tuple((place, ALIGNMENT_BYTES) for place, _ in maps.values())
    return where_aligned(aligned, calls, elsewhere)


def _box(images: TensorDescriptor) -> tuple[int, int]:
    """Rows and columns of outputs that are stored at a time: a rectangle or its half."""
    return RECTANGLE[0] // (2 if images.dtype is _HALVED else 1), RECTANGLE[1]


def _output_map(images: TensorDescriptor) -> TensorMap:
    """Images that are written, or added before, a box at a time; of 32 bits, half of its filters."""
    return patches_map(images, min(BOX_FILTERS, ROW_BYTES // images.dtype.itemsize), *_box(images))
