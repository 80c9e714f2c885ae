"""Which algorithms there are for an inverted residual: one kernel that keeps what is expanded on the chip, or layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Calls, in_order, kernel_call
from dnncore.cuda.layer_by_layer import LAYER_BY_LAYER
from dnncore.cuda.params import ADDRESS, BLEND, SMALL_DIVISOR, c_type, generate, record, small_divisor, struct
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ActivationMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import InvertedResidualProblem

__all__ = ["ALGORITHMS"]

_THREADS = 256
_CHUNK, _PITCH = 32, 40
"""kChunk and kPitch in inverted_residual.cuh."""
_SHAPES = ((128, 32), (128, 96), (64, 160), (64, 320))
"""Pixels of a tile and most output channels, of each kernel there is."""
_DTYPES = (DType.FLOAT16, DType.BFLOAT16)
_CLAMPS = (ActivationMode.RELU, ActivationMode.CLIPPED_RELU)
_MAX_EXTENT = 2**31

# Fitted to MobileNetV2's blocks at batch 1, 32 and 256 on an H200, whose times they give within a quarter (worklog-convolution.md):
# parts of the rates of tensor cores, of arithmetic in float32 (a widening and a load for each product) and of memory; products that
# an expanded value takes as long as; clocks that a chunk waits at its barriers.
_OF_TENSOR_RATE, _OF_FP32_RATE, _OF_MEMORY_RATE = 0.15, 0.14, 0.6
_PRODUCTS_OF_SPREAD = 4
_CHUNK_CLOCKS = 3564
_OF_CACHE_RATE = 1.2
"""Of weights, from the second-level cache, in parts of the memory's rate; assumed."""
_REGISTERS = {32: 123, 96: 151, 160: 135, 320: 177}
"""Of a thread, by most output channels, as ptxas allots them for sm_90a."""

_PARAMS = struct(
    *BLEND,
    *((name, ADDRESS) for name in ("x", "expand", "expand_bias", "depthwise", "depthwise_bias", "project")),
    *((name, ADDRESS) for name in ("project_bias", "y")),
    *((name, "<i8") for name in ("x_image", "x_row", "y_image", "y_row")),
    *((name, "<i4") for name in ("x_column", "y_column", "channels", "expanded", "outputs")),
    *((name, "<i4") for name in ("height", "width", "rows", "columns", "stride", "residual", "x_pitch")),
    *((name, "<i4") for name in ("tile_rows", "halo", "halo_padded")),
    ("tile_columns", SMALL_DIVISOR),
    ("halo_columns", SMALL_DIVISOR),
    ("tiles_across", SMALL_DIVISOR),
    ("tiles_down", SMALL_DIVISOR),
    ("floor", "<f4"),
    ("ceiling", "<f4"),
)


