"""Tiles with the epilogues that cost next to nothing, straight from the registers: bias, residual, ReLU with or without a ceiling.
What follows most convolutions of a net then takes no pass over the result, and no stage in shared memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from dnncore.backend import Offer
from dnncore.bounds import Bounded
from dnncore.cuda.calls import TICKETS, WORKSPACE, Call, Calls, Place, in_order, kernel_call
from dnncore.cuda.gemm.algorithm import batches, joined_bytes, why_not_launched
from dnncore.cuda.gemm.estimate import OutlineOf, ProductOf, outline_or_reason, product_or_reason
from dnncore.cuda.gemm.index_space import Epilogue, Extents, Product
from dnncore.cuda.gemm.kernel import clamped_variant, clamped_variants, why_wide
from dnncore.cuda.gemm.params import fields_of, make_params, tiles_along
from dnncore.cuda.gemm.schedule import (
    LONGEST_SUM,
    Schedule,
    choose_schedule,
    choose_split,
    least_seconds,
    parts_seconds,
)
from dnncore.cuda.gemm.tiling import CLAMPED_TILES, AnyTile, Walk, choose_walks, tile_counts
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ActivationMode
from dnncore.figures import DeviceFigures

__all__ = ["ClampedGemm", "ClampedSplitGemm"]

_CLAMPS = (ActivationMode.RELU, ActivationMode.CLIPPED_RELU)

_OF_MEMORY_RATE = 0.6573
"""At which residuals are read [assumed: as the epilogue of composed convolutions reads them]."""

# Fitted to 20 fused layers of benchmarks/layers.py and of nets in fp32 on an H200: at which share of the memory's rate results are
# written, beside all else; and what coordinates cost that nothing is padded for, of 128 channels in windows of 7 x 7.
_OF_WRITING_RATE = 0.4
_USELESS_COORDINATES = 1.08

_SHORTEST_PART = 48
"""Summands of a part: three slabs, each of which takes a block that is alone on its multiprocessor 1 us [measured on an H200]."""

_LEAST_OF_TILE = 4
"""One part in so many of a tile's columns there must be: what is left empty is written and added up too."""


@dataclass(frozen=True)
class ClampedGemm(Bounded):
    """A product in tiles with one of the simplest epilogues, without workspace. Immutable.

    Args:
        name: See `backend.Algorithm`.
        product_of: What the problem is as a product.
        outline_of: What is known of that product without making it.
    """

    name: str
    product_of: ProductOf
    outline_of: OutlineOf | None = None

    def units(self) -> tuple[Unit, ...]:
        """Every unit that its calls can name."""
        return tuple(variant.unit for variant in clamped_variants() if not variant.joined)

    def least_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """What the product takes on multiprocessors that never wait, and writing the result."""
        outline = outline_or_reason(self.product_of, self.outline_of, problem)
        if isinstance(outline, str) or outline.extents.dtype not in CLAMPED_TILES:
            return math.inf
        extents = outline.extents
        return least_seconds(extents, CLAMPED_TILES[extents.dtype], figures) + _writing_seconds(extents, figures)

    def offer(self, problem: Any, figures: DeviceFigures) -> Offer | str:
        """What the fastest tile takes by estimate, reading a residual and writing the result."""
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str):
            return product
        reason = _why_not(product)
        if reason is not None:
            return reason
        schedule = choose_schedule(product, CLAMPED_TILES[product.dtype], figures)
        reason = why_not_launched(product, schedule.tile)
        if reason is not None:
            return reason
        seconds = _seconds(product, schedule, figures)
        return Offer(seconds, partial(_calls, product, schedule.tile))


