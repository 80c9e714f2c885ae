"""The tiled kernels as algorithms: of any problem that some function can turn into a `Product`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from dnncore.backend import TICKET_BYTES, Offer
from dnncore.bounds import BoundedTwice
from dnncore.cuda.calls import TICKETS, WORKSPACE, Calls, FieldPath, Place, WhereAligned, in_order, kernel_call
from dnncore.cuda.gemm.index_space import Extents, Outline, Phase, Product
from dnncore.cuda.gemm.kernel import (
    SUM_THREADS,
    Variant,
    choose_variant,
    general_tile,
    sum_unit,
    tiles_for,
    variants,
    why_no_tile,
)
from dnncore.cuda.gemm.params import MAX_PHASES, fields_of, make_params, tiles_along
from dnncore.cuda.gemm.schedule import (
    LONGEST_SUM,
    Schedule,
    choose_schedule,
    choose_split,
    least_seconds,
    parts_seconds,
    split_seconds,
    whole_seconds,
)
from dnncore.cuda.gemm.tiling import EXTENDED_TILES, PIPELINED_TILES, TILES, AnyTile, tile_counts
from dnncore.cuda.gemm.vectors import vector_walks
from dnncore.cuda.params import FULL_PRECISION
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths

__all__ = [
    "OutlineOf",
    "ProductOf",
    "SplitGemm",
    "TiledGemm",
    "batches",
    "joined_bytes",
    "least_whole_seconds",
    "memory_seconds",
    "outline_or_reason",
    "product_or_reason",
    "tiled_calls",
    "whole_schedule",
    "why_not_launched",
]

_MAX_LAUNCHES = 8
_MAX_BLOCKS = 2**31 - 1
_TICKET_BYTES = 4
"""A ticket of the kernels that join parts is a uint32."""

_VECTOR_BYTES = 16
"""What pipelined kernels read at a time, from addresses that are multiples of it."""

_EPILOGUE_PRODUCTS, _MATRIX_EPILOGUE_PRODUCTS = 227.5, 46.84
"""Multiply-adds in fp32 that take as long as the epilogue of an element of C beside a plain store, on an H200; the second of what
tensor cores compute. It takes longer where stores are single elements."""

_LEAST_PRODUCTS, _LEAST_ROWS = 166.0, 64
"""Multiply-adds in fp32 that an element of C takes as long as, at least, where tensor cores compute it and an epilogue follows: a
clock of a multiprocessor; of so many rows, if there are fewer [measured on an H200: 3x3 layers of 16 to 32 channels]."""

_OF_MEMORY_RATE = 0.6
"""What is reached at most of the memory's rate where the tensor cores have little to do [measured on an H200: filters of one tap
from 256 to 64 channels]."""

_PACK_BYTES = 16
_WRITTEN_AS_COLUMNS, _WRITTEN_SINGLY = 2.5, 8.0
"""Bytes that are read in the time of one of C, where columns are neighbours in memory: whole packs of them, and others [measured on
an H200: filters of one tap, NCHW, from 64 to 256 channels of 56 x 56, and from 256 to 1024 of 14 x 14]."""

_OF_16_BITS = (DType.FLOAT16, DType.BFLOAT16)
_LEAST_LAUNCHES, _LEAST_EXTENDED_LAUNCHES = 1.0, 1.4
"""What a launch takes of them at least, however little there is to do: the second with an epilogue [measured on an H200: layers of
ResNet-50 and MobileNetV2 at batch 1, in a graph]."""

ProductOf = Callable[[Any], Product | str]
"""Turns a problem into a product, or gives the reason why it is better not."""

OutlineOf = Callable[[Any], Outline | None]
"""What is known of the product without making it; None where there is none, or where all of it is needed."""


@lru_cache(maxsize=8)
def product_or_reason(product_of: ProductOf, problem: Any) -> Product | str:
    """Turn a problem into a product that the structs can hold, or give the reason why it is not one.

    Once for all algorithms that are asked one after the other: it takes as long as their choices do.
    """
    product = product_of(problem)
    if isinstance(product, str):
        return product
    if product.dtype not in TILES:
        return f"{product.dtype.value} has no tiled kernels"
    return product.why_not_tiled() or product


def memory_seconds(problem: Any, product: Product, figures: DeviceFigures) -> float:
    """What the operands take on their way through memory, where tensor cores may wait for them and somebody says what they are."""
    if isinstance(problem, Product) or product.dtype in FULL_PRECISION:
        return 0.0
    nbytes: float = operand_bytes(problem) + (_of_written(product) - 1) * _written_bytes(problem)
    return nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE)


def _written_bytes(problem: Any) -> int:
    return sum([tensor.size * tensor.dtype.itemsize for tensor in problem.outputs])


def _of_written(product: Product) -> float:
    """What a byte of C takes of one that is read."""
    fastest = [phase.column[0] for phase in product.phases if phase.column]
    if product.dtype not in _OF_16_BITS or any(digit.other_stride != 1 for digit in fastest):
        return 1.0
    return max([_of_runs(product.dtype, [digit.extent]) for digit in fastest], default=_WRITTEN_AS_COLUMNS)


def _of_runs(dtype: DType, runs: Sequence[int]) -> float:
    """The same of columns that come in neighbours, at least, as many as one of `runs` says."""
    if dtype not in _OF_16_BITS or not runs:
        return 1.0
    is_packed = any(run * dtype.itemsize % _PACK_BYTES == 0 for run in runs)
    return _WRITTEN_AS_COLUMNS if is_packed else _WRITTEN_SINGLY


def outline_or_reason(product_of: ProductOf, outline_of: OutlineOf | None, problem: Any) -> Outline | str:
    """What is known of a problem's product, which is made where nobody knows otherwise; or the reason why there is none."""
    outline = None if outline_of is None else outline_of(problem)
    if outline is not None:
        return outline
    product = product_or_reason(product_of, problem)
    return product if isinstance(product, str) else Outline(product.extents, vector_walks(product) is not None)