@dataclass(frozen=True, slots=True)
class _Tiling:
    """How y is cut. Immutable.

    Args:
        pixels: Of a tile, at most.
        most_outputs: Output channels that the kernel can have.
        rows: Of a tile.
        columns: Of a tile.
        halo: (rows, columns) of x that it reads.
        count: (down, across) of an image.
        pitch: Elements from one pixel of x to the next, in shared memory.
    """

    pixels: int
    most_outputs: int
    rows: int
    columns: int
    halo: tuple[int, int]
    count: tuple[int, int]
    pitch: int

    @property
    def halo_padded(self) -> int:
        """Pixels of the halo, with those that fill up a row of matrices."""
        return -(-math.prod(self.halo) // 16) * 16

    def shared_bytes(self, problem: InvertedResidualProblem) -> int:
        """As inverted_residual.cuh lays it out."""
        outputs = -(-problem.y.shape[1] // 16) * 16
        spread = problem.expand is not None
        weights = outputs * _PITCH * 2 + _CHUNK * 9 * 2 + 2 * _CHUNK * 4 + (_CHUNK * self.pitch * 2 if spread else 0)
        expanded = self.halo_padded * _PITCH * 2 if spread else 0
        return self.halo_padded * self.pitch * 2 + expanded + self.pixels * _PITCH * 2 + 2 * weights + self.halo_padded

    def seconds(self, problem: InvertedResidualProblem, figures: DeviceFigures) -> float:
        """Of the launch."""
        (batch, channels, *_), expanded = problem.x.shape, problem.depthwise.shape[0]
        tiles = batch * math.prod(self.count)
        spread = self.halo_padded if problem.expand is not None else 0
        dense = expanded * (spread * channels + self.pixels * problem.y.shape[1])
        tensor = dense / (figures.products_per_second(Maths.FP16) / figures.multiprocessors * _OF_TENSOR_RATE)
        single = expanded * (9 * self.pixels + _PRODUCTS_OF_SPREAD * spread)
        plain = single / (figures.products_per_second(Maths.FP32) / figures.multiprocessors * _OF_FP32_RATE)
        by_registers = figures.resident_blocks(_THREADS, _REGISTERS[self.most_outputs])
        together = max(1, min(figures.shared_bytes // self.shared_bytes(problem), by_registers))
        chunks = -(-tiles // (figures.multiprocessors * together)) * -(-expanded // _CHUNK)
        waits = chunks * (_CHUNK_CLOCKS / figures.clock_hz)
        computing = -(-tiles // figures.multiprocessors) * (tensor + plain)
        memory = operand_bytes(problem) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        weights = 2 * expanded * (channels + problem.y.shape[1] + 9) * tiles
        cache = weights / (figures.bytes_per_second * _OF_CACHE_RATE)
        return figures.launch_seconds + max(memory, cache, computing + waits)


def _tilings(problem: InvertedResidualProblem, figures: DeviceFigures) -> Iterator[_Tiling]:
    (channels, outputs), (rows, columns) = (problem.x.shape[1], problem.y.shape[1]), problem.y.shape[2:]
    rounded = 16 if problem.expand is not None else _CHUNK
    pitch = -(-channels // rounded) * rounded + 8
    for pixels, most in _SHAPES:
        if outputs > most:
            continue
        for high in range(1, min(rows, pixels) + 1):
            wide = min(columns, pixels // high)
            halo = tuple((extent - 1) * problem.stride + 3 for extent in (high, wide))
            tiling = _Tiling(
                pixels, most, high, wide, (halo[0], halo[1]), (-(-rows // high), -(-columns // wide)), pitch
            )
            if tiling.shared_bytes(problem) <= figures.shared_bytes:
                yield tiling


@dataclass(frozen=True, slots=True)
class OneKernel:
    """Tiles of output pixels, for which channels are expanded, filtered and projected 32 at a time. Immutable."""

    name: str = "on_chip"

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype and shape of tile."""
        return tuple(_unit(dtype, *shape) for dtype in _DTYPES for shape in _SHAPES)

    def offer(self, problem: InvertedResidualProblem, figures: DeviceFigures) -> Offer | str:
        """What it would take; or the reason why it cannot."""
        reason = _why_not(problem)
        if reason is not None:
            return reason
        tilings = list(_tilings(problem, figures))
        if not tilings:
            return f"{problem.x.shape[1]} channels of x and {problem.y.shape[1]} of y do not fit into shared memory"
        seconds, best = min(((each.seconds(problem, figures), place) for place, each in enumerate(tilings)))
        return Offer(seconds, partial(_prepare, problem, tilings[best], figures))


def _why_not(problem: InvertedResidualProblem) -> str | None:
    x, y = problem.x, problem.y
    if problem.activation is not None and problem.activation.mode not in _CLAMPS:
        return f"the activation is {problem.activation.mode.value}; it has relu and clipped_relu"
    for name, tensor in (("x", x), ("y", y)):
        if tensor.shape[1] % 8 or tensor.strides[1] != 1 or any(step % 8 for step in _steps(tensor)):
            return f"{name} is {tensor}; vectors of 8 channels are needed, innermost"
        if tensor.extent >= _MAX_EXTENT:
            return f"{name} spans {tensor.extent} elements; offsets within an image have 32 bits"
    if problem.depthwise.shape[0] % 8:
        return f"there are {problem.depthwise.shape[0]} expanded channels; multiples of 8 are needed"
    for name in ("expand", "depthwise", "project"):
        filters = getattr(problem, name)
        if filters is not None and not _is_dense(filters):
            return f"the filters {name} have gaps or another order"
    for name in ("expand_bias", "depthwise_bias", "project_bias"):
        bias = getattr(problem, name)
        if bias is not None and (bias.dtype is not DType.FLOAT32 or bias.strides[1] != 1):
            return f"{name} is {bias}; float32 without gaps is needed"
    return "there is nothing to compute" if not (x.size and y.size and problem.depthwise.size) else None


def _steps(tensor: TensorDescriptor) -> list[int]:
    return [tensor.strides[axis] for axis in (0, 2, 3) if tensor.shape[axis] > 1]


def _is_dense(filters: TensorDescriptor) -> bool:
    """Whether a filter's weights are neighbours, in the order of channels or of taps, and the next filter's follow."""
    length = math.prod(filters.shape[1:])
    step = 1
    for axis in (1,) if length == filters.shape[1] else (3, 2):
        if filters.shape[axis] > 1 and filters.strides[axis] != step:
            return False
        step *= filters.shape[axis]
    return filters.shape[0] == 1 or filters.strides[0] == length


def _unit(dtype: DType, pixels: int, most: int) -> Unit:
    element = c_type(dtype)
    return generate(
        header="dnncore/inverted_residual.cuh",
        entry=f"inverted_residual_{pixels}x{most}_{element}",
        function=f"inverted_residual::inverted_residual<{element}, {pixels}, {most}>",
        struct_name="inverted_residual::Params",
        dtype=_PARAMS,
        threads=_THREADS,
        starts_early=True,
    )


def _prepare(problem: InvertedResidualProblem, tiling: _Tiling, figures: DeviceFigures) -> Calls:
    x, y, activation = problem.x, problem.y, problem.activation
    params = record(
        _PARAMS,
        **{f"{name}_{what}": tensor.strides[axis] if tensor.shape[axis] > 1 else 0
           for name, tensor in (("x", x), ("y", y))
           for what, axis in (("image", 0), ("row", 2), ("column", 3))},
        channels=x.shape[1],
        expanded=problem.depthwise.shape[0],
        outputs=y.shape[1],
        height=x.shape[2],
        width=x.shape[3],
        rows=y.shape[2],
        columns=y.shape[3],
        stride=problem.stride,
        residual=problem.residual,
        x_pitch=tiling.pitch,
        tile_rows=tiling.rows,
        halo=math.prod(tiling.halo),
        halo_padded=tiling.halo_padded,
        tile_columns=small_divisor(tiling.columns),
        halo_columns=small_divisor(tiling.halo[1]),
        tiles_across=small_divisor(tiling.count[1]),
        tiles_down=small_divisor(tiling.count[0]),
        floor=-math.inf if activation is None else 0.0,
        ceiling=activation.coefficient
        if activation is not None and activation.mode is ActivationMode.CLIPPED_RELU
        else math.inf,
    )  # fmt: skip
    names = (*problem.input_names, "y")
    blocks = x.shape[0] * math.prod(tiling.count)
    return kernel_call(
        _unit(x.dtype, tiling.pixels, tiling.most_outputs),
        blocks,
        _THREADS,
        params,
        in_order(*names),
        shared_bytes=tiling.shared_bytes(problem),
        starts_early=figures.starts_early,
    )


ALGORITHMS: tuple[CudaAlgorithm, ...] = (OneKernel(), LAYER_BY_LAYER)
"""Of equal estimates the first is taken; the last supports everything that is legal."""
