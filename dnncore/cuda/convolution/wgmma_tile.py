"""Tiles of the kernels of `convolution/wgmma.cuh` and `wgmma_patches.cuh`, what they take, and their units. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from dnncore.cuda.gemm import EPILOGUE
from dnncore.cuda.params import BLEND, c_type, struct
from dnncore.cuda.tensor_map import TENSOR_MAP
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ConvolutionMode, MathType
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionKind, ConvolutionProblem, FusedConvolutionProblem, ImageConvolutionProblem

__all__ = [
    "ARCHITECTURE",
    "BOX_FILTERS",
    "DTYPES",
    "LONGEST_SUM",
    "MOST",
    "MOST_PHASES",
    "PATCH_TAPS",
    "POOLED_TILE",
    "PRODUCT_BYTES",
    "RECTANGLE",
    "ROW_BYTES",
    "SLAB",
    "THREADS",
    "TILES",
    "TILES_OF_CLUSTERS",
    "TILES_OF_INT8",
    "TILES_OF_TF32",
    "WARPGROUP",
    "Patch",
    "Tile",
    "least_of_wgmma",
    "multiplies",
    "params_dtype",
    "unit",
    "why_no_wgmma",
]

ARCHITECTURE = "sm_90a"
DTYPES = (DType.FLOAT16, DType.BFLOAT16)
"""Of 16 bits; forward takes int8, too, and forward and backward-data float32, as tf32."""

WARPGROUP = 128
"""Threads of four warps."""

SLAB, BOX_FILTERS = 64, 64
"""Channels of 16 bits that are added up at a time; filters that are stored at a time."""

_CONSUMERS = _BOXES = 2
THREADS = (_CONSUMERS + 1) * WARPGROUP
"""Of a block: the consumers' and the producer's."""

_WARP = 32

ROW_BYTES = SLAB * 2
"""Of shared memory: 64 elements of 16 bits."""

PRODUCT_BYTES = 32
"""Of a row, that one product adds up."""

_LEAST_PART = 16
"""Of the pixels of a cluster's tile, those that a block finishes at least."""

MOST = 2**31 - 2**16
"""What coordinates of 32 bits hold, those of the last tile included."""

MOST_PHASES = 4
"""Of a launch."""

LONGEST_SUM = 2**16
"""As of the pipelines of `gemm`, whose matrix units round alike."""

PATCH_TAPS = (3, 3)
"""Of the filters for which there are patches: rows and columns, as is the next."""

RECTANGLE = (14, 8)
"""Of outputs, that a box holds."""