def least_whole_seconds(
    outline: Outline,
    problem: Any,
    figures: DeviceFigures,
    *,
    extended: bool = False,
    of_products: Callable[[Extents, tuple[AnyTile, ...], DeviceFigures], float] = least_seconds,
) -> float:
    """Seconds that a product is not below whose sums are not cut; infinitely many where no tile holds them.

    Args:
        outline: What is known of the product.
        problem: What is computed, or that product.
        figures: Of the device.
        extended: Whether an epilogue follows.
        of_products: What they take in the fastest of some tiles: a bound, or the estimate.
    """
    extents, longest = outline.extents, outline.extents.longest_sum
    tiles = [tile for tile in _tiles_of(outline, extended=extended) if tile.longest_sum >= longest]
    least = of_products(extents, tuple(tiles), figures)
    if extents.dtype in FULL_PRECISION:
        return least + _epilogue_seconds(extents, figures) if extended else least
    if not isinstance(problem, Product):
        written = (_of_runs(extents.dtype, outline.column_runs) - 1) * _written_bytes(problem)
        least = max(least, (operand_bytes(problem) + written) / (figures.bytes_per_second * _OF_MEMORY_RATE))
    return max(least, _least_extended_seconds(extents, figures)) if extended else least


def _tiles_of(outline: Outline, *, extended: bool) -> tuple[AnyTile, ...]:
    """Those that may come into question."""
    return _TILES_OF[extended, outline.may_read_vectors][outline.extents.dtype]


_TILES_OF: dict[tuple[bool, bool], dict[DType, tuple[AnyTile, ...]]] = {
    (extended, vectors): {
        dtype: tuple(dict.fromkeys((*tiles, *PIPELINED_TILES.get(dtype, ())) if vectors else tiles))
        for dtype, tiles in (EXTENDED_TILES if extended else TILES).items()
    }
    for extended, vectors in itertools.product((False, True), repeat=2)
}
"""By whether they know epilogues, and whether vectors may be read."""


@lru_cache(maxsize=8)
def whole_schedule(product: Product, figures: DeviceFigures, *, extended: bool) -> Schedule | None:
    """The fastest tile by estimate that adds up whole sums; None where `why_no_tile` says that there is none."""
    tiles = tiles_for(product, extended=extended, whole=True)
    return choose_schedule(product, tiles, figures) if tiles else None


