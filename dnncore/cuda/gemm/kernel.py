"""The units of the tiled kernels: which variants exist, and which one a product takes.

Of fp32 and fp64 there are plain kernels in every combination of tile, walks and padding, and *extended* ones, which know epilogues
and tables in the workspace and would cost the plain ones registers, in the few combinations that matter most. Kernels of 16-bit
types and of int8, which the tensor cores compute, are always extended; those of int8 write int8, int32 or fp32. Where both operands
can be read 16 bytes at a time (vectors.py), these have *pipelined* ones, `dnncore::gemm::Pipeline`.

Of fp32 there are *clamped* kernels, too, which are plain ones but for the simplest epilogues: bias, residual, floor and ceiling.

Of tiles that join there are *joined* kernels beside these, which add up the parts of a reduction and do nothing else.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cache

from dnncore.cuda.gemm.index_space import MAX_COORDINATES, MAX_DIGITS, Product
from dnncore.cuda.gemm.params import PARAMS
from dnncore.cuda.gemm.tiling import (
    CLAMPED_TILES,
    EXTENDED_TILES,
    PIPELINED_TILES,
    TILES,
    WIDE_TILES,
    AnyTile,
    MatrixTile,
    Walk,
    choose_walks,
)
from dnncore.cuda.gemm.vectors import vector_walks
from dnncore.cuda.params import c_type
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType

__all__ = [
    "SUM_THREADS",
    "TABLE_ENTRY_BYTES",
    "TABLE_THREADS",
    "Variant",
    "choose_variant",
    "clamped_variant",
    "clamped_variants",
    "general_tile",
    "sum_unit",
    "table_unit",
    "tiles_for",
    "variants",
    "why_no_tile",
    "why_wide",
]

SUM_THREADS = 256
"""`dnncore::gemm::kSumThreads`."""

TABLE_THREADS = 128
"""`dnncore::gemm::kTableThreads`."""

TABLE_ENTRY_BYTES = 16
"""Of the table that narrow kernels read: two offsets and two coordinates."""

_NARROW_DIGITS = 3
_NARROW_COORDINATES = 2


@dataclass(frozen=True, slots=True)
class Variant:
    """One instance of `dnncore::gemm::Kernel`, or of `dnncore::gemm::Pipeline` where its tile is pipelined. Immutable.

    Args:
        tile: Its tile.
        walks: How A and B are read; of a pipelined one along which index 16 bytes at a time.
        padded: Whether it keeps coordinates; one that does computes products without padding too.
        wide: Whether it has 64-bit offsets, all digits and all coordinates; it can compute everything that the struct can hold.
        extended: Whether it knows epilogues and, where it is not joined, tables.
        joined: Whether the last block of each tile adds up the parts of the reduction, which are two or more.
        clamped: Whether it knows the simplest epilogues; such a one is not extended.
    """

    tile: AnyTile
    walks: tuple[Walk, Walk]
    padded: bool
    wide: bool = False
    extended: bool = False
    joined: bool = False
    clamped: bool = False

    @property
    def stages(self) -> int:
        """Slabs in shared memory at a time: 3 where B is read along the reduction, in short runs that take longer.

        Of single elements of 16 or 8 bits 2: they wait in registers, not in a third slab.
        """
        if isinstance(self.tile, MatrixTile):
            return self.tile.stages
        return 3 if self.walks[1] is Walk.REDUCTION else self.tile.stages

    @property
    def pipelined(self) -> bool:
        """Whether it reads 16 bytes at a time."""
        return isinstance(self.tile, MatrixTile) and self.tile.pipelined

    @property
    def kind(self) -> str:
        """The last word of its name."""
        if self.pipelined:
            return "pipelined"
        return "wide" if self.wide else "extended" if self.extended else "padded" if self.padded else "dense"

    @property
    def unit(self) -> Unit:
        """What is compiled."""
        return _unit(self)


@cache
def _unit(variant: Variant) -> Unit:
    digits, coordinates, index = (
        (MAX_DIGITS, MAX_COORDINATES, "int64") if variant.wide else (_NARROW_DIGITS, _NARROW_COORDINATES, "int32")
    )
    element, (walk_a, walk_b) = c_type(variant.tile.dtype), variant.walks
    name = "_".join(
        (
            element,
            f"{variant.tile.rows}x{variant.tile.columns}",
            walk_a.name.lower(),
            walk_b.name.lower(),
            variant.kind,
        )
        + ("joined",) * variant.joined
        + ("clamped",) * variant.clamped
    )
    arguments: tuple[object, ...] = (
        variant.tile.cpp, f"Walk::{walk_a.value}", f"Walk::{walk_b.value}", variant.stages, digits,
        coordinates if variant.padded else 0, index,
    )  # fmt: skip
    header, template = ("pipeline", "Pipeline") if variant.pipelined else ("kernel", "Kernel")
    if not variant.pipelined:
        arguments += (str(variant.extended).lower(),)
    arguments += (str(variant.joined).lower(),) + ("true",) * variant.clamped
    return Unit(
        source=(
            f'#include "dnncore/gemm/{header}.cuh"\n'
            "using namespace dnncore;\n"
            "using namespace dnncore::gemm;\n"
            f"using Variant = {template}<{', '.join(map(str, arguments))}>;\n"
            f'static_assert(sizeof(Params) == {PARAMS.itemsize}, "dnncore/cuda/gemm/params.py disagrees");\n'
            f'extern "C" __global__ void __launch_bounds__({variant.tile.threads}, {variant.tile.min_blocks}) '
            f"gemm_{name}(const __grid_constant__ Params params) {{\n"
            "  __shared__ Variant::Shared shared;\n"
            "  Variant::run(params, shared);\n"
            "}\n"
        ),
        entry=f"gemm_{name}",
    )


def _is_widened(dtype: DType) -> bool:
    return dtype is not dtype.compute


@cache
def _pipelined(dtype: DType) -> tuple[Variant, ...]:
    """Both tiles for channels last in all three directions; the smaller one for what only dense matrices and 1x1 filters are.

    In the smaller one what is read across the reduction costs many index calculations per multiplication.
    """
    large, small = PIPELINED_TILES[dtype]
    along = Walk.REDUCTION
    if dtype is DType.INT8:
        choices = [(tile, (along, along)) for tile in (large, small)]
    else:
        orders = ((along, along), (Walk.OUTER, along), (Walk.OUTER, Walk.OUTER))
        choices = [(tile, walks) for tile in (large, small) for walks in orders]
        choices.append((small, (along, Walk.OUTER)))
    return tuple(Variant(tile, walks, padded=True, extended=True) for tile, walks in choices)


@cache
def _pipelined_tiles(dtype: DType, walks: tuple[Walk, Walk]) -> tuple[AnyTile, ...]:
    """Those whose variants read the operands along these indices."""
    return tuple(variant.tile for variant in _pipelined(dtype) if variant.walks == walks)


def _has_all_walks(dtype: DType, *, extended: bool) -> bool:
    """Whether there are kernels that read A along its rows, as filters rarely lie: not of int8, nor extended ones of fp32, fp64."""
    return dtype is not DType.INT8 and (_is_widened(dtype) or not extended)


def _wide(dtype: DType) -> Variant:
    walks = Walk.REDUCTION, Walk.OUTER
    return Variant(WIDE_TILES[dtype], walks, padded=True, wide=True, extended=_is_widened(dtype))


def variants(*, extended: bool = False, joined: bool = False) -> tuple[Variant, ...]:
    """Every variant that `choose_variant` can return for products that need an extended one, or a joined one, or for the others."""
    if joined:
        return tuple(replace(each, joined=True) for each in variants(extended=extended) if each.tile.joins)
    found: list[Variant] = []
    for dtype, tiles in (EXTENDED_TILES if extended else TILES).items():
        widened = _is_widened(dtype)
        scalar = (Walk.OUTER, Walk.REDUCTION)
        walks = list(
            itertools.product(scalar if _has_all_walks(dtype, extended=extended) else (Walk.REDUCTION,), scalar)
        )
        paddings = (True,) if widened or extended else (False, True)
        found += [
            Variant(tile, both, padded, extended=widened or extended)
            for tile, both, padded in itertools.product(tiles, walks, paddings)
        ]
        if widened or not extended:
            found.append(_wide(dtype))
        if widened:
            found += _pipelined(dtype)
    return tuple(found)


def clamped_variants() -> tuple[Variant, ...]:
    """Those that know the simplest epilogues: for rows of images with and without padding, and for what a stride reads of them."""
    return tuple(
        Variant(tile, (Walk.REDUCTION, walk), padded, joined=joined, clamped=True)
        for tiles in CLAMPED_TILES.values()
        for tile in tiles
        for walk, padded in ((Walk.OUTER, False), (Walk.OUTER, True), (Walk.REDUCTION, True))
        for joined in (False, True)[: 1 + tile.joins]
    )


def clamped_variant(product: Product, tile: AnyTile, *, joined: bool = False) -> Variant:
    """The one of them for a product that no wide kernel is needed for; a joined one for a tile that joins."""
    _, walk = choose_walks(product)
    padded = bool(product.bounds) or walk is Walk.REDUCTION
    return Variant(tile, (Walk.REDUCTION, walk), padded, joined=joined, clamped=True)


def why_wide(product: Product) -> str | None:
    """Why only the variant with 64-bit offsets and all digits can compute a product; None where a narrow one can."""
    if product.num_digits > _NARROW_DIGITS:
        return f"an index of {product.num_digits} digits; narrow kernels take {_NARROW_DIGITS}"
    if len(product.bounds) > _NARROW_COORDINATES:
        return f"{len(product.bounds)} coordinates in padding; narrow kernels take {_NARROW_COORDINATES}"
    return None if product.fits_32_bit_offsets else "offsets of more than 32 bits"


def tiles_for(product: Product, *, extended: bool = False, whole: bool = False) -> tuple[AnyTile, ...]:
    """Tiles in which some variant can compute a product; none where there is no such variant.

    Args:
        product: What is computed.
        extended: Whether the variant must be an extended one.
        whole: Whether it must add up the longest sum in one go.
    """
    if why_wide(product):
        tiles: tuple[AnyTile, ...] = (WIDE_TILES[product.dtype],)
        tiles = tiles if _wide(product.dtype).extended or not extended else ()
        return _whole(tiles, product) if whole else tiles
    general = (EXTENDED_TILES if extended else TILES)[product.dtype]
    walks = vector_walks(product)
    pipelined = _pipelined_tiles(product.dtype, walks) if walks else ()
    if whole:
        return _whole(pipelined, product) or _whole(general, product)
    return pipelined or general


def _whole(tiles: tuple[AnyTile, ...], product: Product) -> tuple[AnyTile, ...]:
    longest = product.longest_sum
    return tuple([tile for tile in tiles if tile.longest_sum >= longest])


def why_no_tile(product: Product, *, extended: bool = False) -> str | None:
    """None when there is a tile in which one variant can add up whole sums, else the reason why not."""
    if tiles_for(product, extended=extended, whole=True):
        return None
    tiles = tiles_for(product, extended=extended)
    if not tiles:
        return "its offsets, digits or coordinates are too many for the kernels that know epilogues"
    most = max(tile.longest_sum for tile in tiles)
    return f"sums of {product.longest_sum} products of {product.dtype.value}; {most} of them fit into an int32 always"


def general_tile(tile: AnyTile) -> AnyTile:
    """The tile of the kernel that computes what a pipelined one does wherever the operands start."""
    return TILES[tile.dtype][0] if isinstance(tile, MatrixTile) and tile.pipelined else tile


def choose_variant(
    product: Product, tile: AnyTile, *, extended: bool = False, joined: bool = False, aligned: bool = True
) -> Variant:
    """Choose the variant for a product that `Product.why_not_tiled` does not refuse and one of its tiles.

    Args:
        product: What is computed.
        tile: One of `tiles_for(product)`; a variant for operands that are not aligned may have another.
        extended: Whether it must know epilogues and tables.
        joined: Whether it must add up the parts of the reduction; the tile must be one that joins.
        aligned: Whether A and B start at multiples of 16 bytes.
    """
    if why_wide(product):
        assert not joined, "wide kernels are not joined"
        return _wide(product.dtype)
    vectors = vector_walks(product)
    if vectors is not None and tile in PIPELINED_TILES[product.dtype]:
        if aligned:
            assert tile.joins or not joined, f"{tile} has no joined kernel"
            return Variant(tile, vectors, padded=True, extended=True, joined=joined)
        tile = general_tile(tile)
    assert tile.joins or not joined, f"{tile} has no joined kernel"
    walk_a, walk_b = choose_walks(product)
    if walk_a is Walk.OUTER and not _has_all_walks(product.dtype, extended=extended):
        walk_a = Walk.REDUCTION
    extended = extended or _is_widened(product.dtype)
    return Variant(tile, (walk_a, walk_b), padded=extended or bool(product.bounds), extended=extended, joined=joined)


@cache
def sum_unit(dtype: DType, *, extended: bool = False) -> Unit:
    """The kernel that adds up the parts of a split reduction; an extended one knows epilogues, as all of 16 and 8 bits do."""
    element, extended = c_type(dtype), extended or _is_widened(dtype)
    entry = f"gemm_sum_splits_{element}" + ("_extended" if extended else "")
    return _struct_unit(
        "split",
        entry,
        SUM_THREADS,
        f"sum_splits<{element}, {str(extended).lower()}>",
        f"kSumThreads == {SUM_THREADS}",
    )


@cache
def table_unit() -> Unit:
    """The kernel that writes a narrow product's table, of whatever type its elements are."""
    entry = f"Reduction<int32, {_NARROW_COORDINATES}>"
    return _struct_unit(
        "table",
        "gemm_write_table",
        TABLE_THREADS,
        f"write_table<{_NARROW_DIGITS}, {entry}>",
        f"kTableThreads == {TABLE_THREADS} && sizeof({entry}) == {TABLE_ENTRY_BYTES}",
    )


def _struct_unit(header: str, entry: str, threads: int, function: str, agreed: str) -> Unit:
    return Unit(
        source=(
            f'#include "dnncore/gemm/{header}.cuh"\n'
            "using namespace dnncore;\n"
            "using namespace dnncore::gemm;\n"
            f'static_assert(sizeof(Params) == {PARAMS.itemsize}, "dnncore/cuda/gemm/params.py disagrees");\n'
            f"static_assert({agreed});\n"
            f'extern "C" __global__ void __launch_bounds__({threads}) '
            f"{entry}(const __grid_constant__ Params params) {{\n"
            f"  {function}(params);\n"
            "}\n"
        ),
        entry=entry,
    )
