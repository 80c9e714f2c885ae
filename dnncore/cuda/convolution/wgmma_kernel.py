"""The kernels of `convolution/wgmma.cuh` and `wgmma_patches.cuh`: tiles, units, parameters, how long they take, calls. Pure.

A launch computes phases: dense convolutions that read the same images and filters. A forward convolution is one. Patches are for
one phase by filters of 3 x 3 over few channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from dnncore.cuda.calls import Calls, FieldPath, Place, kernel_call
from dnncore.cuda.convolution.copy_engine import (
    Window,
    filters_map,
    images_map,
    is_matrix,
    output_map,
    patches_map,
    reads_matrix,
)
from dnncore.cuda.gemm import EPILOGUE
from dnncore.cuda.params import BLEND, c_type, record, struct
from dnncore.cuda.tensor_map import TENSOR_MAP, TensorMap
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ConvolutionMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionProblem

__all__ = [
    "ARCHITECTURE",
    "DTYPES",
    "LONGEST_SUM",
    "MOST",
    "MOST_PHASES",
    "ROW_BYTES",
    "SLAB",
    "TILES",
    "WARPGROUP",
    "Estimate",
    "Phase",
    "Tile",
    "boxes_map",
    "call",
    "estimate",
    "make_params",
    "tiles_for",
    "unit",
    "why_no_wgmma",
]

ARCHITECTURE = "sm_90a"
DTYPES = (DType.FLOAT16, DType.BFLOAT16)
ITEM_BYTES = 2

WARPGROUP = 128
SLAB, BOX_PIXELS = 64, 96
_CONSUMERS = _BOXES = 2
_THREADS = (_CONSUMERS + 1) * WARPGROUP
ROW_BYTES = SLAB * ITEM_BYTES
MOST = 2**31 - 2**16
"""What coordinates of 32 bits hold, those of the last tile included."""

MOST_PHASES = 4
_NO_PHASE = 2**31 - 1

LONGEST_SUM = 2**16
"""As of the pipelines of `gemm`, whose matrix units round alike."""

# Of the estimate, fitted to layers of ResNet-50 and VGG on an H200 (docs/worklog-convolution.md): the share of the products per
# second that the units reach at the clock that power leaves; clocks of a tile beside its products; bytes of x that a multiprocessor
# gathers in a clock; the share of the memory's rate; and what it takes, in launches, until all multiprocessors have something to
# multiply, or to store. Phases of strides write every second pixel: the clocks and the share of those.
_OF_PRODUCTS = 0.84
_TILE_CLOCKS, _SCATTERED_TILE_CLOCKS = 1000, 2500
_GATHERED_BYTES = 24.5
_OF_MEMORY_RATE, _OF_SCATTERED_MEMORY_RATE = 0.88, 0.72
_LAUNCHES, _MEMORY_LAUNCHES = 1.4, 0.5


PATCH_TAPS = (3, 3)
_RECTANGLE = (14, 8)
_PATCH = (2 * _RECTANGLE[0], _RECTANGLE[1])
_READ_PATCH = (_PATCH[0] + PATCH_TAPS[0] - 1, _PATCH[1] + PATCH_TAPS[1] - 1)
"""Rows and columns of a box, of the outputs of a patch, and of what their taps meet."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows (filters; of dx: channels) and columns (pixels) of a block's tile, and stages of its ring: as many as fit. Immutable.

    Args:
        rows: Of filters.
        columns: Of pixels.
        stages: Of the ring.
        in_patches: Whether a stage is a patch of pixels that all taps read.
    """

    rows: int
    columns: int
    stages: int
    in_patches: bool = False

    @property
    def shared_bytes(self) -> int:
        """Stages, the consumers' boxes, two barriers for each stage and one for each box; of patches, one for the filters."""
        boxes = _CONSUMERS * _BOXES
        if self.in_patches:
            patch = -(-math.prod(_READ_PATCH) // 8) * 8
            rows = self.stages * patch + math.prod(PATCH_TAPS) * self.rows + boxes * math.prod(_RECTANGLE)
            return rows * ROW_BYTES + (2 * self.stages + 1 + boxes) * 8
        rows = self.stages * (self.columns + self.rows) + boxes * BOX_PIXELS
        return rows * ROW_BYTES + (2 * self.stages + boxes) * 8


TILES = (Tile(128, 192, 4), Tile(128, 96, 6), Tile(64, 192, 5), Tile(64, 224, 2, in_patches=True))

_PHASE = struct(
    *((name, TENSOR_MAP) for name in "xy"),
    *(
        (name, "<i4", 2)
        for name in ("slabs", "taps", "first_tap", "next_tap", "output", "stride", "padding", "dilation")
    ),
    *((name, "<i4") for name in ("pixel_tiles", "gathers", "scatters")),
    alignment=64,
)


@cache
def _params_dtype(*, backward: bool) -> np.dtype:
    return struct(
        *((name, TENSOR_MAP) for name in "wz"),
        ("phases", _PHASE, (MOST_PHASES if backward else 1,)),
        *BLEND,
        ("epilogue", EPILOGUE),
        *((name, "<i4") for name in ("filters", "pixel_tiles", "filter_tiles")),
        alignment=64,
    )


@cache
def unit(dtype: DType, tile: Tile, *, backward: bool) -> Unit:
    """The kernel of a tile, for forward or for backward-data convolutions."""
    params = _params_dtype(backward=backward)
    name = "convolution_wgmma_backward_data" if backward else "convolution_wgmma"
    entry = f"{name}_{c_type(dtype)}_{tile.rows}x{tile.columns}"
    arguments = f"{c_type(dtype)}, {tile.rows}, {tile.columns}, {tile.stages}, {str(backward).lower()}"
    header, kernel = "wgmma", f"Kernel<{arguments}>"
    if tile.in_patches:
        header, kernel = "wgmma_patches", f"PatchKernel<{c_type(dtype)}, {str(backward).lower()}>"
    source = (
        f'#include "dnncore/convolution/{header}.cuh"\n'
        "using namespace dnncore;\n"
        f"using Kernel = wgmma::{kernel};\n"
        f'static_assert(sizeof(Kernel::Params) == {params.itemsize}, "dnncore/cuda/convolution disagrees");\n'
        f'static_assert(sizeof(Kernel::Shared) == {tile.shared_bytes}, "dnncore/cuda/convolution disagrees");\n'
        f'extern "C" __global__ void __launch_bounds__({_THREADS}, 1) '
        f"{entry}(const __grid_constant__ Kernel::Params params) {{\n"
        "  Kernel::run(params);\n"
        "}\n"
    )
    return Unit(source, entry, (ARCHITECTURE,))


@dataclass(frozen=True, slots=True)
class Phase:
    """A dense convolution. Immutable. Pairs are rows and columns.

    Args:
        window: What its first tap meets of the images that are read.
        y: The images that are written.
        y_offset_bytes: Of their first pixel, from the beginning of the operand.
        taps: How many there are.
        dilation: Pixels from one tap to the next.
        slabs: Slabs of channels that are added up: the first, and the one behind the last.
        first_tap: Of w.
        next_tap: Steps in w from one tap to the next.
    """

    window: Window
    y: TensorDescriptor
    y_offset_bytes: int
    taps: tuple[int, int]
    dilation: tuple[int, int]
    slabs: tuple[int, int]
    first_tap: tuple[int, int] = (0, 0)
    next_tap: tuple[int, int] = (1, 1)

    @property
    def summands(self) -> int:
        """Of each output, those of incomplete slabs included."""
        return math.prod(self.taps) * (self.slabs[1] - self.slabs[0]) * SLAB

    def patches(self) -> tuple[int, int]:
        """How many there are, down and across an image."""
        p, q = self.window.outputs
        return -(-p // _PATCH[0]), -(-q // _PATCH[1])

    def tiles(self, tile: Tile) -> int:
        """How many there are along the pixels."""
        n, _, *places = self.y.shape
        return n * math.prod(self.patches()) if tile.in_patches else -(-n * math.prod(places) // tile.columns)

    def gathered_bytes(self, tile: Tile) -> int:
        """What is loaded of the images that are read."""
        pixels = math.prod(_READ_PATCH) if tile.in_patches else tile.columns * math.prod(self.taps)
        return self.tiles(tile) * pixels * (self.slabs[1] - self.slabs[0]) * ROW_BYTES


def tiles_for(phases: Sequence[Phase], multiprocessors: int, filters: int) -> tuple[Tile, ...]:
    """Those that suit the phases of a launch with so many filters: patches suit one by dense filters over few channels."""
    first = phases[0]
    window = first.window
    suits = (
        len(phases) == 1
        and first.taps == PATCH_TAPS
        and first.dilation == window.steps == (1, 1)
        and first.slabs == (0, 1)
    )
    return tuple(
        tile for tile in TILES if not tile.in_patches or (suits and -(-filters // tile.rows) <= multiprocessors)
    )


def why_no_wgmma(problem: ConvolutionProblem, architecture: str, any_unit: Unit) -> str | None:
    """None where a kernel of wgmma takes the kind of convolution, else the reason: dtype, architecture, dimensions, groups."""
    conv = problem.convolution
    if problem.x.dtype not in DTYPES:
        return f"x is {problem.x.dtype.value}; it takes {' and '.join(dtype.value for dtype in DTYPES)}"
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


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a launch, and those that its multiprocessors are busy. Immutable."""

    seconds: float
    busy: float


def estimate(
    phases: Sequence[Phase], filter_tiles: int, tile: Tile, dtype: DType, nbytes: int, figures: DeviceFigures
) -> Estimate:
    """Time of the turns that the blocks take, of gathering x, or of the operands on their way through memory.

    Tiles of other filters of the same pixels read x at the same time, and the second-level cache reads it once for all of them.

    Args:
        phases: In the order in which blocks take their tiles.
        filter_tiles: Tiles along the filters.
        tile: Which.
        dtype: Of the operands.
        nbytes: That are read and written.
        figures: Of the device.
    """
    rate = figures.products_per_second(Maths.of(dtype)) / figures.multiprocessors * _OF_PRODUCTS
    scatters = any(not is_matrix(phase.y) for phase in phases)
    tile_clocks = _SCATTERED_TILE_CLOCKS if scatters else _TILE_CLOCKS
    busy = turns = gathered = turn = 0.0
    for phase in phases:
        turn = tile.columns * tile.rows * phase.summands / rate + tile_clocks / figures.clock_hz
        shares = phase.tiles(tile) * filter_tiles / figures.multiprocessors
        turns += shares
        busy += shares * turn
        gathered += phase.gathered_bytes(tile)
    busy += (math.ceil(turns) - turns) * turn
    start = figures.launch_seconds * min(turns, 1.0)
    gathering = gathered / (_GATHERED_BYTES * figures.multiprocessors * figures.clock_hz)
    memory = nbytes / (figures.bytes_per_second * (_OF_SCATTERED_MEMORY_RATE if scatters else _OF_MEMORY_RATE))
    return Estimate(max(busy + _LAUNCHES * start, max(gathering, memory) + _MEMORY_LAUNCHES * start), busy)


def boxes_map(images: TensorDescriptor, tile: Tile) -> TensorMap:
    """Images that are written, or added before, as a tile's consumers do."""
    return patches_map(images, SLAB, *_RECTANGLE) if tile.in_patches else output_map(images, SLAB, BOX_PIXELS)


def make_params(
    images: TensorDescriptor, phases: Sequence[Phase], filters: int, tile: Tile, *, backward: bool
) -> np.ndarray:
    """The parameter struct, all but addresses and what follows a convolution.

    Args:
        images: That are read.
        phases: In the order in which blocks take their tiles.
        filters: Rows of the product.
        tile: Which.
        backward: Whether it is backward-data.
    """
    params = record(_params_dtype(backward=backward), filters=filters, filter_tiles=-(-filters // tile.rows))
    params["phases"]["pixel_tiles"] = _NO_PHASE
    pixel_tiles = 0
    for field, phase in zip(params["phases"], phases, strict=False):
        field["pixel_tiles"] = pixel_tiles
        for name in ("slabs", "taps", "first_tap", "next_tap", "dilation"):
            field[name] = getattr(phase, name)
        field["output"] = phase.patches() if tile.in_patches else phase.window.outputs
        field["stride"] = phase.window.steps
        field["padding"] = [-first for first in phase.window.first]
        field["gathers"] = not reads_matrix(images, phase.window)
        field["scatters"] = not (tile.in_patches or is_matrix(phase.y))
        pixel_tiles += phase.tiles(tile)
    params["pixel_tiles"] = pixel_tiles
    return params


def call(
    params: np.ndarray,
    tile: Tile,
    phases: Sequence[Phase],
    operands: tuple[Place, Place, Place],
    tensors: tuple[TensorDescriptor, TensorDescriptor],
    others: Mapping[FieldPath, Place],
    other_maps: Mapping[FieldPath, tuple[Place, TensorMap]],
    figures: DeviceFigures,
    *,
    backward: bool,
) -> Calls:
    """The launch.

    Args:
        params: Filled in.
        tile: Which.
        phases: In the order in which blocks take their tiles.
        operands: Where images that are read, w, and images that are written begin.
        tensors: The first two of them.
        others: Fields that take other addresses.
        other_maps: And other maps.
        figures: Of the device.
        backward: Whether it is backward-data.
    """
    (of_x, of_w, of_y), (images, w) = operands, tensors
    maps: dict[FieldPath, tuple[Place, TensorMap]] = {
        "w": (of_w, filters_map(w, SLAB, SLAB if backward else tile.rows)),
        **other_maps,
    }
    for i, phase in enumerate(phases):
        read = (
            patches_map(images, SLAB, *_READ_PATCH)
            if tile.in_patches
            else images_map(images, phase.window, SLAB, tile.columns)
        )
        maps["phases", i, "x"] = of_x, read
        maps["phases", i, "y"] = of_y.plus(phase.y_offset_bytes), boxes_map(phase.y, tile)
    filter_tiles = int(params["filter_tiles"])
    blocks = min(int(params["pixel_tiles"]) * filter_tiles, figures.multiprocessors)
    if tile.in_patches:
        blocks -= blocks % filter_tiles
    return kernel_call(
        unit(w.dtype, tile, backward=backward),
        blocks,
        _THREADS,
        params,
        others,
        shared_bytes=tile.shared_bytes,
        maps=maps,
    )
