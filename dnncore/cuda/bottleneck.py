"""Which algorithms there are for a bottleneck: one kernel that keeps what lies within on the chip, or layer by layer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, partial

from dnncore.backend import Offer
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Calls, FieldPath, Place, WhereAligned, kernel_call
from dnncore.cuda.convolution.batch_parts import calls_of_parts, cut, images
from dnncore.cuda.convolution.copy_engine import filters_map, patches_map, why_not_copied, why_not_stored
from dnncore.cuda.convolution.wgmma_tile import ARCHITECTURE, ROW_BYTES, SLAB, THREADS
from dnncore.cuda.layer_by_layer import LAYER_BY_LAYER
from dnncore.cuda.params import ADDRESS, BLEND, SMALL_DIVISOR, c_type, record, small_divisor, struct
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES, TENSOR_MAP, BoxMap, TensorMap
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ActivationMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import BottleneckProblem

__all__ = ["ALGORITHMS"]

_DTYPES = (DType.FLOAT16, DType.BFLOAT16)
_FILTERS = ("reduce", "middle", "restore", "shortcut")

_SIDE, _PATCH_SIDE, _PATCH_ROWS = 8, 10, 104
_INNER, _OUTPUTS, _MOST_CHANNELS = 64, 256, 256
_SHARED_BYTES = (
    ((4 + 2) * _PATCH_ROWS + 9 * _INNER + _OUTPUTS) * ROW_BYTES + 4 * (_INNER + _OUTPUTS) + 8 * (2 * 4 + 2 + 2)
)
"""Of `bottleneck::Kernel`: stages, what consumers have, filters of all, biases, barriers."""
_MOST = 2**31 - 1

# Assumed, not yet measured: the part of the units' rate that a consumer's products have while the other stores; clocks of a tile
# beside them; clocks until filters and the first patch are there; the part of the memory's rate.
_OF_PRODUCTS, _TILE_CLOCKS, _FIRST_CLOCKS, _OF_MEMORY_RATE = 0.7, 600, 6000, 0.8

_PARAMS = struct(
    *((name, TENSOR_MAP) for name in ("x", *_FILTERS)),
    *BLEND,
    *((f"{name}_bias", ADDRESS) for name in _FILTERS),
    ("z", ADDRESS),
    ("y", ADDRESS),
    *((name, "<i8") for name in ("z_image", "y_image")),
    *((name, "<i4") for name in ("z_row", "z_column", "y_row", "y_column", "height", "width", "slabs", "tiles")),
    ("tiles_across", SMALL_DIVISOR),
    ("tiles_down", SMALL_DIVISOR),
    ("floor", "<f4"),
    alignment=64,
)


@dataclass(frozen=True, slots=True)
class BottleneckWgmma:
    """Patches of x, whose 64 channels within stay on the chip. Immutable."""

    name: str = "bottleneck_wgmma"

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype, with a shortcut and without."""
        return tuple(_unit(dtype, has_shortcut) for dtype in _DTYPES for has_shortcut in (False, True))

    def offer(self, problem: BottleneckProblem, figures: DeviceFigures) -> Offer | str:
        """What it would take; or the reason why it cannot."""
        reason = _why_not(problem, figures)
        if reason is not None:
            return reason
        elsewhere = _elsewhere(problem, figures)
        return Offer(
            _seconds(problem, figures), partial(_prepare, problem, figures, elsewhere), elsewhere.workspace_bytes
        )


def _elsewhere(problem: BottleneckProblem, figures: DeviceFigures) -> Offer:
    """The layers, where operands do not begin at multiples of 16 bytes: of few images at a time, which take little workspace.

    With a z, which has images too, of all of them.
    """
    if problem.z is not None:
        return LAYER_BY_LAYER.offer(problem, figures)
    x, y = problem.x, problem.y
    between = sum(layer.problem.y.nbytes for layer in problem.layers[:-1])
    cuts = cut(x.shape[0], between, figures.l2_bytes)
    offers = {
        size: LAYER_BY_LAYER.offer(replace(problem, x=images(x, size), y=images(y, size)), figures)
        for size in {end - begin for begin, end in cuts}
    }
    return Offer(
        sum(offers[end - begin].seconds for begin, end in cuts),
        lambda: calls_of_parts(problem, cuts, {size: offer.prepare() for size, offer in offers.items()}),
        max(offer.workspace_bytes for offer in offers.values()),
    )


