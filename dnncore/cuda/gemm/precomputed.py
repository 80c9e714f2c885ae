"""The tiled product with a table of the reduction in the workspace, written first by a kernel of its own.

Without it every block divides for each reduction index; with it they read 16 bytes that the L2 cache holds for all of them. What a
column adds to an address is still worked out by the block: that is once per thread, and the table of all columns would be as large
as the output.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dnncore.backend import Offer
from dnncore.bounds import Searched
from dnncore.cuda.calls import WORKSPACE, Calls, Place, in_order, kernel_call
from dnncore.cuda.gemm.algorithm import batches, tiled_calls, whole_schedule, why_not_launched
from dnncore.cuda.gemm.estimate import (
    OutlineOf,
    ProductOf,
    least_of_whole,
    memory_seconds,
    outline_or_reason,
    product_or_reason,
)
from dnncore.cuda.gemm.index_space import Extents, Outline, Phase, Product
from dnncore.cuda.gemm.kernel import (
    TABLE_ENTRY_BYTES,
    TABLE_THREADS,
    table_unit,
    variants,
    why_no_tile,
    why_wide,
)
from dnncore.cuda.gemm.params import MAX_PHASES, fields_of, make_params
from dnncore.cuda.gemm.schedule import whole_seconds
from dnncore.cuda.gemm.tiling import AnyTile
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures

__all__ = ["PrecomputedGemm"]

_MAX_ENTRIES = 2**31
"""Entries are counted in 32 bits."""

_OF_MEMORY_RATE = 0.5
"""What writing a table reaches [estimated]."""


def _entries(lengths: Sequence[int]) -> list[int]:
    """Room for the entries of sums so long; a phase that adds up nothing has room for one, so that there is a table always."""
    return [length or 1 for length in lengths]


def _tables(extents: Extents) -> list[int]:
    """Entries of each launch's table."""
    entries = _entries([summands for _, summands in extents.phases])
    return [sum(entries[start : start + MAX_PHASES]) for start in range(0, len(entries), MAX_PHASES)]


def _with_tables(seconds: float, extents: Extents, figures: DeviceFigures) -> float:
    """What products take, and writing the tables, a launch each."""
    entries = _tables(extents)
    tables = sum(entries) * TABLE_ENTRY_BYTES / (figures.bytes_per_second * _OF_MEMORY_RATE)
    return seconds + len(entries) * figures.launch_seconds + tables


@dataclass(frozen=True)
class PrecomputedGemm(Searched):
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
        return (
            least_of_whole(self.product_of, self.outline_of, problem, figures, extended=False) + figures.launch_seconds
        )

    def search(self, problem: Any, figures: DeviceFigures) -> Generator[float, None, Offer | str]:
        """What the fastest tile and the table take by estimate; a reason where an entry cannot hold what the problem needs.

        Yields:
            What `TiledGemm` takes in the fastest of tiles that may come into question, with tables; then in the tile that it has,
            once the product is made.
        """
        outline = outline_or_reason(self.product_of, self.outline_of, problem)
        if isinstance(outline, Outline):
            products = least_of_whole(self.product_of, self.outline_of, problem, figures, whole_seconds, extended=False)
            yield _with_tables(products, outline.extents, figures)
        product = product_or_reason(self.product_of, problem)
        if isinstance(product, str):
            return product
        reason = why_wide(product)
        if reason is not None:
            return f"only narrow kernels read a table: {reason}"
        whole = whole_schedule(product, figures, extended=False)
        products = memory_seconds(problem, product, figures)
        yield _with_tables(products if whole is None else max(whole.seconds, products), product.extents, figures)
        most = max(_tables(product.extents), default=0)
        if most > _MAX_ENTRIES:
            return f"its table would have more than {_MAX_ENTRIES} entries"
        schedule = whole_schedule(product, figures, extended=True)
        if schedule is None:
            return why_no_tile(product, extended=True) or "no tile computes it"
        reason = why_not_launched(product, schedule.tile)
        if reason is not None:
            return reason
        # Kernels that read a table may have fewer tiles to choose from, and are no faster than the others.
        products = max(schedule.seconds, (whole or schedule).seconds, products)
        seconds = _with_tables(products, product.extents, figures)
        return Offer(seconds, partial(_calls, product, schedule.tile), most * TABLE_ENTRY_BYTES)


def _calls(product: Product, tile: AnyTile) -> Calls:
    if product.is_empty:
        return ()
    return tuple(call for phases in batches(product) for call in _one(product, phases, tile))


def _one(product: Product, phases: Sequence[Phase], tile: AnyTile) -> Calls:
    """The table of one launch and the launch, which take the same parameters."""
    params = make_params(product, phases, tile.rows, tile.columns)
    lengths = _entries([phase.reduction_length for phase in phases])
    params["phase"]["first_entry"][: len(phases)] = [sum(lengths[:i]) for i in range(len(phases))]
    places = {**in_order(*fields_of(product.inputs), "c"), "table": Place(WORKSPACE)}
    table_grid = (math.ceil(max(lengths) / TABLE_THREADS), len(phases), 1)
    return (
        *kernel_call(table_unit(), table_grid, TABLE_THREADS, params, places),
        *tiled_calls(product, phases, tile, params, places, extended=True),
    )
