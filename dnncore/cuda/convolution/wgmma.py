"""Forward convolution of 16-bit channels-last images by the matrix units and the copy engine of sm_90: implicit_gemm_wgmma.

The sums are in fp32 and are rounded once, whatever follows the convolution; the picture is in `convolution/wgmma.cuh`. Filters of one
tap over pixels without padding or stride are a plain product of matrices, which the copy engine reads as such; else it gathers x.

Padding is zeros that are multiplied, as in `implicit_gemm`. Where an operand does not begin at a multiple of 16 bytes, that algorithm
computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

from dnncore.backend import Offer
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Calls, FieldPath, Place, WhereAligned, in_order, kernel_call
from dnncore.cuda.convolution.fused_product import epilogue_of
from dnncore.cuda.gemm import EPILOGUE, Epilogue, fields_of, fill_epilogue
from dnncore.cuda.params import BLEND, c_type, record, struct
from dnncore.cuda.tensor_map import (
    ALIGNMENT_BYTES,
    LARGEST_STEP,
    TENSOR_MAP,
    BoxMap,
    PixelMap,
    TensorMap,
    corner_fits,
)
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ActivationMode, ConvolutionMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem

__all__ = ["WgmmaConvolution"]

_ARCHITECTURE = "sm_90a"
_DTYPES = (DType.FLOAT16, DType.BFLOAT16)
_ACTIVATIONS = (ActivationMode.RELU, ActivationMode.CLIPPED_RELU, ActivationMode.LEAKY_RELU)
_ITEM_BYTES = 2
_ALIGNED_ITEMS = ALIGNMENT_BYTES // _ITEM_BYTES

_THREADS = 384
_SLAB, _BOX_PIXELS = 64, 96
_CONSUMERS = _BOXES = 2
_ROW_BYTES = _SLAB * _ITEM_BYTES
_MOST_PIXELS = 2**31 - 2**16
"""What coordinates of 32 bits hold, those of the last tile included."""

_MOST_OFFSET = 255
"""Pixels from a filter's first tap to its last, along W and along H, that a copy can add."""

_LONGEST_SUM = 2**16
"""As of the pipelines of `gemm`, whose matrix units round alike."""

