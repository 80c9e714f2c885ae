"""Forward convolution of 16-bit channels-last images by the matrix units and the copy engine of sm_90: implicit_gemm_wgmma.

The sums are in fp32 and are rounded once, whatever follows the convolution; the picture is in `convolution/wgmma.cuh`.

Padding is zeros that are multiplied, as in `implicit_gemm`, which computes where an operand does not begin at a multiple of 16
bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial

from dnncore.backend import Offer
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Calls, FieldPath, Place, WhereAligned, in_order, kernel_call
from dnncore.cuda.convolution.copy_engine import (
    filters_map,
    images_map,
    matrix_map,
    reads_matrix,
    why_no_matrix,
    why_not_read,
)
from dnncore.cuda.convolution.fused_product import epilogue_of
from dnncore.cuda.gemm import EPILOGUE, Epilogue, fields_of, fill_epilogue
from dnncore.cuda.params import BLEND, c_type, record, struct
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES, TENSOR_MAP, TensorMap
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ActivationMode, ConvolutionMode
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem

__all__ = ["WgmmaConvolution"]

_ARCHITECTURE = "sm_90a"
_DTYPES = (DType.FLOAT16, DType.BFLOAT16)
_ACTIVATIONS = (ActivationMode.RELU, ActivationMode.CLIPPED_RELU, ActivationMode.LEAKY_RELU)
_ITEM_BYTES = 2

_THREADS = 384
_SLAB, _BOX_PIXELS = 64, 96
_CONSUMERS = _BOXES = 2
_ROW_BYTES = _SLAB * _ITEM_BYTES
_MOST = 2**31 - 2**16
"""What coordinates of 32 bits hold, those of the last tile included."""

_LONGEST_SUM = 2**16
"""As of the pipelines of `gemm`, whose matrix units round alike."""

# Of the estimate, fitted to layers of ResNet-50 and VGG on an H200 (docs/worklog-convolution.md): the share of the products per
# second that the units reach at the clock that power leaves; clocks of a tile beside its products; bytes of x that a multiprocessor
# gathers in a clock; the share of the memory's rate; and what it takes, in launches, until all multiprocessors have something to
# multiply, or to store.
_OF_PRODUCTS = 0.84
_TILE_CLOCKS = 1000
_GATHERED_BYTES = 24.5
_OF_MEMORY_RATE = 0.88
_LAUNCHES, _MEMORY_LAUNCHES = 1.4, 0.5


@dataclass(frozen=True, slots=True)
class _Tile:
    """Filters and pixels of a block's tile, and stages of its ring: as many as shared memory holds. Immutable."""

    filters: int
    pixels: int
    stages: int

    @property
    def shared_bytes(self) -> int:
        """Stages, the consumers' boxes, two barriers for each stage and one for each box."""
        boxes = _CONSUMERS * _BOXES
        rows = self.stages * (self.pixels + self.filters) + boxes * _BOX_PIXELS
        return rows * _ROW_BYTES + (2 * self.stages + boxes) * 8


_TILES = (_Tile(128, 192, 4), _Tile(128, 96, 6), _Tile(64, 192, 5))

_PARAMS = struct(
    *((name, TENSOR_MAP) for name in "xwzy"),
    *BLEND,
    ("epilogue", EPILOGUE),
    ("filters", "<i4"),
    ("slabs", "<i4"),
    *((name, "<i4", 2) for name in ("taps", "output", "stride", "padding", "dilation")),
    ("pixel_tiles", "<i4"),
    ("filter_tiles", "<i4"),
    ("gathers", "<i4"),
    alignment=64,
)


