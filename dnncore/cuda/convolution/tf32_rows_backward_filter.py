"""Backward-filter convolution of float32 planes (NCHW) of few channels, as precise as float32: implicit_gemm_3xtf32_rows.

Tensor cores compute three of the four products of factors that are split into two of tf32 each (docs/numerics.md has the limits).
What taps meet of a row of x lies in shared memory once, and columns of the product read it from where they begin: the picture is in
`convolution/tf32_rows_filter.cuh`. Sums are in fp32 and their parts are added in order, so that the bits are the same every time.
x and dy may begin anywhere and have gaps between rows, planes and images; dw may lie in memory in any way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial

from dnncore.backend import Offer
from dnncore.bounds import Bounded, Selective
from dnncore.cuda.calls import WORKSPACE, Calls, FieldPath, Place, kernel_call
from dnncore.cuda.convolution.sum_of_parts import SUM_THREADS, log2_ways
from dnncore.cuda.convolution.wgmma_tile import ARCHITECTURE, MOST, WARPGROUP, multiplies, why_no_wgmma
from dnncore.cuda.params import ADDRESS, BLEND, SMALL_DIVISOR, generate, record, small_divisor, struct
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["TILES", "Tf32RowsBackwardFilter"]

_PRODUCERS = _CONSUMERS = 2
_THREADS = (_PRODUCERS + _CONSUMERS) * WARPGROUP
_WARPS = _CONSUMERS * WARPGROUP // 32

_GROUP, _UNIT_GROUPS = 8, 8
"""Outputs of a product; how many times as many a unit has at most: two for each lane of a warp."""

_BANKS = 32
_PLACE_SUM_BYTES, _QUAD_BYTES, _WORD_BYTES = 16, 16, 4
_PAD = 4
_LEAST_STAGES, _MOST_STAGES = 2, 6

_PART_WORDS = {1: 8 << 10, 2: 12 << 10, 4: 16 << 10}
"""Of x in shared memory, as often as there are parts, by the strides along a row that there are kernels for."""

_PARTS = 2
"""An element's, the nearest of tf32 and what is left."""

_FEWEST_SUMMANDS = 16
"""Of sums of fewer, what is left out counts."""

# Of the estimate: clocks of a scheduler for a product of 16 x 8 sums and eight outputs, with what else it issues for it; for a unit
# besides; and for an element of x, which producers load and split. Fitted to three layers of benchmarks/layers.py in three tiles
# each, which are met within 4 % [measured on an H200]. The share of the memory's rate; what it takes, in launches, until all
# multiply, and until they add up parts; bytes of parts that a multiprocessor adds in a clock.
_PRODUCT_CLOCKS, _UNIT_CLOCKS, _ELEMENT_CLOCKS = 8.9, 560, 0.42
_OF_MEMORY_RATE = 0.85
_LAUNCHES, _SUM_LAUNCHES = 1.0, 0.37
_ADDED_BYTES = 12.4
_SCHEDULERS, _PRODUCTS = 4, 3
_PRODUCT = 16 * 8 * _GROUP


@dataclass(frozen=True, slots=True)
class _Tile:
    """Filters and columns, taps of all channels, of a block. Immutable.

    Args:
        sixteens: Of filters, of a warp.
        eights: Of columns, of a warp.
        down: Warps along the filters,
        across: and along the columns. As many times as these are not all warps of a block, groups of them take units in turn.
    """

    sixteens: int
    eights: int
    down: int
    across: int

    @property
    def filters(self) -> int:
        """Of a block."""
        return self.down * self.sixteens * 16

    @property
    def columns(self) -> int:
        """Of a block."""
        return self.across * self.eights * 8

    @property
    def turns(self) -> int:
        """Groups of warps that have the same sums, of different units."""
        return _WARPS // (self.down * self.across)

    @property
    def places(self) -> int:
        """Of four sums each, that a group of warps leaves."""
        return self.filters * self.columns // 4

    @property
    def group_bytes(self) -> int:
        """Of dy in shared memory, for eight outputs."""
        return (_PARTS * self.filters // 16 * 32 + _PAD) * _QUAD_BYTES


TILES = (_Tile(4, 5, 1, 4), _Tile(2, 6, 2, 4), _Tile(3, 6, 2, 4))
"""For 7x7 filters of three channels; for 11x11, 64 and 96 of them."""

_PARAMS = struct(
    *((name, ADDRESS) for name in ("x", "dy", "parts")),
    *((name, "<i8") for name in ("x_image", "dy_image")),
    *((name, SMALL_DIVISOR) for name in ("down", "ring_rows", "channels", "taps", "tap_columns")),
    *((name, "<i4", 2) for name in ("x_strides", "dy_strides", "input", "padding")),
    *(
        (name, "<i4")
        for name in (
            *(
                "tap_rows",
                "row_step",
                "output_columns",
                "rows",
                "filters",
                "filter_tiles",
                "tiles",
                "slices",
                "row_units",
            ),
            *("groups", "row_groups", "row_words", "slot_words", "stages"),
        )
    ),
)
_SUM_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in ("parts", "dw")),
    ("strides", "<i8", 4),
    *((name, SMALL_DIVISOR) for name in ("taps", "tap_columns")),
    *(
        (name, "<i4")
        for name in (
            *("filters", "columns", "filter_tiles", "tile_filters", "tile_columns", "warp_filters", "warp_columns"),
            *("parts_of_tile", "tile_places", "log2_ways"),
        )
    ),
)


