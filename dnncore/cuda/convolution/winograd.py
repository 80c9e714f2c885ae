"""Winograd's minimal filtering in one kernel: F(2x2, 3x3), 4 multiplications per output in place of 9, or F(4x4, 3x3), 2.25.

Every block transforms the filters and inputs that it needs itself. Sums are over tiles of 4 x 4 or 6 x 6 inputs, so a NaN or an
infinity spreads to all outputs of its tiles, and rounding errors are relative to what is in the tile (`winograd_error`).

Source: A. Lavin, S. Gray, "Fast algorithms for convolutional neural networks", arXiv 1509.09308.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial

from dnncore.backend import Offer
from dnncore.bounds import Bounded, Selective
from dnncore.cuda.calls import Calls, in_order, kernel_call
from dnncore.cuda.convolution.locality import strided_seconds
from dnncore.cuda.convolution.winograd_error import F2, F4, Filtering
from dnncore.cuda.convolution.winograd_geometry import (
    FIELDS,
    PARAMS,
    Correlation,
    correlation_or_reason,
    is_transformed,
    least_points,
)
from dnncore.cuda.params import FLOATING, c_type, generate, small_divisor
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["WINOGRAD", "WINOGRAD_4X4", "FusedWinograd"]

_MAX_BLOCKS = 2**31 - 1

_OF_MEMORY_RATE = 0.6573
_LAUNCHES = 1.5
"""What a launch takes beside its blocks, in times from one kernel to the next."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel template and what a block of it does. Immutable.

    Args:
        filtering: F2 or F4.
        header: In dnncore/convolution.
        function: In dnncore::winograd.
        dtypes: Those that it is made for.
        threads: Per block.
        filters: Of a block; half as many in float64.
        tiles: Of a block; half as many in float64.
        shared_bytes: Dynamic shared memory.
        of_rate: Multiplications per second of a full device, as a fraction of those that its units could do.
        turn_clocks: What a turn of blocks takes beside its multiplications.
    """

    filtering: Filtering
    header: str
    function: str
    dtypes: tuple[DType, ...]
    threads: int
    filters: int
    tiles: int
    shared_bytes: int
    of_rate: float
    turn_clocks: float

    def unit(self, dtype: DType) -> Unit:
        """Its unit for tensors of a dtype."""
        size = "" if self.filtering is F2 else f"{self.filtering.outputs}x{self.filtering.outputs}_"
        return generate(
            header=f"dnncore/convolution/{self.header}",
            entry=f"convolution_winograd_{size}{c_type(dtype)}",
            function=f"winograd::{self.function}<{c_type(dtype)}>",
            struct_name="winograd::Params",
            dtype=PARAMS,
            threads=self.threads,
        )

    def block(self, dtype: DType) -> tuple[int, int]:
        """Filters and tiles of a block."""
        words = dtype.compute.itemsize // DType.FLOAT32.itemsize
        return self.filters // words, self.tiles // words

    def blocks(self, correlation: Correlation) -> tuple[int, int]:
        """Blocks along the filters and along the tiles, of a group."""
        filters, tiles = self.block(correlation.input.dtype)
        return -(-correlation.filters // filters), -(-correlation.tiles(self.filtering.outputs) // tiles)

    def seconds(self, correlation: Correlation, blocks: tuple[int, int], figures: DeviceFigures) -> float:
        """Estimated time: turns of blocks at the rate of a full multiprocessor, and the tensors once."""
        input_, output, dtype = correlation.input, correlation.output, correlation.input.dtype.compute
        turns = -(-math.prod(blocks) * correlation.groups // figures.multiprocessors)
        tile_points = math.prod(self.block(dtype)) * self.filtering.tile_points
        multiplications = turns * figures.multiprocessors * tile_points * correlation.channels
        rate = figures.products_per_second(Maths.of(dtype)) * self.of_rate
        memory = (input_.nbytes + output.nbytes) / (figures.bytes_per_second * _OF_MEMORY_RATE)
        memory += strided_seconds(output, figures)
        memory += blocks[0] * strided_seconds(input_, figures)  # once for each block of filters
        turning = turns * self.turn_clocks / figures.clock_hz
        return figures.launch_seconds * _LAUNCHES + turning + multiplications / rate + memory

    def call(self, correlation: Correlation, blocks: tuple[int, int], direction: Direction) -> Calls:
        """With the parameters filled in."""
        params = correlation.params(self.filtering.outputs)
        params["filter_blocks"], params["tile_blocks"] = map(small_divisor, blocks)
        return kernel_call(
            self.unit(correlation.input.dtype),
            math.prod(blocks) * correlation.groups,
            self.threads,
            params,
            in_order(*FIELDS[direction]),
            shared_bytes=self.shared_bytes,
        )


@dataclass(frozen=True)
class FusedWinograd(Bounded, Selective):
    """3x3 filters, stride 1, forward and backward-data; no workspace. Immutable."""

    name: str
    kernel: _Kernel

    @cached_property
    def _error_factor(self) -> float:
        return self.kernel.filtering.forward_factor()

    def suits(self, kind: ConvolutionKind) -> bool:
        """Filters of 3 x 3 without strides, but for their gradients."""
        return kind.direction is not Direction.BACKWARD_FILTER and is_transformed(kind)

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What the products take in full blocks, and the images' way through memory."""
        x, y, dtype = problem.x, problem.y, problem.x.dtype
        if problem.direction is Direction.BACKWARD_FILTER or dtype not in self.kernel.dtypes:
            return math.inf
        points = least_points(problem, self.kernel.filtering.outputs)
        if points == math.inf:
            return points
        multiplications = points * x.shape[1] * problem.w.shape[0] / problem.convolution.groups
        rate = figures.products_per_second(Maths.of(dtype.compute)) * self.kernel.of_rate
        memory = (x.size + y.size) * dtype.itemsize / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return figures.launch_seconds * _LAUNCHES + (memory + multiplications / rate) * (1 - 1e-9)

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """For 3x3 filters and a grid that holds all blocks."""
        if problem.direction is Direction.BACKWARD_FILTER:
            return "it has no backward-filter"
        correlation, kernel, dtype = correlation_or_reason(problem), self.kernel, problem.x.dtype
        if isinstance(correlation, str):
            return correlation
        if dtype not in kernel.dtypes:
            sums = kernel.filtering.tile_points * kernel.filters * kernel.tiles
            return f"a block's {sums} sums in {dtype.compute.value} do not fit the registers of a multiprocessor"
        blocks = kernel.blocks(correlation)
        all_blocks = math.prod(blocks) * correlation.groups
        if all_blocks > _MAX_BLOCKS:
            return f"{all_blocks} blocks; at most {_MAX_BLOCKS}"
        return Offer(
            kernel.seconds(correlation, blocks, figures),
            partial(kernel.call, correlation, blocks, problem.direction),
            math="dtype winograd",
            error_factor=self._error_factor,
        )

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(self.kernel.unit(dtype) for dtype in self.kernel.dtypes)


# Rates and launches are fitted to 16 layers of benchmarks/layers.py in fp32 on an H200, met within 7 % [fp64: the same share].
WINOGRAD = FusedWinograd(
    "winograd",
    _Kernel(
        F2, "winograd_fused.cuh", "fused", FLOATING, threads=256, filters=64, tiles=32, shared_bytes=0,
        of_rate=0.4006, turn_clocks=0.0,
    ),
)  # fmt: skip
"""F(2x2, 3x3)."""

# Rate and turn are fitted to 14 layers and directions of benchmarks/layers.py in fp32 on an H200, met within 10 %.
WINOGRAD_4X4 = FusedWinograd(
    "winograd_4x4",
    _Kernel(
        F4, "winograd_fused_4x4.cuh", "fused_4x4", (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32), threads=384,
        filters=32, tiles=32, shared_bytes=66048, of_rate=0.3647, turn_clocks=5940.0,
    ),
)  # fmt: skip
"""F(4x4, 3x3). Not in float64, where a block's sums would fill more than all registers."""
