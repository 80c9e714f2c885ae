"""The tiled kernels as algorithms: of any problem that some function can turn into a `Product`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from dnncore.backend import TICKET_BYTES, Offer
from dnncore.bounds import BoundedTwice
from dnncore.cuda.calls import TICKETS, WORKSPACE, Calls, FieldPath, Place, WhereAligned, in_order, kernel_call
from dnncore.cuda.gemm.estimate import (
    OF_16_BITS,
    OutlineOf,
    ProductOf,
    epilogue_seconds,
    least_extended_seconds,
    least_of_whole,
    memory_seconds,
    outline_or_reason,
    product_or_reason,
    tiles_of,
)
from dnncore.cuda.gemm.index_space import Phase, Product
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
from dnncore.cuda.gemm.tiling import TILES, AnyTile, tile_counts
from dnncore.cuda.gemm.vectors import vector_walks
from dnncore.cuda.params import FULL_PRECISION
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures

__all__ = [
    "SplitGemm",
    "TiledGemm",
    "batches",
    "joined_bytes",
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

_LEAST_LAUNCHES, _LEAST_EXTENDED_LAUNCHES = 1.0, 1.4
"""What a launch takes of them at least, however little there is to do: the second with an epilogue [measured on an H200: layers of
ResNet-50 and MobileNetV2 at batch 1, in a graph]."""


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
        return least_of_whole(self.product_of, self.outline_of, problem, figures, extended=self.fused)

    def closer_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """What it takes in the fastest of the tiles that may come into question."""
        return least_of_whole(self.product_of, self.outline_of, problem, figures, whole_seconds, extended=self.fused)

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
        seconds = schedule.seconds + (epilogue_seconds(product.extents, figures) if extended else 0.0)
        seconds = max(seconds, memory_seconds(problem, product, figures))
        if extended and product.dtype not in FULL_PRECISION:
            seconds = max(seconds, least_extended_seconds(product.extents, figures))
        if product.dtype in OF_16_BITS:
            least = _LEAST_EXTENDED_LAUNCHES if extended else _LEAST_LAUNCHES
            seconds = max(seconds, least * figures.launch_seconds)
        if self.yields and product.longest_sum > LONGEST_SUM:
            split = _split_schedule(product, figures)
            seconds = seconds if split is None else max(seconds, split.seconds)
        return Offer(seconds, partial(_whole_calls, product, schedule.tile, extended=self.fused))


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
        return least_seconds(extents, tiles_of(outline, extended=False), figures) + 2 * parts_seconds(
            extents.elements, sums, figures
        )

    def closer_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """What it takes in the fastest of the tiles that may come into question, cut into parts."""
        outline = outline_or_reason(self.product_of, self.outline_of, problem)
        if isinstance(outline, str) or len(outline.extents.phases) != 1:
            return math.inf
        tiles = tiles_of(outline, extended=False)
        if self.fused:
            tiles = tuple(dict.fromkeys((*tiles, *tiles_of(outline, extended=True))))
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
            seconds = split.seconds + (epilogue_seconds(product.extents, figures) if self.fused else 0.0)
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