def _tiles(problem: BottleneckProblem) -> tuple[int, int, int]:
    """How many images, and tiles down and across each."""
    batch, _, rows, columns = problem.y.shape
    return batch, -(-rows // _SIDE), -(-columns // _SIDE)


def _seconds(problem: BottleneckProblem, figures: DeviceFigures) -> float:
    """Of a launch."""
    turns = -(-math.prod(_tiles(problem)) // figures.multiprocessors)
    pixels = _SIDE * _SIDE
    restored = _OUTPUTS if problem.shortcut is None else 2 * _OUTPUTS
    products = _INNER * (problem.x.shape[1] * _PATCH_ROWS + pixels * (9 * _INNER + restored))
    rate = figures.products_per_second(Maths.FP16) / figures.multiprocessors * _OF_PRODUCTS
    computing = turns * (products / rate + _TILE_CLOCKS / figures.clock_hz)
    memory = operand_bytes(problem) / (figures.bytes_per_second * _OF_MEMORY_RATE)
    return figures.launch_seconds + _FIRST_CLOCKS / figures.clock_hz + max(computing, memory)


def _why_not(problem: BottleneckProblem, figures: DeviceFigures) -> str | None:
    x, y, z = problem.x, problem.y, problem.z
    has_shortcut = problem.shortcut is not None
    missing = _unit(x.dtype, has_shortcut).why_not_on(figures.architecture)
    if missing is not None:
        return missing
    channels, (inner, outputs) = x.shape[1], (problem.reduce.shape[0], y.shape[1])
    if channels % SLAB or not 0 < channels <= _MOST_CHANNELS or (inner, outputs) != (_INNER, _OUTPUTS):
        return f"{channels} channels to {inner} to {outputs}; it takes 64, 128, 192 or 256 to {_INNER} to {_OUTPUTS} of them"
    if has_shortcut and channels != SLAB:
        return f"{channels} channels and a shortcut; it takes {SLAB} of them"
    if problem.stride != 1:
        return f"stride {problem.stride}; it takes 1"
    if problem.activation is not None and problem.activation.mode is not ActivationMode.RELU:
        return f"the activation is {problem.activation.mode.value}; it has relu"
    for name in ("x", *_FILTERS):
        copied: TensorDescriptor | None = getattr(problem, name)
        reason = None if copied is None else why_not_copied(name, copied)
        if reason is not None:
            return reason
    for name, tensor in (("y", y), ("z", z)):
        if tensor is None:
            continue
        reason = why_not_stored(name, tensor)
        if reason is not None:
            return reason
        if tensor.extent > _MOST:
            return f"{name} spans {tensor.extent} elements; offsets within an image have 32 bits"
    for name in _FILTERS:
        bias: TensorDescriptor | None = getattr(problem, f"{name}_bias")
        if bias is not None and (bias.dtype is not DType.FLOAT32 or bias.strides[1] != 1):
            return f"{name}_bias is {bias}; float32 without gaps is needed"
    if math.prod(_tiles(problem)) > _MOST // _MOST_CHANNELS:
        return f"{_tiles(problem)} tiles; at most {_MOST // _MOST_CHANNELS}"
    return None if y.size else "there is nothing to compute"


@cache
def _unit(dtype: DType, has_shortcut: bool) -> Unit:
    element = c_type(dtype)
    entry = f"bottleneck_wgmma_{element}" + ("_shortcut" if has_shortcut else "")
    source = (
        '#include "dnncore/bottleneck.cuh"\n'
        "using namespace dnncore;\n"
        f"using Kernel = bottleneck::Kernel<{element}, {str(has_shortcut).lower()}>;\n"
        f'static_assert(sizeof(Kernel::Params) == {_PARAMS.itemsize}, "dnncore/cuda/bottleneck.py disagrees");\n'
        f'static_assert(sizeof(Kernel::Shared) == {_shared_bytes(has_shortcut)}, "dnncore/cuda/bottleneck.py disagrees");\n'
        f'extern "C" __global__ void __launch_bounds__({THREADS}, 1) {entry}(const __grid_constant__ Kernel::Params params) {{\n'
        "  Kernel::run(params);\n"
        "}\n"
    )
    return Unit(source, entry, (ARCHITECTURE,))


def _shared_bytes(has_shortcut: bool) -> int:
    """Of `bottleneck::Kernel::Shared`."""
    more = _INNER + _OUTPUTS if has_shortcut else _MOST_CHANNELS // SLAB * _INNER
    return _SHARED_BYTES + more * ROW_BYTES


def _outputs_map(filters: TensorDescriptor) -> BoxMap:
    """All of it, filters 8 q + 2 j + e of each 32 in the order of (j, q, e)."""
    step = filters.strides[0] * filters.dtype.itemsize
    sizes = (_INNER, 2, 4, 4, _OUTPUTS // 32)
    return BoxMap(filters.dtype, sizes, (step, 8 * step, 2 * step, 32 * step), sizes)


def _prepare(problem: BottleneckProblem, figures: DeviceFigures, elsewhere: Offer) -> Calls:
    x, y, shortcut = problem.x, problem.y, problem.shortcut
    z = x if problem.residual else problem.z
    batch, down, across = _tiles(problem)
    tiles = batch * down * across
    params = record(
        _PARAMS,
        **{
            f"{name}_{what}": tensor.strides[axis] if tensor.shape[axis] > 1 else 0
            for name, tensor in (("z", z), ("y", y))
            if tensor is not None
            for what, axis in (("image", 0), ("row", 2), ("column", 3))
        },
        height=y.shape[2],
        width=y.shape[3],
        slabs=x.shape[1] // SLAB,
        tiles=tiles,
        tiles_across=small_divisor(across),
        tiles_down=small_divisor(down),
        floor=-math.inf if problem.activation is None else 0.0,
    )
    places = {name: Place(operand) for operand, name in enumerate((*problem.input_names, "y"))}
    addresses: dict[FieldPath, Place] = {
        name: place for name, place in places.items() if name.endswith("_bias") or name in ("y", "z")
    }
    if problem.residual:
        addresses["z"] = places["x"]
    maps: dict[FieldPath, tuple[Place, TensorMap]] = {
        "x": (places["x"], patches_map(x, SLAB, _PATCH_SIDE, _PATCH_SIDE)),
        "reduce": (places["reduce"], filters_map(problem.reduce, SLAB, _INNER)),
        "middle": (places["middle"], filters_map(problem.middle, SLAB, _INNER)),
        "restore": (places["restore"], _outputs_map(problem.restore)),
    }
    if shortcut is not None:
        maps["shortcut"] = places["shortcut"], _outputs_map(shortcut)
    calls = kernel_call(
        _unit(x.dtype, shortcut is not None),
        min(tiles, figures.multiprocessors),
        THREADS,
        params,
        addresses,
        shared_bytes=_shared_bytes(shortcut is not None),
        maps=maps,
        starts_early=True,
    )
    alignments = tuple((place, ALIGNMENT_BYTES) for name, place in places.items() if not name.endswith("_bias"))
    return (WhereAligned(alignments, calls, elsewhere.prepare()),)


ALGORITHMS: tuple[CudaAlgorithm, ...] = (BottleneckWgmma(), LAYER_BY_LAYER)
"""Of equal estimates the first is taken; the last supports everything that is legal."""