@cache
def _unit(tile: _Tile, stride: int) -> Unit:
    arguments = (stride, tile.sixteens, tile.eights, tile.down, tile.across, _PART_WORDS[stride])
    return generate(
        header="dnncore/convolution/tf32_rows_filter.cuh",
        entry=f"convolution_3xtf32_rows_backward_filter_{tile.filters}x{tile.columns}_stride_{stride}",
        function=f"tf32_rows::Kernel<{', '.join(map(str, arguments))}>::run",
        struct_name="tf32_rows::Params",
        dtype=_PARAMS,
        threads=_THREADS,
        architectures=(ARCHITECTURE,),
    )


@cache
def _sum_unit() -> Unit:
    return generate(
        header="dnncore/convolution/tf32_rows_filter.cuh",
        entry="convolution_3xtf32_rows_backward_filter_parts",
        function="tf32_rows::add_parts",
        struct_name="tf32_rows::SumParams",
        dtype=_SUM_PARAMS,
        threads=SUM_THREADS,
        architectures=(ARCHITECTURE,),
    )


@dataclass(frozen=True)
class Tf32RowsBackwardFilter(Bounded, Selective):
    """A backward-filter convolution of few channels, whose parts' sums are in the workspace. Immutable.

    Args:
        name: See `backend.Algorithm`.
    """

    name: str

    def units(self) -> tuple[Unit, ...]:
        """One for each tile and stride along a row, and the one that adds up parts."""
        return (*(_unit(tile, stride) for tile in TILES for stride in _PART_WORDS), _sum_unit())

    def suits(self, kind: ConvolutionKind) -> bool:
        """Backward-filter of float32."""
        is_gradient = kind.direction is Direction.BACKWARD_FILTER
        return is_gradient and multiplies(kind, (DType.FLOAT32,), rounds=False)

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What its products take in schedules without waste; infinite where rows of x are too long for shared memory."""
        if problem.x.dtype is not DType.FLOAT32 or figures.architecture != ARCHITECTURE:
            return math.inf
        _, channels, *taps = problem.w.shape
        stride = problem.convolution.stride[-1]
        if channels * taps[0] * ((problem.y.shape[-1] - 1) * stride + taps[-1]) > _PART_WORDS.get(stride, 0):
            return math.inf
        clocks = problem.macs * _PRODUCTS / (_PRODUCT * _SCHEDULERS * figures.multiprocessors) * _PRODUCT_CLOCKS
        return clocks / figures.clock_hz + figures.launch_seconds * _LAUNCHES

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """What the fastest schedule takes; or the reason why none suits the problem."""
        reason = _why_not(problem, figures)
        if reason is not None:
            return reason
        least = _Schedule(problem, TILES[0], _LEAST_STAGES, 1)
        if least.x_words > least.part_words:
            x, most = least.x_words * _WORD_BYTES, least.part_words * _WORD_BYTES
            return f"{least.ring_rows} rows of x take {x} B of shared memory; at most {most}"
        found = [_Schedule.of(problem, tile, figures) for tile in TILES]
        fitting = [each for each in found if each is not None]
        if not fitting:
            return f"it takes {least.shared_bytes} B of shared memory; at most {figures.shared_bytes}"
        best = min(fitting, key=lambda each: each.seconds(figures))
        return Offer(best.seconds(figures), partial(_calls, best), best.workspace_bytes)


def _why_not(problem: ConvolutionProblem, figures: DeviceFigures) -> str | None:
    """None where there are kernels for a problem, whatever they take of shared memory, else the reason."""
    if problem.direction is not Direction.BACKWARD_FILTER:
        return f"it has no {problem.direction.value}"
    reason = why_no_wgmma(problem, figures.architecture, _unit(TILES[0], 1), (DType.FLOAT32,), rounds=False)
    if reason is not None:
        return reason
    x, w, dy, conv = problem.x, problem.w, problem.y, problem.convolution
    outputs = dy.size // dy.shape[1]
    if outputs < _FEWEST_SUMMANDS:
        return f"sums of {outputs} products; at least {_FEWEST_SUMMANDS}, among which what is left out does not count"
    if any(step > 1 and taps > 1 for step, taps in zip(conv.dilation, w.shape[2:], strict=True)):
        return f"dilation {conv.dilation}; taps of a row are neighbours"
    if conv.stride[1] not in _PART_WORDS:
        return f"stride {conv.stride[1]} along rows; it takes {', '.join(map(str, _PART_WORDS))}"
    for name, tensor in (("x", x), ("dy", dy)):
        if tensor.shape[3] > 1 and tensor.strides[3] != 1:
            return f"{name} ({tensor}) has no rows of neighbours"
    most = max(
        *(tensor.strides[0] * (tensor.shape[0] > 1) for tensor in (x, dy)),
        *(
            sum(step * (size - 1) for step, size in zip(each.strides[1:], each.shape[1:], strict=True))
            for each in (x, dy)
        ),
        dy.shape[0] * dy.shape[2] * (figures.multiprocessors + 1),
        w.size // w.shape[0] + max(tile.columns for tile in TILES),
        x.shape[2] + sum(conv.padding[0]) + w.shape[2] * conv.stride[0],
        x.shape[3] + sum(conv.padding[1]) + (w.shape[3] + _GROUP) * conv.stride[1],
    )
    return f"strides, rows or columns up to {most}; at most {MOST}" if most > MOST else None


@dataclass(frozen=True, slots=True)
class _Schedule:
    """How the rows of y are shared out. Immutable.

    Args:
        problem: What is computed.
        tile: Of each block.
        stages: Of the ring.
        slices: Blocks that share out the rows for each tile.
    """

    problem: ConvolutionProblem
    tile: _Tile
    stages: int
    slices: int

    @classmethod
    def of(cls, problem: ConvolutionProblem, tile: _Tile, figures: DeviceFigures) -> _Schedule | None:
        """With as many stages as there is memory for, and a block for each multiprocessor; None where there is too little."""
        least = cls(problem, tile, _LEAST_STAGES, 1)
        slices = min(max(figures.multiprocessors // least.tiles, 1), least.rows)
        for stages in range(_MOST_STAGES, _LEAST_STAGES - 1, -1):
            found = cls(problem, tile, stages, slices)
            if found.x_words <= found.part_words and found.shared_bytes <= figures.shared_bytes:
                return found
        return None

    @property
    def stride(self) -> int:
        """Along a row."""
        return self.problem.convolution.stride[1]

    @property
    def columns(self) -> int:
        """Taps of all channels."""
        return math.prod(self.problem.w.shape[1:])

    @property
    def filter_tiles(self) -> int:
        """How many there are."""
        return -(-self.problem.w.shape[0] // self.tile.filters)

    @property
    def tiles(self) -> int:
        """Of filters and columns."""
        return self.filter_tiles * -(-self.columns // self.tile.columns)

    @property
    def rows(self) -> int:
        """Of y, of all images."""
        return self.problem.y.shape[0] * self.problem.y.shape[2]

    @property
    def row_groups(self) -> int:
        """Of eight outputs, in a row."""
        return -(-self.problem.y.shape[3] // _GROUP)

    @property
    def row_units(self) -> int:
        """Of a row."""
        return -(-self.row_groups // _UNIT_GROUPS)

    @property
    def groups(self) -> int:
        """Of eight outputs, of a unit."""
        return -(-self.row_groups // self.row_units)

    @property
    def row_words(self) -> int:
        """Of x, that the outputs of a row meet, padding and outputs beyond the last included."""
        return (self.row_groups * _GROUP - 1) * self.stride + self.problem.w.shape[3]

    @property
    def slot_words(self) -> int:
        """From one row of the ring to the next, which begins behind what lanes read of a row for its last tap, in other banks."""
        least = self.problem.w.shape[1] * self.row_words
        wanted = self.problem.w.shape[3] + 2 * 3 * self.stride
        return least + (wanted - least) % _BANKS

    @property
    def ring_rows(self) -> int:
        """Of x: those of a row of y, and those that the rows before it, of which units are not multiplied yet, do not meet."""
        behind = -(-(self.stages - 1) // self.row_units)
        return self.problem.w.shape[2] + behind * self.problem.convolution.stride[0]

    @property
    def x_words(self) -> int:
        """Of x in shared memory, nearest or rest."""
        return self.ring_rows * self.slot_words

    @property
    def part_words(self) -> int:
        """As many as there is room for."""
        return _PART_WORDS[self.stride]

    @property
    def shared_bytes(self) -> int:
        """Of a block: x, where columns begin, stages of dy, and two barriers for each."""
        x = _PARTS * self.part_words * _WORD_BYTES
        return x + self.tile.columns * 8 + self.stages * (self.groups * self.tile.group_bytes + 2 * 8)

    @property
    def parts(self) -> int:
        """Of a tile."""
        return self.slices * self.tile.turns

    @property
    def workspace_bytes(self) -> int:
        """What all blocks leave."""
        return self.tiles * self.parts * self.tile.places * _PLACE_SUM_BYTES

    @property
    def _elements(self) -> int:
        """Of x, that a block loads: all that its first row of y meets, and that of each image; of others what is new."""
        conv, (channels, taps) = self.problem.convolution, self.problem.w.shape[1:3]
        images = -(-self._rows_of_block // self.problem.y.shape[2])
        step = min(conv.stride[0], taps)
        return channels * self.row_words * (self._rows_of_block * step + images * (taps - step))

    @property
    def _rows_of_block(self) -> int:
        return -(-self.rows // self.slices)

    def seconds(self, figures: DeviceFigures) -> float:
        """Of the busiest multiprocessor, or of the operands' bytes, and of the sums."""
        tile = self.tile
        products = self.row_groups * _PRODUCTS * tile.filters // 16 * tile.columns // 8
        clocks = self._rows_of_block * (products / _SCHEDULERS * _PRODUCT_CLOCKS + self.row_units * _UNIT_CLOCKS)
        clocks += self._elements * _ELEMENT_CLOCKS
        clocks *= -(-self.tiles * self.slices // figures.multiprocessors)
        memory = operand_bytes(self.problem) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        added = self.workspace_bytes / (_ADDED_BYTES * figures.multiprocessors)
        launches = (_LAUNCHES + _SUM_LAUNCHES) * figures.launch_seconds
        return max(clocks / figures.clock_hz, memory) + added / figures.clock_hz + launches


def _strides(tensor: TensorDescriptor) -> tuple[int, int]:
    """From plane to plane and from row to row; as far as there are several."""
    _, planes, rows, _ = tensor.strides
    return planes * (tensor.shape[1] > 1), rows * (tensor.shape[2] > 1)


def _calls(schedule: _Schedule) -> Calls:
    problem, tile = schedule.problem, schedule.tile
    x, w, dy, conv = problem.x, problem.w, problem.y, problem.convolution
    taps = small_divisor(w.shape[2] * w.shape[3])
    params = record(
        _PARAMS,
        x_image=x.strides[0] * (x.shape[0] > 1),
        dy_image=dy.strides[0] * (dy.shape[0] > 1),
        down=small_divisor(dy.shape[2]),
        ring_rows=small_divisor(schedule.ring_rows),
        channels=small_divisor(w.shape[1]),
        taps=taps,
        tap_columns=small_divisor(w.shape[3]),
        x_strides=_strides(x),
        dy_strides=_strides(dy),
        input=x.shape[2:],
        padding=[before for before, _ in conv.padding],
        tap_rows=w.shape[2],
        row_step=conv.stride[0],
        output_columns=dy.shape[3],
        rows=schedule.rows,
        filters=w.shape[0],
        filter_tiles=schedule.filter_tiles,
        tiles=schedule.tiles,
        slices=schedule.slices,
        row_units=schedule.row_units,
        groups=schedule.groups,
        row_groups=schedule.row_groups,
        row_words=schedule.row_words,
        slot_words=schedule.slot_words,
        stages=schedule.stages,
    )
    calls = kernel_call(
        _unit(tile, schedule.stride),
        schedule.tiles * schedule.slices,
        _THREADS,
        params,
        {"x": Place(0), "dy": Place(1), "parts": Place(WORKSPACE)},
        blends=False,
        shared_bytes=schedule.shared_bytes,
        starts_early=True,
    )
    ways = log2_ways(schedule.parts)
    sums = record(
        _SUM_PARAMS,
        strides=w.strides,
        taps=taps,
        tap_columns=small_divisor(w.shape[3]),
        filters=w.shape[0],
        columns=schedule.columns,
        filter_tiles=schedule.filter_tiles,
        tile_filters=tile.filters,
        tile_columns=tile.columns,
        warp_filters=tile.sixteens,
        warp_columns=tile.eights,
        parts_of_tile=schedule.parts,
        tile_places=tile.places,
        log2_ways=ways,
    )
    grid = tile.places // (SUM_THREADS >> ways), schedule.tiles, 1
    places: dict[FieldPath, Place] = {"parts": Place(WORKSPACE), "dw": Place(2)}
    return calls + kernel_call(_sum_unit(), grid, SUM_THREADS, sums, places, starts_early=True)