def why_not_launched(product: Product, tile: AnyTile) -> str | None:
    """None when a few grids hold all tiles of all phases, else the reason why not."""
    if len(product.phases) > _MAX_LAUNCHES * MAX_PHASES:
        return f"its strides make {len(product.phases)} dense products; at most {_MAX_LAUNCHES * MAX_PHASES}"
    blocks = sum(tile_counts(general_tile(tile), product))
    return f"{blocks} tiles; at most {_MAX_BLOCKS // MAX_PHASES}" if blocks > _MAX_BLOCKS // MAX_PHASES else None


def batches(product: Product) -> list[tuple[Phase, ...]]:
    """Cut the phases into as many as one launch takes."""
    return [product.phases[start : start + MAX_PHASES] for start in range(0, len(product.phases), MAX_PHASES)]


def tiled_calls(
    product: Product,
    phases: Sequence[Phase],
    tile: AnyTile,
    params: np.ndarray,
    places: Mapping[FieldPath, Place],
    *,
    splits: int = 1,
    extended: bool = False,
    joined: bool = False,
    blends: bool = True,
) -> Calls:
    """The kernel of a tile where both operands start at multiples of 16 bytes, and that for any others elsewhere.

    Args:
        product: What is computed.
        phases: Which of its phases.
        tile: A tile that `choose_variant` takes.
        params: The struct, the calls' own, in which is said here how the kernel tiles the product.
        places: Where A, B and all other operands are, by their fields.
        splits: Parts of the reduction.
        extended: Whether the kernel must know epilogues and tables.
        joined: Whether it must add up the parts.
        blends: Whether it takes the operation's alpha and beta.
    """

    def calls(variant: Variant) -> Calls:
        rows, columns = tiles_along(product.rows, phases, variant.tile.rows, variant.tile.columns)
        params["row_tiles"], params["column_tiles"] = rows, columns
        blocks = rows * columns * product.groups * len(phases) * splits
        return kernel_call(variant.unit, blocks, variant.tile.threads, params, places, blends=blends)

    anywhere = choose_variant(product, tile, extended=extended, joined=joined, aligned=False)
    if vector_walks(product) is None:
        return calls(anywhere)
    vectors = choose_variant(product, tile, extended=extended, joined=joined, aligned=True)
    if vectors == anywhere:
        return calls(anywhere)
    alignments = tuple((places[operand], _VECTOR_BYTES) for operand in ("a", "b"))
    return (WhereAligned(alignments, calls(vectors), partial(calls, anywhere)),)


@dataclass(frozen=True)
class TiledGemm(BoundedTwice):
    """A problem as a product in tiles, without workspace; a phase's sums are added in order. Immutable.

    Args:
        name: See `backend.Algorithm`.
        product_of: What the problem is as a product.
        fused: Whether its products have epilogues.
        yields: Whether sums too long for one accumulator are left to a `SplitGemm` that comes before it: its own estimate is then
            never the lower one.
        outline_of: What is known of that product without making it.
    """

    name: str
    product_of: ProductOf
    fused: bool = False
    yields: bool = False
    outline_of: OutlineOf | None = None

    def units(self) -> tuple[Unit, ...]:
        """Every unit that its calls can name."""
        return tuple(variant.unit for variant in variants(extended=self.fused))

    def least_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """What the product takes on multiprocessors that never wait, and its epilogue, or memory."""
        outline = outline_or_reason(self.product_of, self.outline_of, problem)
        return (
            math.inf
            if isinstance(outline, str)
            else least_whole_seconds(outline, problem, figures, extended=self.fused)
        )

    def closer_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """What it takes in the fastest of the tiles that may come into question."""
        outline = outline_or_reason(self.product_of, self.outline_of, problem)
        if isinstance(outline, str):
            return math.inf
        return least_whole_seconds(outline, problem, figures, extended=self.fused, of_products=whole_seconds)

    def offer(self, problem: Any, figures: DeviceFigures) -> Offer | str:
        """What the fastest tile takes by estimate; a reason where the kernels' structs cannot hold the problem."""
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str):
            return product
        extended = product.epilogue is not None
        schedule = whole_schedule(product, figures, extended=extended)
        if schedule is None:
            return why_no_tile(product, extended=extended) or "no tile computes it"
        reason = why_not_launched(product, schedule.tile)
        if reason is not None:
            return reason
        seconds = schedule.seconds + (_epilogue_seconds(product.extents, figures) if extended else 0.0)
        seconds = max(seconds, memory_seconds(problem, product, figures))
        if extended and product.dtype not in FULL_PRECISION:
            seconds = max(seconds, _least_extended_seconds(product.extents, figures))
        if product.dtype in _OF_16_BITS:
            least = _LEAST_EXTENDED_LAUNCHES if extended else _LEAST_LAUNCHES
            seconds = max(seconds, least * figures.launch_seconds)
        if self.yields and product.longest_sum > LONGEST_SUM:
            split = _split_schedule(product, figures)
            seconds = seconds if split is None else max(seconds, split.seconds)
        return Offer(seconds, partial(_whole_calls, product, schedule.tile, extended=self.fused))