@cache
def _unit(dtype: DType, tile: _Tile) -> Unit:
    entry = f"convolution_wgmma_{c_type(dtype)}_{tile.filters}x{tile.pixels}"
    source = (
        '#include "dnncore/convolution/wgmma.cuh"\n'
        "using namespace dnncore;\n"
        f"using Kernel = wgmma::Kernel<{c_type(dtype)}, {tile.filters}, {tile.pixels}, {tile.stages}>;\n"
        f'static_assert(sizeof(wgmma::Params) == {_PARAMS.itemsize}, "dnncore/cuda/convolution/wgmma.py disagrees");\n'
        f'static_assert(sizeof(Kernel::Shared) == {tile.shared_bytes}, "dnncore/cuda/convolution/wgmma.py disagrees");\n'
        f'extern "C" __global__ void __launch_bounds__({_THREADS}, 1) '
        f"{entry}(const __grid_constant__ wgmma::Params params) {{\n"
        "  Kernel::run(params);\n"
        "}\n"
    )
    return Unit(source, entry, (_ARCHITECTURE,))


@dataclass(frozen=True)
class WgmmaConvolution:
    """A forward convolution, with its epilogue or without, no workspace. Immutable.

    Args:
        name: See `backend.Algorithm`.
        elsewhere: What computes where an operand does not begin at a multiple of 16 bytes.
    """

    name: str
    elsewhere: CudaAlgorithm

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype and tile."""
        return tuple(_unit(dtype, tile) for dtype in _DTYPES for tile in _TILES)

    def offer(self, problem: ConvolutionProblem | FusedConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """What the fastest tile takes, of equal ones the one with least to do; or the reason why none suits the problem."""
        plain = problem if isinstance(problem, ConvolutionProblem) else problem.plain
        reason = _why_not(plain, figures) or _why_not_finished(problem)
        if reason is not None:
            return reason
        elsewhere = self.elsewhere.offer(problem, figures)
        if isinstance(elsewhere, str):
            return elsewhere
        estimates = {tile: _estimate(problem, plain, tile, figures) for tile in _TILES}
        tile = min(estimates, key=lambda tile: (estimates[tile].seconds, estimates[tile].busy))
        return Offer(
            estimates[tile].seconds,
            partial(_calls, problem, plain, tile, figures, elsewhere),
            elsewhere.workspace_bytes,
        )


def _why_not(problem: ConvolutionProblem, figures: DeviceFigures) -> str | None:
    """None where the kernel takes the convolution, else the reason."""
    x, w, conv = problem.x, problem.w, problem.convolution
    if problem.direction is not Direction.FORWARD:
        return f"it has no {problem.direction.value}"
    if x.dtype not in _DTYPES:
        return f"x is {x.dtype.value}; it takes {' and '.join(dtype.value for dtype in _DTYPES)}"
    missing = _unit(x.dtype, _TILES[0]).why_not_on(figures.architecture)
    if missing is not None:
        return missing
    if conv.spatial_ndim != 2 or conv.groups != 1 or conv.mode is not ConvolutionMode.CROSS_CORRELATION:
        return (
            f"{conv.spatial_ndim} spatial dimensions, {conv.groups} groups, {conv.mode.value}; it takes two, one, "
            f"{ConvolutionMode.CROSS_CORRELATION.value}"
        )
    if not (x.size and w.size and problem.y.size):
        return "there is nothing to multiply"
    if math.prod(w.shape[1:]) > _LONGEST_SUM:
        return f"sums of {math.prod(w.shape[1:])} products; at most {_LONGEST_SUM}"
    counts = (
        problem.y.size // problem.y.shape[1],
        x.size // x.shape[1],
        w.shape[0],
        math.prod(_tiles(problem, _TILES[-1])),
    )
    if max(counts) > _MOST:
        return f"{counts} pixels of y and x, filters and tiles; at most {_MOST}"
    return why_not_read(problem)


def _why_not_finished(problem: ConvolutionProblem | FusedConvolutionProblem) -> str | None:
    """None where the kernel knows what follows the convolution, else the reason."""
    if isinstance(problem, ConvolutionProblem):
        return None
    activation = problem.activation
    if activation is not None and activation.mode not in _ACTIVATIONS:
        return f"its stores know {', '.join(mode.value for mode in _ACTIVATIONS)}, not {activation.mode.value}"
    return None if problem.z is None else why_no_matrix("z", problem.z)


def _tiles(problem: ConvolutionProblem, tile: _Tile) -> tuple[int, int]:
    """How many tiles there are, along the pixels and along the filters."""
    n, k, *places = problem.y.shape
    return -(-n * math.prod(places) // tile.pixels), -(-k // tile.filters)


@dataclass(frozen=True, slots=True)
class _Estimate:
    """Seconds of a launch, and those that its multiprocessors are busy. Immutable."""

    seconds: float
    busy: float


def _estimate(
    problem: ConvolutionProblem | FusedConvolutionProblem,
    plain: ConvolutionProblem,
    tile: _Tile,
    figures: DeviceFigures,
) -> _Estimate:
    """Time of the turns that the blocks take, of gathering x, or of the operands on their way through memory.

    Tiles of other filters of the same pixels read x at the same time, and the second-level cache reads it once for all of them.
    """
    pixel_tiles, filter_tiles = _tiles(plain, tile)
    start = figures.launch_seconds * min(pixel_tiles * filter_tiles / figures.multiprocessors, 1.0)
    turns = -(-pixel_tiles * filter_tiles // figures.multiprocessors)
    length = math.prod(plain.w.shape[2:]) * -(-plain.w.shape[1] // _SLAB) * _SLAB
    rate = figures.products_per_second(Maths.of(plain.x.dtype)) / figures.multiprocessors * _OF_PRODUCTS
    busy = turns * (tile.pixels * tile.filters * length / rate + _TILE_CLOCKS / figures.clock_hz)
    gathered = pixel_tiles * tile.pixels * length * _ITEM_BYTES
    gathering = gathered / (_GATHERED_BYTES * figures.multiprocessors * figures.clock_hz)
    unread = max(plain.x.nbytes - gathered, 0)  # between the pixels that strides reach
    memory = (operand_bytes(problem) - unread) / (figures.bytes_per_second * _OF_MEMORY_RATE)
    return _Estimate(max(busy + _LAUNCHES * start, max(gathering, memory) + _MEMORY_LAUNCHES * start), busy)


def _calls(
    problem: ConvolutionProblem | FusedConvolutionProblem,
    plain: ConvolutionProblem,
    tile: _Tile,
    figures: DeviceFigures,
    elsewhere: Offer,
) -> Calls:
    w, y, conv = plain.w, plain.y, plain.convolution
    pixel_tiles, filter_tiles = _tiles(plain, tile)
    params = record(
        _PARAMS,
        filters=w.shape[0],
        slabs=-(-w.shape[1] // _SLAB),
        taps=w.shape[2:],
        output=y.shape[2:],
        stride=conv.stride,
        padding=[before for before, _ in conv.padding],
        dilation=[step if taps > 1 else 1 for step, taps in zip(conv.dilation, w.shape[2:], strict=True)],
        pixel_tiles=pixel_tiles,
        filter_tiles=filter_tiles,
        gathers=not reads_matrix(plain),
    )
    names = problem.input_names
    maps: dict[FieldPath, tuple[Place, TensorMap]] = {
        "x": (Place(0), images_map(plain, _SLAB, tile.pixels)),
        "w": (Place(1), filters_map(w, _SLAB, tile.filters)),
        "y": (Place(len(names)), matrix_map(y, _SLAB, _BOX_PIXELS)),
    }
    if isinstance(problem, ConvolutionProblem):
        fill_epilogue(params["epilogue"], Epilogue(alpha1=1.0, alpha2=0.0, activation=None))
    else:
        fill_epilogue(params["epilogue"], epilogue_of(problem))
        if problem.z is not None:
            maps["z"] = Place(names.index("z")), matrix_map(problem.z, _SLAB, _BOX_PIXELS)
    blocks = min(pixel_tiles * filter_tiles, figures.multiprocessors)
    # The engine has maps of x and w; the epilogue's operands have pointers, which say that they are there.
    places = in_order(None, None, *fields_of(names[2:]))
    calls = kernel_call(
        _unit(w.dtype, tile), blocks, _THREADS, params, places, shared_bytes=tile.shared_bytes, maps=maps
    )
    aligned = tuple((place, ALIGNMENT_BYTES) for place, _ in maps.values())
    return (WhereAligned(aligned, calls, elsewhere.prepare()),)
