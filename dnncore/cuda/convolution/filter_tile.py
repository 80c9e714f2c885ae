"""Tiles of the backward-filter kernels of sm_90, what they take, their parameters and their units. Pure.

The picture is in `convolution/filter_feed.cuh`. Kernels that multiply with other units have all of this in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from dnncore.cuda.convolution.sum_of_parts import SUM_THREADS
from dnncore.cuda.convolution.wgmma_tile import ARCHITECTURE, ROW_BYTES, WARPGROUP
from dnncore.cuda.params import ADDRESS, BLEND, generate, struct
from dnncore.cuda.tensor_map import TENSOR_MAP
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import Maths

__all__ = [
    "GRADIENT",
    "PARAMS",
    "PATCH_COLUMNS",
    "PATCH_PIXELS",
    "PATCH_ROWS",
    "PATCH_TAPS",
    "SUM_PARAMS",
    "Kernels",
    "Tile",
    "kernel_unit",
    "sum_unit",
]

PATCH_ROWS, PATCH_COLUMNS = 14, 8
PATCH_TAPS = (3, 3)
PATCH_PIXELS = (PATCH_ROWS + PATCH_TAPS[0] - 1) * (PATCH_COLUMNS + PATCH_TAPS[1] - 1)
"""Of a stage that is a patch: pixels of y, their taps, and the pixels of x that these meet."""


@dataclass(frozen=True)
class Tile:
    """Filters and columns (channels of taps) of a block's tile, and stages of its ring: as many as fit. Immutable.

    Args:
        rows: Filters.
        columns: All taps of a slab of channels where stages are patches.
        stages: Of the ring.
        in_patches: Whether a stage is pixels of a patch and what all their taps meet.
        in_planes: Whether a stage is neighbouring pixels of planes (NCHW), for filters of one tap.
        itemsize: Bytes of an element.
    """

    rows: int
    columns: int
    stages: int
    in_patches: bool = False
    in_planes: bool = False
    itemsize: int = 2

    @cached_property
    def slab(self) -> int:
        """Elements of a row of a stage."""
        return ROW_BYTES // self.itemsize

    @cached_property
    def consumers(self) -> int:
        """Groups of four warps that multiply."""
        return PATCH_TAPS[0] if self.in_patches else 2

    @cached_property
    def threads(self) -> int:
        """Of a block, the producer's among them."""
        return (self.consumers + 1) * WARPGROUP

    @cached_property
    def pixels(self) -> int:
        """Of dy in a stage: as many as a slab has elements, or a patch's."""
        return PATCH_ROWS * PATCH_COLUMNS if self.in_patches else self.slab

    @cached_property
    def stage_bytes(self) -> int:
        """Of dy and x."""
        of_x = PATCH_PIXELS if self.in_patches else self.columns // self.slab * self.pixels
        return (self.rows // self.slab * self.pixels + of_x) * ROW_BYTES

    @cached_property
    def shared_bytes(self) -> int:
        """Stages, and two barriers for each."""
        return self.stages * (self.stage_bytes + 2 * 8)

    @cached_property
    def sums(self) -> int:
        """In a slot of the workspace."""
        return self.rows * self.columns

    @cached_property
    def fragments(self) -> int:
        """Four sums of a thread each."""
        return self.sums // (self.consumers * WARPGROUP * 4)


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels that share out their work like this. Immutable.

    Args:
        tiles: There is a kernel for each.
        unit: That of a dtype and a tile.
        sum_unit: What adds up the parts of a dtype.
        maths: Which units multiply.
        of_rate: Which share of their rate is reached, products that give one of full precision counted as one.
        rounds: Whether the copy engine rounds float32 to tf32, which the caller permits.
    """

    tiles: Sequence[Tile]
    unit: Callable[[DType, Tile], Unit]
    sum_unit: Callable[[DType], Unit]
    maths: Maths
    of_rate: float = 1.0
    rounds: bool = False


GRADIENT = struct(
    ("parts", ADDRESS),
    ("dw", ADDRESS),
    ("strides", "<i8", 4),
    ("filters", "<i4"),
    ("channels", "<i4"),
    ("taps", "<i4", 2),
    *(
        (name, "<i4")
        for name in ("slabs", "tile_step", "block_step", "steps", "tiles", "filter_tiles", "blocks", "in_vectors")
    ),
)
PARAMS = struct(
    *((name, TENSOR_MAP) for name in ("x", "dy")),
    *BLEND,
    ("gradient", GRADIENT),
    *((name, "<i4", 2) for name in ("output", "stride", "padding", "dilation")),
    ("gathers", "<i4"),
    alignment=64,
)
"""The struct `filter::Params`."""

SUM_PARAMS = struct(
    *BLEND,
    ("gradient", GRADIENT),
    *((name, "<i4") for name in ("rows", "fragments", "consumers", "log2_ways")),
)


def kernel_unit(header: str, kernel: str, entry: str, tile: Tile) -> Unit:
    """The kernel of a tile.

    Args:
        header: Of `convolution/`, where its class is.
        kernel: That class with its arguments, in namespace dnncore.
        entry: Name of its `extern "C"` entry.
        tile: Of each block.
    """
    source = (
        f'#include "dnncore/convolution/{header}.cuh"\n'
        "using namespace dnncore;\n"
        f"using Kernel = {kernel};\n"
        f'static_assert(sizeof(filter::Params) == {PARAMS.itemsize}, "dnncore/cuda/convolution disagrees");\n'
        f'static_assert(sizeof(Kernel::Shared) == {tile.shared_bytes}, "dnncore/cuda/convolution disagrees");\n'
        f'extern "C" __global__ void __launch_bounds__({tile.threads}, 1) '
        f"{entry}(const __grid_constant__ filter::Params params) {{\n"
        "  Kernel::run(params);\n"
        "}\n"
    )
    return Unit(source, entry, (ARCHITECTURE,))


def sum_unit(header: str, function: str, entry: str) -> Unit:
    """The kernel that adds up parts by a function of `filter::SumParams`."""
    return generate(
        header=f"dnncore/convolution/{header}.cuh",
        entry=entry,
        function=function,
        struct_name="filter::SumParams",
        dtype=SUM_PARAMS,
        threads=SUM_THREADS,
        architectures=(ARCHITECTURE,),
    )