def _epilogue_seconds(extents: Extents, figures: DeviceFigures) -> float:
    """Of a product of one phase."""
    products = _EPILOGUE_PRODUCTS if extents.dtype in FULL_PRECISION else _MATRIX_EPILOGUE_PRODUCTS
    return extents.elements * products / figures.products_per_second(Maths.FP32)


def _least_extended_seconds(extents: Extents, figures: DeviceFigures) -> float:
    """What tensor cores take at least where an epilogue follows."""
    elements = extents._replace(rows=-(-extents.rows // _LEAST_ROWS) * _LEAST_ROWS).elements
    return elements * _LEAST_PRODUCTS / figures.products_per_second(Maths.FP32)


def _whole_calls(product: Product, tile: AnyTile, *, extended: bool) -> Calls:
    if product.is_empty:
        return ()
    places = in_order(*fields_of(product.inputs), "c")
    return tuple(
        call
        for phases in batches(product)
        for call in tiled_calls(
            product, phases, tile, make_params(product, phases, tile.rows, tile.columns), places, extended=extended
        )
    )


@dataclass(frozen=True)
class SplitGemm(BoundedTwice):
    """A product with few tiles and a long reduction, which is cut into parts that are added in a fixed order. Immutable.

    The workspace holds the sums of every part; of int8 they and their total are exact, however long it is. How many parts there are
    depends on the problem and on how many multiprocessors there are. The last block of each tile joins the parts where that takes
    less time than another launch.

    Args:
        name: See `backend.Algorithm`.
        product_of: What the problem is as a product.
        fused: Whether its products have epilogues.
        outline_of: See `TiledGemm`.
    """

    name: str
    product_of: ProductOf
    fused: bool = False
    outline_of: OutlineOf | None = None

    def units(self) -> tuple[Unit, ...]:
        """Every unit that its calls can name."""
        sums = (sum_unit(dtype, extended=self.fused) for dtype in TILES)
        extended = variants(extended=True) if self.fused else ()
        joined = variants(extended=self.fused, joined=True)
        return tuple(dict.fromkeys((*(variant.unit for variant in (*variants(), *extended, *joined)), *sums)))

    def least_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """What the product takes on multiprocessors that never wait, and two parts of its sums on their way through memory."""
        outline = outline_or_reason(self.product_of, self.outline_of, problem)
        if isinstance(outline, str) or len(outline.extents.phases) != 1:
            return math.inf
        extents = outline.extents
        sums = DType.INT32 if extents.dtype is DType.INT8 else extents.dtype.compute
        return least_seconds(extents, _tiles_of(outline, extended=False), figures) + 2 * parts_seconds(
            extents.elements, sums, figures
        )

    def closer_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """What it takes in the fastest of the tiles that may come into question, cut into parts."""
        outline = outline_or_reason(self.product_of, self.outline_of, problem)
        if isinstance(outline, str) or len(outline.extents.phases) != 1:
            return math.inf
        tiles = _tiles_of(outline, extended=False)
        if self.fused:
            tiles = tuple(dict.fromkeys((*tiles, *_tiles_of(outline, extended=True))))
        return split_seconds(outline.extents, tiles, figures)

    def offer(self, problem: Any, figures: DeviceFigures) -> Offer | str:
        """What it takes where cutting the reduction is faster by estimate, or needed for accuracy; else the reason why not."""
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str):
            return product
        if product.rows == 0 or product.num_columns == 0 or len(product.phases) != 1:
            return (
                f"{len(product.phases)} dense products of {product.rows} x {product.num_columns}; needs one, not empty"
            )
        summands = product.longest_sum
        whole = whole_schedule(product, figures, extended=product.epilogue is not None)
        whole = whole or whole_schedule(product, figures, extended=False)
        than = math.inf if whole is None or summands > LONGEST_SUM else whole.seconds
        split = _split_schedule(product, figures, than)
        if split is None or split.splits < 2:
            chosen = whole or split
            assert chosen is not None, "any split takes less than infinitely long"
            (tiles,) = tile_counts(chosen.tile, product)
            return f"{tiles} tiles of {summands} summands each are not worth splitting"
        if split.joined:
            seconds = split.seconds + (_epilogue_seconds(product.extents, figures) if self.fused else 0.0)
            return Offer(
                seconds, partial(_joined_calls, product, split, fused=self.fused), joined_bytes(product, split)
            )
        elements = product.groups * product.rows * product.num_columns
        nbytes = split.splits * elements * product.sum_dtype.itemsize
        prepare = partial(_split_calls, product, split, fused=self.fused, starts_early=figures.starts_early)
        return Offer(split.seconds, prepare, nbytes)


def _split_schedule(product: Product, figures: DeviceFigures, than: float = math.inf) -> Schedule | None:
    """The fastest by estimate that takes less; None where there is none.

    An epilogue is the business of the kernel that joins the parts: one that does so itself must be an extended one. The parts of a
    wide C are joined by another launch.
    """
    if product.is_wide:
        return choose_split(product, tiles_for(product), figures, than, joined=False)
    tiles, extended = tiles_for(product), tiles_for(product, extended=product.epilogue is not None)
    if tiles == extended:
        return choose_split(product, tiles, figures, than)
    added = choose_split(product, tiles, figures, than, joined=False)
    than = than if added is None else added.seconds
    return choose_split(product, extended, figures, than, joined=True) or added


def joined_bytes(product: Product, schedule: Schedule) -> int:
    """What the parts take in the workspace: whole tiles, wherever the operands start."""
    most = 0
    for tile in (schedule.tile, general_tile(schedule.tile)):
        (tiles,) = tile_counts(tile, product)
        assert tiles * _TICKET_BYTES <= TICKET_BYTES, f"{tiles} tiles"
        most = max(most, tiles * tile.rows * tile.columns)
    return schedule.splits * most * product.sum_dtype.itemsize


def _joined_calls(product: Product, schedule: Schedule, *, fused: bool) -> Calls:
    """The parts' sums into the workspace, and their total from there into C, in one launch."""
    tile = schedule.tile
    params = make_params(product, product.phases, tile.rows, tile.columns)
    params["splits"], params["split_length"] = schedule.splits, schedule.split_length
    places = in_order(*fields_of(product.inputs), "c") | {"parts": Place(WORKSPACE), "tickets": TICKETS}
    return tiled_calls(
        product, product.phases, tile, params, places, splits=schedule.splits, extended=fused, joined=True
    )


def _split_calls(product: Product, schedule: Schedule, *, fused: bool, starts_early: bool) -> Calls:
    """The parts' sums into the workspace, then their total."""
    tile, sums = schedule.tile, product.partial_sums()
    part_size = product.groups * sums.c_group_stride
    parts = make_params(sums, sums.phases, tile.rows, tile.columns)
    parts["alpha"], parts["splits"] = 1.0, schedule.splits
    parts["split_length"], parts["split_stride"] = schedule.split_length, part_size
    total = make_params(product, product.phases, 1, SUM_THREADS)
    total["a_row_stride"], total["a_group_stride"] = sums.c_row_stride, sums.c_group_stride
    total["splits"], total["split_stride"] = schedule.splits, part_size
    operands = in_order(*fields_of(product.inputs), "c")
    blocks = int(total["column_tiles"]) * product.rows * product.groups
    return (
        *tiled_calls(
            product,
            product.phases,
            tile,
            parts,
            {**operands, "c": Place(WORKSPACE)},
            splits=schedule.splits,
            blends=False,
        ),
        *kernel_call(
            sum_unit(product.sum_dtype if product.is_wide else product.dtype, extended=fused),
            blocks,
            SUM_THREADS,
            total,
            {**operands, "a": Place(WORKSPACE)},
            starts_early=starts_early,
        ),
    )