@dataclass(frozen=True)
class ClampedSplitGemm(Bounded):
    """A product with few tiles and one of the simplest epilogues: the last block of each tile adds up the parts. Immutable.

    Args:
        name: See `backend.Algorithm`.
        product_of: What the problem is as a product.
        outline_of: What is known of that product without making it.
    """

    name: str
    product_of: ProductOf
    outline_of: OutlineOf | None = None

    def units(self) -> tuple[Unit, ...]:
        """Every unit that its calls can name."""
        return tuple(variant.unit for variant in clamped_variants() if variant.joined)

    def least_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """What the product takes on multiprocessors that never wait, two parts of its sums on their way, and writing the result."""
        outline = outline_or_reason(self.product_of, self.outline_of, problem)
        if isinstance(outline, str) or outline.extents.dtype not in CLAMPED_TILES or len(outline.extents.phases) != 1:
            return math.inf
        extents = outline.extents
        least = least_seconds(extents, _JOINING[extents.dtype], figures)
        parts = 2 * parts_seconds(extents.elements, extents.dtype, figures)
        return least + parts + _writing_seconds(extents, figures)

    def offer(self, problem: Any, figures: DeviceFigures) -> Offer | str:
        """What it takes where cutting the reduction is faster by estimate, or needed for accuracy; else the reason why not."""
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str):
            return product
        reason = _why_not(product)
        if reason is not None:
            return reason
        if product.is_empty or len(product.phases) != 1:
            return (
                f"{len(product.phases)} dense products of {product.rows} x {product.num_columns}; needs one, not empty"
            )
        widest = max(tile.columns for tile in _JOINING[product.dtype])
        if product.num_columns * _LEAST_OF_TILE < widest:
            return f"{product.num_columns} columns leave most of a tile's {widest} empty"
        whole, summands = choose_schedule(product, CLAMPED_TILES[product.dtype], figures), product.longest_sum
        than = math.inf if summands > LONGEST_SUM else whole.seconds
        split = choose_split(product, _JOINING[product.dtype], figures, than, joined=True, shortest=_SHORTEST_PART)
        if split is None or not split.joined:
            (tiles,) = tile_counts(whole.tile, product)
            return f"{tiles} tiles of {summands} summands each are not worth splitting"
        seconds = _seconds(product, split, figures)
        return Offer(seconds, partial(_joined_calls, product, split), joined_bytes(product, split))


_JOINING = {dtype: tuple(tile for tile in tiles if tile.joins) for dtype, tiles in CLAMPED_TILES.items()}


def _seconds(product: Product, schedule: Schedule, figures: DeviceFigures) -> float:
    """The product, its result on the way into memory, and a residual on the way from there."""
    memory = _writing_seconds(product.extents, figures)
    if "z" in product.inputs:
        result = product.extents.elements * product.dtype.itemsize
        memory += result / (figures.bytes_per_second * _OF_MEMORY_RATE)
    useless = choose_walks(product)[1] is Walk.REDUCTION and not product.bounds
    return schedule.seconds * (_USELESS_COORDINATES if useless else 1.0) + memory


def _writing_seconds(extents: Extents, figures: DeviceFigures) -> float:
    """The result of a product of one phase on the way into memory."""
    return extents.elements * extents.dtype.itemsize / (figures.bytes_per_second * _OF_WRITING_RATE)


def _why_not(product: Product) -> str | None:
    """None where the kernels can compute a product."""
    epilogue = product.epilogue
    assert epilogue is not None, "of a fused problem"
    if product.dtype not in CLAMPED_TILES:
        return f"{product.dtype.value} has no clamped kernels"
    return why_wide(product) or _why_not_clamped(epilogue, product.inputs)


def _why_not_clamped(epilogue: Epilogue, inputs: tuple[str, ...]) -> str | None:
    if epilogue.alpha1 != 1.0 or "scale" in inputs or ("z" in inputs and epilogue.alpha2 not in (0.0, 1.0)):
        return "a factor, or a scale; clamped kernels add a bias and a residual only"
    if epilogue.activation is None or epilogue.activation.mode in _CLAMPS:
        return None
    return f"{epilogue.activation.mode.value}; clamped kernels have ReLU, with or without a ceiling"


def _calls(product: Product, tile: AnyTile) -> Calls:
    if product.is_empty:
        return ()
    variant = clamped_variant(product, tile)
    places = in_order(*fields_of(product.inputs), "c")
    found: list[Call] = []
    for phases in batches(product):
        params = make_params(product, phases, tile.rows, tile.columns)
        rows, columns = tiles_along(product.rows, phases, tile.rows, tile.columns)
        params["row_tiles"], params["column_tiles"] = rows, columns
        blocks = rows * columns * product.groups * len(phases)
        found += kernel_call(variant.unit, blocks, tile.threads, params, places)
    return tuple(found)


def _joined_calls(product: Product, schedule: Schedule) -> Calls:
    """The parts' sums into the workspace, and their total from there into C, in one launch."""
    tile = schedule.tile
    params = make_params(product, product.phases, tile.rows, tile.columns)
    params["splits"], params["split_length"] = schedule.splits, schedule.split_length
    places = in_order(*fields_of(product.inputs), "c") | {"parts": Place(WORKSPACE), "tickets": TICKETS}
    (tiles,) = tile_counts(tile, product)
    unit = clamped_variant(product, tile, joined=True).unit
    return kernel_call(unit, tiles * schedule.splits, tile.threads, params, places)
