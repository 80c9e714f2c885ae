"""Winograd's minimal filtering in one kernel: F(2x2, 3x3), 4 multiplications an output in place of 9, or F(4x4, 3x3), 2.25.

Every block transforms the filters and inputs that it needs itself. Sums are over tiles of 4 x 4 or 6 x 6 inputs, so a NaN or an
infinity spreads to all outputs of its tiles, and rounding errors are relative to what is in the tile (`winograd_error`).

Source: A. Lavin, S. Gray, "Fast algorithms for convolutional neural networks", arXiv 1509.09308.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from dnncore.backend import Launch
from dnncore.cuda.convolution.locality import strided_seconds
from dnncore.cuda.convolution.winograd_error import F2, F4, Filtering
from dnncore.cuda.convolution.winograd_geometry import FIELDS, PARAMS, Correlation, why_not_winograd
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, single
from dnncore.cuda.params import FLOATING, c_type, generate, small_divisor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["WINOGRAD", "WINOGRAD_4X4", "FusedWinograd"]

_MAX_BLOCKS = 2**31 - 1

_MULTIPROCESSORS = 132
_BYTES_PER_SECOND = 2.8e12
_LAUNCH_SECONDS = 6e-6


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel template and what a block of it does. Immutable.

    Args:
        filtering: F2 or F4.
        header: In dnncore/convolution.
        function: In dnncore::winograd.
        dtypes: Those that it is made for.
        threads: A block.
        filters: Of a block; half as many in float64.
        tiles: Of a block; half as many in float64.
        shared_bytes: Dynamic shared memory.
        rate: Multiplications a second of a full H200 in float32; half as many in float64.
        turn_seconds: What a turn of blocks takes beside its multiplications.
    """

    filtering: Filtering
    header: str
    function: str
    dtypes: tuple[DType, ...]
    threads: int
    filters: int
    tiles: int
    shared_bytes: int
    rate: float
    turn_seconds: float

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
        """Blocks along the filters and along the tiles."""
        filters, tiles = self.block(correlation.input.dtype)
        return -(-correlation.filters // filters), -(-correlation.tiles(self.filtering.outputs) // tiles)


@dataclass(frozen=True)
class FusedWinograd:
    """3x3 filters, stride 1, forward and backward-data; no workspace. Immutable."""

    name: str
    kernel: _Kernel
    deterministic: bool = True
    math: str = "dtype winograd"

    @cached_property
    def error_factor(self) -> float:
        """Tolerances are this many times wider, and relative to the largest magnitude of each output plane."""
        return self.kernel.filtering.forward_factor()

    def _why_not(self, problem: ConvolutionProblem) -> str | None:
        """The reason why not that is not about any extent."""
        if problem.direction is Direction.BACKWARD_FILTER:
            return "it has no backward-filter"
        reason, kernel, dtype = why_not_winograd(problem), self.kernel, problem.x.dtype
        if reason is None and dtype not in kernel.dtypes:
            sums = kernel.filtering.tile_points * kernel.filters * kernel.tiles
            return f"a block's {sums} sums in {dtype.compute.value} do not fit the registers of a multiprocessor"
        return reason

    def supports(self, problem: ConvolutionProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 (the Protocol's)
        """None when it can solve the problem, else the reason why not."""
        reason = self._why_not(problem)
        if reason is not None:
            return reason
        correlation = Correlation.of(problem)
        blocks = math.prod(self.kernel.blocks(correlation)) * correlation.groups
        return f"{blocks} blocks; at most {_MAX_BLOCKS}" if blocks > _MAX_BLOCKS else None

    def workspace_bytes(self, problem: ConvolutionProblem) -> int:  # noqa: ARG002 (the Protocol's signature)
        """0."""
        return 0

    def seconds(self, problem: ConvolutionProblem) -> float:
        """Estimated time on an H200: turns of blocks at the rate of a full multiprocessor, and the tensors once."""
        if self._why_not(problem) is not None:
            return math.inf
        correlation, kernel, dtype = Correlation.of(problem), self.kernel, problem.x.dtype.compute
        blocks, tile = math.prod(kernel.blocks(correlation)) * correlation.groups, math.prod(kernel.block(dtype))
        turns = -(-blocks // _MULTIPROCESSORS)
        multiplications = turns * _MULTIPROCESSORS * tile * kernel.filtering.tile_points * correlation.channels
        rate = kernel.rate * DType.FLOAT32.itemsize / dtype.itemsize
        memory = (problem.x.nbytes + problem.y.nbytes) / _BYTES_PER_SECOND + strided_seconds(correlation.output)
        memory += kernel.blocks(correlation)[0] * strided_seconds(correlation.input)  # once a block of filters
        return _LAUNCH_SECONDS + turns * kernel.turn_seconds + multiplications / rate + memory

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(self.kernel.unit(dtype) for dtype in self.kernel.dtypes)

    def prepare(self, problem: ConvolutionProblem, device: CudaDevice) -> Launch:
        """Fill in the parameters."""
        correlation, kernel = Correlation.of(problem), self.kernel
        filter_blocks, tile_blocks = kernel.blocks(correlation)
        params = correlation.params(kernel.filtering.outputs)
        params["filter_blocks"], params["tile_blocks"] = small_divisor(filter_blocks), small_divisor(tile_blocks)
        return single(
            device.kernel(kernel.unit(problem.x.dtype)),
            (filter_blocks * tile_blocks * correlation.groups, 1, 1),
            (kernel.threads, 1, 1),
            params,
            *FIELDS[problem.direction],
            shared_bytes=kernel.shared_bytes,
        )


# Rate, bytes and launch are fitted to 16 layers of benchmarks/layers.py in fp32 on an H200, met within 7 % [fp64: half the rate].
WINOGRAD = FusedWinograd(
    "winograd",
    _Kernel(
        F2, "winograd_fused.cuh", "fused", FLOATING, threads=256, filters=64, tiles=32, shared_bytes=0, rate=13.4e12,
        turn_seconds=0.0,
    ),
)  # fmt: skip
"""F(2x2, 3x3)."""

# Rate and turn are fitted to 14 layers and directions of benchmarks/layers.py in fp32 on an H200, met within 10 %.
WINOGRAD_4X4 = FusedWinograd(
    "winograd_4x4",
    _Kernel(
        F4, "winograd_fused_4x4.cuh", "fused_4x4", (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32), threads=384,
        filters=32, tiles=32, shared_bytes=66048, rate=12.2e12, turn_seconds=3e-6,
    ),
)  # fmt: skip
"""F(4x4, 3x3). Not in float64, where a block's sums would fill more than all registers."""
