"""The units of the tiled kernels: which variants exist, and which one a product takes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from dnncore.cuda.gemm.index_space import MAX_COORDINATES, MAX_DIGITS, Product
from dnncore.cuda.gemm.params import PARAMS
from dnncore.cuda.gemm.tiling import TILES, Tile, Walk, choose_walks
from dnncore.cuda.launch import Unit
from dnncore.cuda.params import c_type
from dnncore.dtypes import DType

__all__ = ["SUM_THREADS", "Variant", "choose_variant", "sum_unit", "tiles_for", "variants"]

SUM_THREADS = 256
"""`dnncore::gemm::kSumThreads`."""

_NARROW_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Variant:
    """One instance of `dnncore::gemm::Kernel`. Immutable.

    Args:
        tile: Its tile.
        walks: How A and B are read.
        padded: Whether it keeps coordinates.
        wide: Whether it has 64-bit offsets, all digits and all coordinates; it can compute everything that the struct can hold.
    """

    tile: Tile
    walks: tuple[Walk, Walk]
    padded: bool
    wide: bool = False

    @property
    def stages(self) -> int:
        """Slabs in shared memory at a time: 3 where B is read along the reduction, in short runs that take longer."""
        return 3 if self.walks[1] is Walk.REDUCTION else self.tile.stages

    @property
    def unit(self) -> Unit:
        """What is compiled."""
        digits, coordinates, index = (
            (MAX_DIGITS, MAX_COORDINATES, "int64") if self.wide else (_NARROW_DIGITS, 2, "int32")
        )
        walk_a, walk_b = self.walks
        name = "_".join(
            (
                c_type(self.tile.dtype),
                f"{self.tile.rows}x{self.tile.columns}",
                walk_a.name.lower(),
                walk_b.name.lower(),
                "wide" if self.wide else "padded" if self.padded else "dense",
            )
        )
        return Unit(
            source=(
                '#include "dnncore/gemm/kernel.cuh"\n'
                "using namespace dnncore;\n"
                "using namespace dnncore::gemm;\n"
                f"using Variant = Kernel<{self.tile.cpp}, Walk::{walk_a.value}, Walk::{walk_b.value}, {self.stages}, {digits}, "
                f"{coordinates if self.padded else 0}, {index}>;\n"
                f'static_assert(sizeof(Params) == {PARAMS.itemsize}, "dnncore/cuda/gemm/params.py disagrees");\n'
                f'extern "C" __global__ void __launch_bounds__({self.tile.threads}, {self.tile.min_blocks}) '
                f"gemm_{name}(const __grid_constant__ Params params) {{\n"
                "  __shared__ Variant::Shared shared;\n"
                "  Variant::run(params, shared);\n"
                "}\n"
            ),
            entry=f"gemm_{name}",
        )


def _wide(dtype: DType) -> Variant:
    return Variant(TILES[dtype][2], (Walk.REDUCTION, Walk.OUTER), padded=True, wide=True)


def variants() -> tuple[Variant, ...]:
    """Every variant that `choose_variant` can return."""
    return tuple(
        variant
        for dtype, tiles in TILES.items()
        for variant in (
            *(
                Variant(tile, (walk_a, walk_b), padded)
                for tile, walk_a, walk_b, padded in itertools.product(tiles, Walk, Walk, (False, True))
            ),
            _wide(dtype),
        )
    )


def needs_wide(product: Product) -> bool:
    """Whether only the variant with 64-bit offsets and all digits can compute a product."""
    return product.num_digits > _NARROW_DIGITS or len(product.bounds) > 2 or not product.fits_32_bit_offsets


def tiles_for(product: Product) -> tuple[Tile, ...]:
    """Tiles in which some variant can compute a product."""
    return (_wide(product.dtype).tile,) if needs_wide(product) else TILES[product.dtype]


def choose_variant(product: Product, tile: Tile) -> Variant:
    """Choose the variant for a product that `Product.why_not_tiled` does not refuse and one of its tiles."""
    if needs_wide(product):
        return _wide(product.dtype)
    return Variant(tile, choose_walks(product), padded=bool(product.bounds))


def sum_unit(dtype: DType) -> Unit:
    """The kernel that adds up the parts of a split reduction."""
    entry = f"gemm_sum_splits_{c_type(dtype)}"
    return Unit(
        source=(
            '#include "dnncore/gemm/split.cuh"\n'
            f'static_assert(sizeof(dnncore::gemm::Params) == {PARAMS.itemsize}, "dnncore/cuda/gemm/params.py disagrees");\n'
            f"static_assert(dnncore::gemm::kSumThreads == {SUM_THREADS});\n"
            f'extern "C" __global__ void __launch_bounds__({SUM_THREADS}) '
            f"{entry}(const __grid_constant__ dnncore::gemm::Params params) {{\n"
            f"  dnncore::gemm::sum_splits<{c_type(dtype)}>(params);\n"
            "}\n"
        ),
        entry=entry,
    )