# Of the estimate, fitted to ResNet-50's layers at batch 64 on an H200: the share of the products per second that the units reach at
# the clock that power leaves, clocks of a tile beside its products, the share of the memory's rate, and what a launch takes before
# the first stage has arrived.
_OF_PRODUCTS = 0.84
_TILE_CLOCKS = 1000
_OF_MEMORY_RATE = 0.88
_LAUNCHES = 1.4


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
        """What the tile of fewest turns takes; or the reason why the kernel does not suit the problem."""
        plain = problem if isinstance(problem, ConvolutionProblem) else problem.plain
        reason = _why_not(plain, figures) or _why_not_finished(problem)
        if reason is not None:
            return reason
        elsewhere = self.elsewhere.offer(problem, figures)
        if isinstance(elsewhere, str):
            return elsewhere
        seconds, tile = min(
            ((_seconds(problem, plain, tile, figures), tile) for tile in _TILES), key=lambda each: each[0]
        )
        return Offer(seconds, partial(_calls, problem, plain, tile, figures, elsewhere), elsewhere.workspace_bytes)


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
    pixels = problem.y.size // problem.y.shape[1]
    if max(pixels, x.size // x.shape[1]) > _MOST_PIXELS:
        return f"{pixels} pixels; at most {_MOST_PIXELS}"
    return _why_not_laid_out(problem) or _why_not_gathered(problem)


def _why_not_laid_out(problem: ConvolutionProblem) -> str | None:
    for name, tensor in (("x", problem.x), ("w", problem.w)):
        if _strides(tensor) is None:
            return f"{name} ({tensor}) needs neighbouring channels, and strides that are multiples of {_ALIGNED_ITEMS} else"
    return None if _pitch(problem.y) else _why_no_pitch("y", problem.y)


def _why_no_pitch(name: str, tensor: TensorDescriptor) -> str:
    return f"{name} ({tensor}) needs neighbouring channels, and pixels a multiple of {_ALIGNED_ITEMS} elements apart"


def _why_not_gathered(problem: ConvolutionProblem) -> str | None:
    """None where the copy engine can follow the filter, else the reason."""
    conv = problem.convolution
    if _reads_matrix(problem):
        return None
    if max(conv.stride) > LARGEST_STEP:
        return f"strides {conv.stride}; at most {LARGEST_STEP}"
    reach = [(taps - 1) * step for taps, step in zip(problem.w.shape[2:], conv.dilation, strict=True)]
    if max(reach) > _MOST_OFFSET:
        return f"taps as far as {max(reach)} pixels apart; at most {_MOST_OFFSET}"
    corners = (*_lower(problem), *_upper(problem))
    return None if all(map(corner_fits, corners)) else f"the filter reaches {corners} pixels from the corners of x; at most 128"


def _why_not_finished(problem: ConvolutionProblem | FusedConvolutionProblem) -> str | None:
    """None where the kernel knows what follows the convolution, else the reason."""
    if isinstance(problem, ConvolutionProblem):
        return None
    activation = problem.activation
    if activation is not None and activation.mode not in _ACTIVATIONS:
        return f"its stores know {', '.join(mode.value for mode in _ACTIVATIONS)}, not {activation.mode.value}"
    return _why_no_pitch("z", problem.z) if problem.z is not None and not _pitch(problem.z) else None


def _strides(tensor: TensorDescriptor) -> tuple[int, int, int] | None:
    """Elements from one to the next along W, H and N (of filters S, R and K); None where the copy engine cannot read them.

    Along an extent of 1 no step is ever taken, and the one behind a dense tensor's last element is as good as any.
    """
    n, c, h, w = tensor.shape
    of_n, of_c, of_h, of_w = tensor.strides
    if c > 1 and of_c != 1:
        return None
    found = [of_w if w > 1 else _up(c)]
    found.append(of_h if h > 1 else found[-1] * w)
    found.append(of_n if n > 1 else found[-1] * h)
    return (found[0], found[1], found[2]) if all(_is_step(step) for step in found) else None


def _pitch(tensor: TensorDescriptor) -> int | None:
    """Elements from each pixel to the next, through rows and images; None where they are not the same or not aligned."""
    strides = _strides(tensor)
    if strides is None:
        return None
    n, _, h, w = tensor.shape
    pitch = next((step for step, extent in zip(strides, (w, h, n), strict=True) if extent > 1), strides[0])
    even = all(
        extent == 1 or step == pitch * pixels
        for step, extent, pixels in zip(strides, (w, h, n), (1, w, w * h), strict=True)
    )
    return pitch if even else None


def _is_step(elements: int) -> bool:
    return elements > 0 and elements % _ALIGNED_ITEMS == 0


def _up(elements: int) -> int:
    return -(-elements // _ALIGNED_ITEMS) * _ALIGNED_ITEMS


def _reads_matrix(problem: ConvolutionProblem) -> bool:
    """Whether the pixels of x are those of y, evenly spaced."""
    conv = problem.convolution
    one = problem.w.shape[2:] == (1, 1) and conv.stride == (1, 1) and not any(map(any, conv.padding))
    return one and _pitch(problem.x) is not None


def _lower(problem: ConvolutionProblem) -> tuple[int, int]:
    """The first pixel of a row, and the first row, that the first tap meets."""
    rows, columns = problem.convolution.padding
    return -columns[0], -rows[0]


def _upper(problem: ConvolutionProblem) -> tuple[int, int]:
    """The last ones, from the last of the image."""
    corners = [
        (outputs - 1) * stride - before - (extent - 1)
        for outputs, stride, (before, _), extent in zip(
            problem.y.shape[2:], problem.convolution.stride, problem.convolution.padding, problem.x.shape[2:], strict=True
        )
    ]
    return corners[1], corners[0]


def _tiles(problem: ConvolutionProblem, tile: _Tile) -> tuple[int, int]:
    """How many tiles there are, along the pixels and along the filters."""
    n, k, *places = problem.y.shape
    return -(-n * math.prod(places) // tile.pixels), -(-k // tile.filters)


def _seconds(
    problem: ConvolutionProblem | FusedConvolutionProblem,
    plain: ConvolutionProblem,
    tile: _Tile,
    figures: DeviceFigures,
) -> float:
    """Time of the turns that the blocks take, or of the operands on their way through memory."""
    turns = -(-math.prod(_tiles(plain, tile)) // figures.multiprocessors)
    products = tile.pixels * tile.filters * math.prod(plain.w.shape[2:]) * -(-plain.w.shape[1] // _SLAB) * _SLAB
    rate = figures.products_per_second(Maths.of(plain.x.dtype)) / figures.multiprocessors * _OF_PRODUCTS
    busy = turns * (products / rate + _TILE_CLOCKS / figures.clock_hz)
    memory = operand_bytes(problem) / (figures.bytes_per_second * _OF_MEMORY_RATE)
    return _LAUNCHES * figures.launch_seconds + max(busy, memory)


def _bytes(strides: Sequence[int]) -> tuple[int, ...]:
    return tuple(step * _ITEM_BYTES for step in strides)


def _of_pixels(tensor: TensorDescriptor, pixels: int) -> BoxMap:
    """Images as a matrix, of which so many pixels are copied."""
    pitch = _pitch(tensor)
    assert pitch is not None, f"{tensor}"
    n, c, h, w = tensor.shape
    return BoxMap(tensor.dtype, (c, n * h * w), _bytes((pitch,)), (_SLAB, pixels))


def _of_images(problem: ConvolutionProblem, tile: _Tile) -> TensorMap:
    x, (rows, columns) = problem.x, problem.convolution.stride
    if _reads_matrix(problem):
        return _of_pixels(x, tile.pixels)
    n, c, h, w = x.shape
    of_w, of_h, of_n = _bytes(_strides(x) or ())
    return PixelMap(
        x.dtype, (c, w, h, n), (of_w, of_h, of_n), _lower(problem), _upper(problem), (columns, rows), _SLAB, tile.pixels
    )


def _of_filters(w: TensorDescriptor, tile: _Tile) -> BoxMap:
    k, c, r, s = w.shape
    return BoxMap(w.dtype, (c, s, r, k), _bytes(_strides(w) or ()), (_SLAB, 1, 1, tile.filters))


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
        dilation=conv.dilation,
        pixel_tiles=pixel_tiles,
        filter_tiles=filter_tiles,
        gathers=not _reads_matrix(plain),
    )
    names = problem.input_names
    maps: dict[FieldPath, tuple[Place, TensorMap]] = {
        "x": (Place(0), _of_images(plain, tile)),
        "w": (Place(1), _of_filters(w, tile)),
        "y": (Place(len(names)), _of_pixels(y, _BOX_PIXELS)),
    }
    if isinstance(problem, ConvolutionProblem):
        fill_epilogue(params["epilogue"], Epilogue(alpha1=1.0, alpha2=0.0, activation=None))
    else:
        fill_epilogue(params["epilogue"], epilogue_of(problem))
        if problem.z is not None:
            maps["z"] = Place(names.index("z")), _of_pixels(problem.z, _BOX_PIXELS)
    blocks = min(pixel_tiles * filter_tiles, figures.multiprocessors)
    # The engine has maps of x and w; the epilogue's operands have pointers, which say that they are there.
    places = in_order(None, None, *fields_of(names[2:]))
    calls = kernel_call(
        _unit(w.dtype, tile), blocks, _THREADS, params, places, shared_bytes=tile.shared_bytes, maps=maps
    )
    aligned = tuple((place, ALIGNMENT_BYTES) for place, _ in maps.values())
    return (WhereAligned(aligned, calls, elsewhere.prepare()),)