class Patch(NamedTuple):
    """Two rectangles of outputs: one below the other, or the same of two images. Immutable.

    Args:
        images: 1 or 2.
    """

    images: int

    @property
    def outputs(self) -> tuple[int, int]:
        """Of an image: rows and columns."""
        return 2 // self.images * RECTANGLE[0], RECTANGLE[1]

    @property
    def read(self) -> tuple[int, int, int]:
        """What the taps meet: images, rows and columns."""
        (rows, columns), (r, s) = self.outputs, PATCH_TAPS
        return self.images, rows + r - 1, columns + s - 1


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows (filters; of dx: channels) and columns (pixels) of a block's tile, and stages of its ring: as many as fit. Immutable.

    Args:
        rows: Of filters.
        columns: Of pixels.
        stages: Of the ring.
        patch: That a stage is of pixels, which all taps read; of two images columns between the rectangles are computed in vain.
        row_bytes: Of a row of a stage.
        cluster: Blocks that share out the sums of a tile, of which a launch has one wave (`convolution/wgmma_clusters.cuh`); 0
            where a block takes tiles in turn.
    """

    rows: int
    columns: int
    stages: int
    patch: Patch | None = None
    row_bytes: int = ROW_BYTES
    cluster: int = 0

    @property
    def threads(self) -> int:
        """Of a block: the consumers', and a producer's, which has as many where registers move between them."""
        return WARPGROUP + _WARP if self.cluster else THREADS

    def box_pixels(self, dtype: DType) -> int:
        """Pixels that are stored at a time; of a cluster's block, all that it finishes."""
        if self.cluster:
            return max(self.columns // self.cluster, _LEAST_PART)
        return 48 if dtype is DType.FLOAT32 else 96

    def slab(self, dtype: DType) -> int:
        """Channels that are added up at a time."""
        return self.row_bytes // dtype.itemsize

    def shared_bytes(self, dtype: DType) -> int:
        """Stages, the consumers' boxes, two barriers for each stage and one for each box; of patches, the taps' stages and turns.

        A cluster's block has one box, the sums of it that all blocks have, and a barrier at which these arrive.
        """
        stage_bytes = (self.columns + self.rows) * self.row_bytes
        box_bytes = self.box_pixels(dtype) * BOX_FILTERS * dtype.itemsize
        if self.cluster:
            sums = self.cluster * self.box_pixels(dtype) * self.rows * 4
            return self.stages * (stage_bytes + 2 * 8) + sums + box_bytes + 2 * 8
        boxes = _CONSUMERS * _BOXES
        if self.patch is not None:
            patch = -(-math.prod(self.patch.read) // 8) * 8
            rows = self.stages * patch + math.prod(PATCH_TAPS) * self.rows
            rectangle_bytes = math.prod(RECTANGLE) * BOX_FILTERS * dtype.itemsize
            barriers = 2 * (self.stages + math.prod(PATCH_TAPS)) + _CONSUMERS + boxes
            return rows * ROW_BYTES + boxes * rectangle_bytes + barriers * 8
        return self.stages * (stage_bytes + 2 * 8) + boxes * (box_bytes + 8)


TILES = (
    Tile(128, 192, 4),
    Tile(128, 96, 6),
    Tile(64, 192, 5),
    *(Tile(64, columns, 2, patch=Patch(n)) for n, columns in ((1, 224), (2, 240))),
)
POOLED_TILE = next(tile for tile in TILES if tile.patch == Patch(1))
TILES_OF_CLUSTERS = (*(Tile(64, 64, 5, cluster=blocks) for blocks in (1, 2, 4)), Tile(64, 64, 4, cluster=8))
"""Forward, of every dtype: as many stages as two blocks on a multiprocessor have room for."""
TILES_OF_TF32 = TILES[:3]
TILES_OF_INT8 = (
    Tile(128, 192, 5),
    Tile(128, 96, 7),
    Tile(64, 192, 6),
    Tile(64, 192, 12, row_bytes=64),
    Tile(64, 224, 2, patch=Patch(1)),
)

_PHASE = struct(
    *((name, TENSOR_MAP) for name in "xy"),
    *(
        (name, "<i4", 2)
        for name in ("slabs", "taps", "first_tap", "next_tap", "output", "stride", "padding", "dilation")
    ),
    *(
        (name, "<i4")
        for name in ("short_products", "short_first", "short_channel", "pixel_tiles", "gathers", "scatters")
    ),
    alignment=64,
)


@cache
def params_dtype(*, backward: bool) -> np.dtype:
    """The struct `wgmma::Params`."""
    return struct(
        *((name, TENSOR_MAP) for name in "wz"),
        ("phases", _PHASE, (MOST_PHASES if backward else 1,)),
        *BLEND,
        ("epilogue", EPILOGUE),
        *((name, "<i4") for name in ("filters", "pixel_tiles", "filter_tiles", "filter_box", "reads_filters_early")),
        alignment=64,
    )


@cache
def unit(dtype: DType, tile: Tile, *, backward: bool, pools: bool = False) -> Unit:
    """The kernel of a tile, for forward or for backward-data convolutions; of patches also for forward ones that are pooled."""
    params = params_dtype(backward=backward)
    name = "convolution_wgmma" + ("_backward_data" if backward else "_pooled" if pools else "")
    entry = f"{name}_{c_type(dtype)}_{tile.rows}x{tile.columns}" + ("" if tile.row_bytes == ROW_BYTES else "_narrow")
    arguments = (
        f"{c_type(dtype)}, {tile.rows}, {tile.columns}, {tile.stages}, {str(backward).lower()}, {tile.row_bytes}"
    )
    header, kernel = "wgmma", f"Kernel<{arguments}>"
    if tile.patch is not None:
        arguments = f"{c_type(dtype)}, {str(backward).lower()}, {tile.patch.images}, {str(pools).lower()}"
        header, kernel = "wgmma_patches", f"PatchKernel<{arguments}>"
    attributes = f"__launch_bounds__({tile.threads}, 1)"
    if tile.cluster:
        header, kernel = "wgmma_clusters", f"ClusterKernel<{c_type(dtype)}, {tile.cluster}, {tile.stages}>"
        entry += f"_by_{tile.cluster}"
        attributes = f"__cluster_dims__({tile.cluster}, 1, 1) __launch_bounds__({tile.threads}, 2)"
    source = (
        f'#include "dnncore/convolution/{header}.cuh"\n'
        "using namespace dnncore;\n"
        f"using Kernel = wgmma::{kernel};\n"
        f'static_assert(sizeof(Kernel::Params) == {params.itemsize}, "dnncore/cuda/convolution disagrees");\n'
        f'static_assert(sizeof(Kernel::Shared) == {tile.shared_bytes(dtype)}, "dnncore/cuda/convolution disagrees");\n'
        f'extern "C" __global__ void {attributes} {entry}(const __grid_constant__ Kernel::Params params) {{\n'
        "  Kernel::run(params);\n"
        "}\n"
    )
    return Unit(source, entry, (ARCHITECTURE,))


def least_of_wgmma(
    problem: ConvolutionProblem | FusedConvolutionProblem | ImageConvolutionProblem,
    figures: DeviceFigures,
    dtypes: Sequence[DType] = DTYPES,
) -> float:
    """Seconds that no kernel of tensor cores is below, wherever operands lie: of all products at the full rate.

    Infinitely many of a dtype, a math or a device that `why_no_wgmma` refuses; operands of 32 bits are rounded to tf32.
    """
    dtype = problem.w.dtype  # of pixels, what they become
    is_float32 = dtype is DType.FLOAT32
    if dtype not in dtypes or figures.architecture != ARCHITECTURE:
        return math.inf
    if is_float32 and problem.convolution.math is not MathType.TF32:
        return math.inf
    return problem.macs / figures.products_per_second(Maths.TF32 if is_float32 else Maths.of(dtype))


def multiplies(kind: ConvolutionKind, dtypes: Sequence[DType], *, rounds: bool = True) -> bool:
    """Whether a kernel of tensor cores may take a kind of convolution: what of `why_no_wgmma` is known of it.

    Args:
        kind: Of the convolution.
        dtypes: That there are kernels for.
        rounds: Whether these round float32 to tf32.
    """
    dtype = kind.dtypes[0]
    if dtype not in dtypes or (rounds and dtype is DType.FLOAT32 and kind.math is not MathType.TF32):
        return False
    return len(kind.taps) <= 2 and not kind.has_groups and kind.mode is ConvolutionMode.CROSS_CORRELATION


def why_no_wgmma(
    problem: ConvolutionProblem,
    architecture: str,
    any_unit: Unit,
    dtypes: Sequence[DType] = DTYPES,
    *,
    rounds: bool = True,
) -> str | None:
    """None where a kernel of tensor cores takes the kind of convolution, else why not: dtype, math, device, dimensions, groups.

    Args:
        problem: The convolution.
        architecture: Of the device.
        any_unit: A kernel.
        dtypes: That there are kernels for.
        rounds: Whether these round float32 to tf32.
    """
    conv = problem.convolution
    if problem.x.dtype not in dtypes:
        return f"x is {problem.x.dtype.value}; it takes {', '.join(dtype.value for dtype in dtypes)}"
    if rounds and problem.x.dtype is DType.FLOAT32 and conv.math is not MathType.TF32:
        return f"x is float32 and math {conv.math.value}: it would round x and w, which {MathType.TF32.value} permits"
    missing = any_unit.why_not_on(architecture)
    if missing is not None:
        return missing
    if conv.spatial_ndim != 2 or conv.groups != 1 or conv.mode is not ConvolutionMode.CROSS_CORRELATION:
        return (
            f"{conv.spatial_ndim} spatial dimensions, {conv.groups} groups, {conv.mode.value}; it takes two, one, "
            f"{ConvolutionMode.CROSS_CORRELATION.value}"
        )
    if not (problem.x.size and problem.w.size and problem.y.size):
        return "there is nothing to multiply"
    return None
