"""What a tiled product takes, by what is known of it: bounds before it is made, and what memory and epilogues add. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from dnncore.cuda.gemm.index_space import Extents, Outline, Product
from dnncore.cuda.gemm.schedule import least_seconds
from dnncore.cuda.gemm.tiling import EXTENDED_TILES, PIPELINED_TILES, TILES, AnyTile
from dnncore.cuda.gemm.vectors import vector_walks
from dnncore.cuda.params import FULL_PRECISION
from dnncore.cuda.traffic import operand_bytes
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths

__all__ = [
    "OF_16_BITS",
    "OutlineOf",
    "ProductOf",
    "epilogue_seconds",
    "least_extended_seconds",
    "least_of_whole",
    "least_whole_seconds",
    "memory_seconds",
    "outline_or_reason",
    "product_or_reason",
    "tiles_of",
]

OF_16_BITS = (DType.FLOAT16, DType.BFLOAT16)

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
    if product.dtype not in OF_16_BITS or any(digit.other_stride != 1 for digit in fastest):
        return 1.0
    return max([_of_runs(product.dtype, [digit.extent]) for digit in fastest], default=_WRITTEN_AS_COLUMNS)


def _of_runs(dtype: DType, runs: Sequence[int]) -> float:
    """The same of columns that come in neighbours, at least, as many as one of `runs` says."""
    if dtype not in OF_16_BITS or not runs:
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


@lru_cache(maxsize=8)  # tables beside a product ask for the same
def least_of_whole(
    product_of: ProductOf,
    outline_of: OutlineOf | None,
    problem: Any,
    figures: DeviceFigures,
    of_products: Callable[[Extents, tuple[AnyTile, ...], DeviceFigures], float] = least_seconds,
    *,
    extended: bool = False,
) -> float:
    """Seconds that a problem's product is not below whose sums are not cut; infinitely many where there is none, or no tile."""
    outline = outline_or_reason(product_of, outline_of, problem)
    if isinstance(outline, str):
        return math.inf
    return least_whole_seconds(outline, problem, figures, extended=extended, of_products=of_products)


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
    tiles = [tile for tile in tiles_of(outline, extended=extended) if tile.longest_sum >= longest]
    least = of_products(extents, tuple(tiles), figures)
    if extents.dtype in FULL_PRECISION:
        return least + epilogue_seconds(extents, figures) if extended else least
    if not isinstance(problem, Product):
        written = (_of_runs(extents.dtype, outline.column_runs) - 1) * _written_bytes(problem)
        least = max(least, (operand_bytes(problem) + written) / (figures.bytes_per_second * _OF_MEMORY_RATE))
    return max(least, least_extended_seconds(extents, figures)) if extended else least


def tiles_of(outline: Outline, *, extended: bool) -> tuple[AnyTile, ...]:
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


def epilogue_seconds(extents: Extents, figures: DeviceFigures) -> float:
    """Of a product of one phase."""
    products = _EPILOGUE_PRODUCTS if extents.dtype in FULL_PRECISION else _MATRIX_EPILOGUE_PRODUCTS
    return extents.elements * products / figures.products_per_second(Maths.FP32)


def least_extended_seconds(extents: Extents, figures: DeviceFigures) -> float:
    """What tensor cores take at least where an epilogue follows."""
    elements = extents._replace(rows=-(-extents.rows // _LEAST_ROWS) * _LEAST_ROWS).elements
    return elements * _LEAST_PRODUCTS / figures.products_per_second(Maths.FP32)
