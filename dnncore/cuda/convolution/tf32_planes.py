"""Convolution of float32 planes (NCHW) by filters of one tap, forward and backward-data: implicit_gemm_3xtf32.

It is as precise as float32: tensor cores of sm_90 compute three of the four products of factors that are split into two of tf32
each (docs/numerics.md has the limits). The filters' parts are in the workspace. The picture is in `convolution/tf32_planes.cuh`.

`implicit_gemm` computes where an operand does not begin at a multiple of 16 bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial

from dnncore.backend import Offer
from dnncore.bounds import Bounded, Selective
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, FieldPath, Place, blocks_for, in_order, kernel_call
from dnncore.cuda.convolution.elsewhere import Otherwise, computing_elsewhere, where_aligned
from dnncore.cuda.convolution.fused_product import epilogue_of, why_unlike
from dnncore.cuda.convolution.planes import has_one_tap, plane_strides, planes_map, why_not_in_planes, why_not_one_tap
from dnncore.cuda.convolution.wgmma_output import why_not_finished
from dnncore.cuda.convolution.wgmma_tile import ARCHITECTURE, MOST, THREADS, multiplies, why_no_wgmma
from dnncore.cuda.gemm import EPILOGUE, Epilogue, fields_of, fill_epilogue
from dnncore.cuda.params import ADDRESS, BLEND, generate, record, struct
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES, TENSOR_MAP, BoxMap
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction, FusedConvolutionProblem

__all__ = ["Tf32Planes"]

_FILTERS, _PIXELS, _SLAB = 64, 128, 32
_CONSUMERS, _STAGES, _PRODUCTS = 2, 4, 3
_FEWEST_SUMMANDS = 16
"""As of backward-filter: of sums of fewer what is left out counts."""

_STAGE_BYTES = (_CONSUMERS * _PIXELS + 2 * _FILTERS) * _SLAB * 4
_SHARED_BYTES = _STAGES * (_STAGE_BYTES + 2 * 8)
_SPLIT_THREADS = 256

# As 1x1 layers of ResNet-50 took on an H200: the share of the rate of products, and clocks of a tile beside these. The share of the
# memory's rate, and that it takes a launch beside the split, which starts early and takes one at least, are assumed.
_OF_PRODUCTS, _OF_MEMORY_RATE = 0.66, 0.75
_TILE_CLOCKS = 4000

_PARAMS = struct(
    *((name, TENSOR_MAP) for name in "xw"),
    *BLEND,
    ("epilogue", EPILOGUE),
    ("y", ADDRESS),
    ("strides", "<i8", 2),
    *((name, "<i4") for name in ("pixels", "filters", "steps", "image_tiles", "pixel_tiles", "filter_tiles")),
    alignment=64,
)
_SPLIT_PARAMS = struct(
    ("w", ADDRESS),
    ("parts", ADDRESS),
    ("strides", "<i8", 2),
    *((name, "<i4") for name in ("filters", "channels", "pitch")),
)

Problem = ConvolutionProblem | FusedConvolutionProblem


@cache
def _unit() -> Unit:
    source = (
        '#include "dnncore/convolution/tf32_planes.cuh"\n'
        "using namespace dnncore;\n"
        f'static_assert(sizeof(tf32_planes::Params) == {_PARAMS.itemsize}, "dnncore/cuda/convolution disagrees");\n'
        f'static_assert(sizeof(tf32_planes::Shared) == {_SHARED_BYTES}, "dnncore/cuda/convolution disagrees");\n'
        f'extern "C" __global__ void __launch_bounds__({THREADS}, 1) '
        "convolution_3xtf32_planes(const __grid_constant__ tf32_planes::Params params) {\n"
        "  tf32_planes::run(params);\n"
        "}\n"
    )
    return Unit(source, "convolution_3xtf32_planes", (ARCHITECTURE,))


@cache
def _split_unit() -> Unit:
    return generate(
        header="dnncore/convolution/tf32_planes.cuh",
        entry="convolution_3xtf32_split_filters",
        function="tf32_planes::split_filters",
        struct_name="tf32_planes::SplitParams",
        dtype=_SPLIT_PARAMS,
        threads=_SPLIT_THREADS,
        starts_early=True,
        architectures=(ARCHITECTURE,),
    )


@dataclass(frozen=True)
class Tf32Planes(Bounded, Selective):
    """A forward convolution, with its epilogue or without, or a backward-data one. Immutable.

    Args:
        name: See `backend.Algorithm`.
        elsewhere: What computes where an operand does not begin at a multiple of 16 bytes.
    """

    name: str
    elsewhere: CudaAlgorithm

    def units(self) -> tuple[Unit, ...]:
        """The one that splits filters, and the one that multiplies."""
        return _split_unit(), _unit()

    def suits(self, kind: ConvolutionKind) -> bool:
        """Filters of one tap, of float32, but for their gradients."""
        is_product = math.prod(kind.taps) == 1 and kind.direction is not Direction.BACKWARD_FILTER
        return is_product and multiplies(kind, (DType.FLOAT32,), rounds=False)

    def least_seconds(self, problem: Problem, figures: DeviceFigures) -> float:
        """What it takes where no tile ends with an image."""
        plain = problem if isinstance(problem, ConvolutionProblem) else problem.plain
        if not has_one_tap(plain) or _why_not_of_kind(plain, figures) is not None:
            return math.inf
        (images, summands), filters = plain.x.shape[:2], plain.w.shape[0]
        if plain.direction is Direction.BACKWARD_DATA:
            summands, filters = filters, summands
        tiles = -(-images * math.prod(plain.x.shape[2:]) // _PIXELS)
        return _seconds(tiles, summands, filters, operand_bytes(problem), figures)

    def offer(self, problem: Problem, figures: DeviceFigures) -> Offer | str:
        """What it takes; or the reason why it does not suit the problem."""
        plain = problem if isinstance(problem, ConvolutionProblem) else problem.plain
        reason = _why_not(plain, figures)
        if reason is None and isinstance(problem, FusedConvolutionProblem):
            reason = why_unlike(problem) or why_not_finished(problem, lambda _name, _z: None)
        if reason is not None:
            return reason
        product = _Product.of(plain)
        return Offer(
            product.seconds(operand_bytes(problem), figures),
            partial(_calls, problem, product, figures, computing_elsewhere(self.elsewhere, problem, figures)),
            product.parts_bytes,
        )


@dataclass(frozen=True, slots=True)
class _Product:
    """What is multiplied; backward-data, with the filters' and the channels' parts exchanged. Immutable.

    Args:
        images: That are read.
        output: That are written.
        strides: Of w, from one row of the product to the next and from one summand to the next.
        is_backward: Whether it is backward-data.
    """

    images: TensorDescriptor
    output: TensorDescriptor
    strides: tuple[int, int]
    is_backward: bool

    @classmethod
    def of(cls, problem: ConvolutionProblem) -> _Product:
        """A forward or a backward-data convolution."""
        of_k, of_c = problem.w.strides[:2]
        if problem.direction is Direction.BACKWARD_DATA:
            return cls(problem.y, problem.x, (of_c, of_k), is_backward=True)
        return cls(problem.x, problem.y, (of_k, of_c), is_backward=False)

    @property
    def pixels(self) -> int:
        """Of an image."""
        return self.images.shape[2] * self.images.shape[3]

    @property
    def filters(self) -> int:
        """Of the output: backward-data, channels."""
        return self.output.shape[1]

    @property
    def steps(self) -> int:
        """Stages of a sum."""
        return -(-self.images.shape[1] // _SLAB)

    @property
    def parts_bytes(self) -> int:
        """Of both parts of the filters."""
        return _parts_bytes(self.filters, self.images.shape[1])

    @property
    def image_tiles(self) -> int:
        """A consumer's tiles of an image."""
        return -(-self.pixels // _PIXELS)

    @property
    def pixel_tiles(self) -> int:
        """A consumer's tiles of all images."""
        return self.images.shape[0] * self.image_tiles

    @property
    def filter_tiles(self) -> int:
        """A block's tiles along the filters."""
        return -(-self.filters // _FILTERS)

    @property
    def tiles(self) -> int:
        """Of blocks."""
        return -(-self.pixel_tiles // _CONSUMERS) * self.filter_tiles

    def seconds(self, nbytes: int, figures: DeviceFigures) -> float:
        """What it takes, of so many bytes of operands."""
        return _seconds(self.pixel_tiles, self.images.shape[1], self.filters, nbytes, figures)


def _seconds(pixel_tiles: int, summands: int, filters: int, nbytes: int, figures: DeviceFigures) -> float:
    """The split, and the turns that blocks take or so many bytes of operands on their way through memory."""
    rate = figures.products_per_second(Maths.TF32) / figures.multiprocessors * _OF_PRODUCTS
    memory_rate = figures.bytes_per_second * _OF_MEMORY_RATE
    products = _PRODUCTS * _CONSUMERS * _PIXELS * _FILTERS * _SLAB * -(-summands // _SLAB)
    turns = -(-(-(-pixel_tiles // _CONSUMERS) * -(-filters // _FILTERS)) // figures.multiprocessors)
    busy = turns * (products / rate + _TILE_CLOCKS / figures.clock_hz)
    moved = 1.5 * _parts_bytes(filters, summands)  # the split reads half of what it writes
    split = max(figures.launch_seconds, moved / memory_rate)
    return split + figures.launch_seconds + max(busy, nbytes / memory_rate)


def _parts_bytes(filters: int, summands: int) -> int:
    """Of both parts of the filters."""
    return 2 * filters * -(-summands // _SLAB) * _SLAB * 4


def _why_not_of_kind(problem: ConvolutionProblem, figures: DeviceFigures) -> str | None:
    """None where the kernel takes such convolutions, wherever their operands lie, else the reason."""
    if problem.direction is Direction.BACKWARD_FILTER:
        return f"it has no {problem.direction.value}"
    reason = why_no_wgmma(problem, figures.architecture, _unit(), (DType.FLOAT32,), rounds=False)
    return reason or why_not_one_tap(problem)


def _why_not(problem: ConvolutionProblem, figures: DeviceFigures) -> str | None:
    """None where the kernel takes the convolution, else the reason."""
    reason = _why_not_of_kind(problem, figures) or why_not_in_planes(problem)
    if reason is not None:
        return reason
    product = _Product.of(problem)
    summands = product.images.shape[1]
    if summands < _FEWEST_SUMMANDS:
        return f"sums of {summands} products; at least {_FEWEST_SUMMANDS}, among which what is left out does not count"
    counts = (product.pixels + _PIXELS, product.tiles + figures.multiprocessors, product.filters, summands)
    if max(counts) > MOST:
        return f"{counts} pixels of an image, tiles, filters and channels; at most {MOST}"
    return None


def _calls(problem: Problem, product: _Product, figures: DeviceFigures, elsewhere: Otherwise) -> Calls:
    strides = plane_strides(product.output)
    assert strides is not None, f"{product.output}"
    w, x = (Place(0), Place(1)) if product.is_backward else (Place(1), Place(0))
    y, pitch = Place(len(problem.inputs)), product.steps * _SLAB
    split = record(
        _SPLIT_PARAMS, strides=product.strides, filters=product.filters, channels=product.images.shape[1], pitch=pitch
    )
    params = record(
        _PARAMS,
        strides=strides,
        pixels=product.pixels,
        filters=product.filters,
        steps=product.steps,
        image_tiles=product.image_tiles,
        pixel_tiles=product.pixel_tiles,
        filter_tiles=product.filter_tiles,
    )
    places: dict[FieldPath, Place] = {"y": y}
    epilogue, aligned = Epilogue(alpha1=1.0, alpha2=0.0, activation=None), [x, y]
    if isinstance(problem, FusedConvolutionProblem):
        epilogue = epilogue_of(problem)
        places |= in_order(None, None, *fields_of(problem.input_names[2:]))
        aligned += [Place(i) for i, name in enumerate(problem.input_names) if name == "z"]
    fill_epilogue(params["epilogue"], epilogue)
    of_x = planes_map(product.images, _SLAB, _SLAB)
    of_w = BoxMap(
        DType.FLOAT32, (pitch, product.filters, 2), (pitch * 4, product.filters * pitch * 4), (_SLAB, _FILTERS, 2)
    )
    calls = kernel_call(
        _split_unit(),
        blocks_for(figures, product.filters * pitch, _SPLIT_THREADS),
        _SPLIT_THREADS,
        split,
        {"w": w, "parts": Place(WORKSPACE)},
        blends=False,
        starts_early=True,
    ) + kernel_call(
        _unit(),
        min(product.tiles, figures.multiprocessors),
        THREADS,
        params,
        places,
        shared_bytes=_SHARED_BYTES,
        maps={"x": (x, of_x), "w": (Place(WORKSPACE), of_w)},
        starts_early=True,
    )
    return where_aligned(tuple((place, ALIGNMENT_BYTES) for place in aligned), calls, elsewhere)
