"""Winograd's minimal filtering F(2x2, 3x3) in one kernel without workspace: 4 multiplications an output in place of 9.

Every block transforms the filters and inputs that it needs itself. Sums are over tiles of 4 x 4 inputs, so a NaN or an infinity
spreads to all outputs of its tiles, and rounding errors are relative to what is in the tile (`winograd_error`).

Source: A. Lavin, S. Gray, "Fast algorithms for convolutional neural networks", arXiv 1509.09308.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dnncore.backend import Launch
from dnncore.cuda.convolution.winograd_error import F2
from dnncore.cuda.convolution.winograd_geometry import FIELDS, PARAMS, Correlation, why_not_winograd
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.launch import Unit, single
from dnncore.cuda.params import FLOATING, c_type, generate, small_divisor
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["WINOGRAD", "FusedWinograd"]

_THREADS = 256
_MAX_BLOCKS = 2**31 - 1
_POINTS = (F2.outputs + F2.taps - 1) ** 2

# Of `seconds`, fitted to 16 layers of benchmarks/layers.py in fp32 on an H200, which it meets within 7 % [fp64: half the rate].
_MULTIPROCESSORS = 132
_RATE = {DType.FLOAT32: 13.4e12, DType.FLOAT64: 6.7e12}
_BYTES_PER_SECOND = 2.8e12
_LAUNCH_SECONDS = 6e-6


def _block(dtype: DType) -> tuple[int, int]:
    """Filters and tiles of a block; `Fused::kFilters` and `Fused::kTiles`."""
    vector = 16 // dtype.compute.itemsize
    return 16 * vector, 8 * vector


def _blocks(correlation: Correlation) -> tuple[int, int]:
    """Blocks along the filters and along the tiles."""
    filters, tiles = _block(correlation.input.dtype)
    return -(-correlation.filters // filters), -(-correlation.tiles(F2.outputs) // tiles)


def _unit(dtype: DType) -> Unit:
    return generate(
        header="dnncore/convolution/winograd_fused.cuh",
        entry=f"convolution_winograd_{c_type(dtype)}",
        function=f"winograd::fused<{c_type(dtype)}>",
        struct_name="winograd::Params",
        dtype=PARAMS,
        threads=_THREADS,
    )


@dataclass(frozen=True)
class FusedWinograd:
    """3x3 filters, stride 1, forward and backward-data; no workspace. Immutable."""

    name: str = "winograd"
    deterministic: bool = True
    math: str = "dtype winograd"
    error_factor: ClassVar[float] = F2.forward_factor()
    """Tolerances are this many times wider, and relative to the largest magnitude of each output plane."""

    def supports(self, problem: ConvolutionProblem, device: CudaDevice) -> str | None:  # noqa: ARG002 (the Protocol's)
        """None when it can solve the problem, else the reason why not."""
        if problem.direction is Direction.BACKWARD_FILTER:
            return "it has no backward-filter"
        reason = why_not_winograd(problem)
        if reason is not None:
            return reason
        correlation = Correlation.of(problem)
        blocks = math.prod(_blocks(correlation)) * correlation.groups
        return f"{blocks} blocks; at most {_MAX_BLOCKS}" if blocks > _MAX_BLOCKS else None

    def workspace_bytes(self, problem: ConvolutionProblem) -> int:  # noqa: ARG002 (the Protocol's signature)
        """0."""
        return 0

    def seconds(self, problem: ConvolutionProblem) -> float:
        """Estimated time on an H200: turns of blocks at the rate of a full multiprocessor, and the tensors once."""
        if problem.direction is Direction.BACKWARD_FILTER or why_not_winograd(problem) is not None:
            return math.inf
        correlation, dtype = Correlation.of(problem), problem.x.dtype.compute
        blocks, tile = math.prod(_blocks(correlation)) * correlation.groups, math.prod(_block(dtype))
        turns = -(-blocks // _MULTIPROCESSORS)
        multiplications = turns * _MULTIPROCESSORS * tile * _POINTS * correlation.channels
        nbytes = problem.x.nbytes + problem.y.nbytes
        return _LAUNCH_SECONDS + multiplications / _RATE[dtype] + nbytes / _BYTES_PER_SECOND

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(_unit(dtype) for dtype in FLOATING)

    def prepare(self, problem: ConvolutionProblem, device: CudaDevice) -> Launch:
        """Fill in the parameters."""
        correlation = Correlation.of(problem)
        filter_blocks, tile_blocks = _blocks(correlation)
        params = correlation.params(F2.outputs)
        params["filter_blocks"], params["tile_blocks"] = small_divisor(filter_blocks), small_divisor(tile_blocks)
        return single(
            device.kernel(_unit(problem.x.dtype)),
            (filter_blocks * tile_blocks * correlation.groups, 1, 1),
            (_THREADS, 1, 1),
            params,
            *FIELDS[problem.direction],
        )


WINOGRAD = FusedWinograd()
