"""The tiled product with a table of the reduction in the workspace, written first by a kernel of its own.

Without it every block divides for each reduction index; with it they read 16 bytes that the L2 cache holds for all of them. What a
column adds to an address is still worked out by the block: that is once per thread, and the table of all columns would be as large
as the output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dnncore.backend import Offer
from dnncore.bounds import BoundedTwice
from dnncore.cuda.calls import WORKSPACE, Calls, Place, in_order, kernel_call
from dnncore.cuda.gemm.algorithm import batches, tiled_calls, whole_schedule, why_not_launched
from dnncore.cuda.gemm.estimate import (
    OutlineOf,
    ProductOf,
    least_whole_seconds,
    memory_seconds,
    outline_or_reason,
    product_or_reason,
)
from dnncore.cuda.gemm.index_space import Phase, Product
from dnncore.cuda.gemm.kernel import (
    TABLE_ENTRY_BYTES,
    TABLE_THREADS,
    table_unit,
    variants,
    why_no_tile,
    why_wide,
)
from dnncore.cuda.gemm.params import fields_of, make_params
from dnncore.cuda.gemm.tiling import AnyTile
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures

__all__ = ["PrecomputedGemm"]

_MAX_ENTRIES = 2**31
"""Entries are counted in 32 bits."""

_OF_MEMORY_RATE = 0.5
"""What writing a table reaches [estimated]."""


def _entries(phases: Sequence[Phase]) -> list[int]:
    """Room for each phase's entries; one that adds up nothing has room for one, so that there is a table always."""
    return [max(phase.reduction_length, 1) for phase in phases]


def _tables(product: Product) -> list[int]:
    """Entries of each launch's table."""
    return [sum(_entries(phases)) for phases in batches(product)]


def _with_tables(seconds: float, product: Product, figures: DeviceFigures) -> float:
    """What products take, and writing the tables, a launch each."""
    entries = _tables(product)
    tables = sum(entries) * TABLE_ENTRY_BYTES / (figures.bytes_per_second * _OF_MEMORY_RATE)
    return seconds + len(entries) * figures.launch_seconds + tables


@dataclass(frozen=True)
class PrecomputedGemm(BoundedTwice):
    """A problem as a product in tiles whose reduction's offsets and coordinates are precomputed in the workspace. Immutable.

    Args:
        name: See `backend.Algorithm`.
        product_of: What the problem is as a product.
        outline_of: See `TiledGemm`.
    """

    name: str
    product_of: ProductOf
    outline_of: OutlineOf | None = None

    def units(self) -> tuple[Unit, ...]:
        """Every unit that its calls can name."""
        narrow = (variant.unit for variant in variants(extended=True) if not variant.wide)
        return (*narrow, table_unit())

    def least_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """What `TiledGemm` takes at least, and the launch that writes a table."""
        outline = outline_or_reason(self.product_of, self.outline_of, problem)
        if isinstance(outline, str):
            return math.inf
        return least_whole_seconds(outline, problem, figures) + figures.launch_seconds

    def closer_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """What `TiledGemm` takes, whose schedule is known by then, and writing tables."""
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str) or why_wide(product):
            return math.inf
        whole = whole_schedule(product, figures, extended=False)
        products = memory_seconds(problem, product, figures)
        return _with_tables(products if whole is None else max(whole.seconds, products), product, figures)

    def offer(self, problem: Any, figures: DeviceFigures) -> Offer | str:
        """What the fastest tile and the table take by estimate; a reason where an entry cannot hold what the problem needs."""
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str):
            return product
        reason = why_wide(product)
        if reason is not None:
            return f"only narrow kernels read a table: {reason}"
        most = max(_tables(product), default=0)
        if most > _MAX_ENTRIES:
            return f"its table would have more than {_MAX_ENTRIES} entries"
        schedule = whole_schedule(product, figures, extended=True)
        if schedule is None:
            return why_no_tile(product, extended=True) or "no tile computes it"
        reason = why_not_launched(product, schedule.tile)
        if reason is not None:
            return reason
        # Kernels that read a table may have fewer tiles to choose from, and are no faster than the others.
        whole = whole_schedule(product, figures, extended=False) or schedule
        products = max(schedule.seconds, whole.seconds, memory_seconds(problem, product, figures))
        seconds = _with_tables(products, product, figures)
        return Offer(seconds, partial(_calls, product, schedule.tile), most * TABLE_ENTRY_BYTES)


def _calls(product: Product, tile: AnyTile) -> Calls:
    if product.is_empty:
        return ()
    return tuple(call for phases in batches(product) for call in _one(product, phases, tile))


def _one(product: Product, phases: Sequence[Phase], tile: AnyTile) -> Calls:
    """The table of one launch and the launch, which take the same parameters."""
    params, lengths = make_params(product, phases, tile.rows, tile.columns), _entries(phases)
    params["phase"]["first_entry"][: len(phases)] = [sum(lengths[:i]) for i in range(len(phases))]
    places = {**in_order(*fields_of(product.inputs), "c"), "table": Place(WORKSPACE)}
    table_grid = (math.ceil(max(lengths) / TABLE_THREADS), len(phases), 1)
    return (
        *kernel_call(table_unit(), table_grid, TABLE_THREADS, params, places),
        *tiled_calls(product, phases, tile, params, places, extended=True),
    )
