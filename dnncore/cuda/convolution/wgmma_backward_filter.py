"""Backward-filter convolution of 16-bit channels-last images by the matrix units and the copy engine of sm_90: implicit_gemm_wgmma.

The sums are in fp32; their parts are added in order, and the total is rounded once, or not at all for a dw in fp32, which the
kernel that adds up parts stores, so that there must be some of every tile. The pictures are in
`convolution/filter_feed.cuh` and `convolution/wgmma_filter.cuh`. dw may lie in memory in any way.

Padding is zeros that are multiplied, as in `implicit_gemm`, which computes where an operand does not begin at a multiple of 16
bytes.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache

from dnncore.backend import Offer
from dnncore.bounds import Searched, Selective
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.convolution.copy_engine import are_copied
from dnncore.cuda.convolution.filter_launch import least_seconds, searching_offer, why_not_fed
from dnncore.cuda.convolution.filter_tile import Kernels, Tile, kernel_unit, sum_unit
from dnncore.cuda.convolution.operands import narrowed
from dnncore.cuda.convolution.wgmma_tile import DTYPES, least_of_wgmma, multiplies, why_no_wgmma
from dnncore.cuda.params import c_type
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["TILES", "WgmmaBackwardFilter"]

TILES = (
    *(Tile(64, 256, 5), Tile(128, 192, 5), Tile(128, 128, 7), Tile(128, 64, 9)),
    Tile(64, 576, 6, in_patches=True),
)
"""Of equal estimates the first is taken: where a tile of 64 x 256 has all columns, an H200 was seen to be faster by a tenth."""

_FEWEST_SUMS = min(tile.sums for tile in TILES)


@cache
def _unit(dtype: DType, tile: Tile) -> Unit:
    entry = f"convolution_wgmma_backward_filter_{c_type(dtype)}_{tile.rows}x{tile.columns}"
    stage = ", filter::Patches" if tile.in_patches else ""
    kernel = f"wgmma_filter::Kernel<{c_type(dtype)}, {tile.rows}, {tile.columns}, {tile.stages}{stage}>"
    return kernel_unit("wgmma_filter", kernel, entry, tile)


@cache
def _sum_unit(dtype: DType) -> Unit:
    name = c_type(dtype)
    entry = f"convolution_wgmma_backward_filter_parts_{name}"
    return sum_unit("wgmma_filter", f"wgmma_filter::add_parts<{name}>", entry)


@dataclass(frozen=True)
class WgmmaBackwardFilter(Searched, Selective):
    """A backward-filter convolution whose parts' sums are in the workspace. Immutable.

    Args:
        name: See `backend.Algorithm`.
        elsewhere: What computes where an operand does not begin at a multiple of 16 bytes.
    """

    name: str
    elsewhere: CudaAlgorithm

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype and tile, and one for each dtype of dw that adds up parts."""
        multiplying = (_unit(dtype, tile) for dtype in DTYPES for tile in TILES)
        return (*multiplying, *map(_sum_unit, (*DTYPES, DType.FLOAT32)))

    def suits(self, kind: ConvolutionKind) -> bool:
        """Backward-filter of images whose channels are innermost."""
        x, _, dy = kind.inside
        return kind.direction is Direction.BACKWARD_FILTER and multiplies(kind, DTYPES) and x and dy

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What products and memory take in schedules without waste; infinite where the copy engine does not take an operand."""
        least = least_of_wgmma(narrowed(problem), figures)
        if not 0 < least < math.inf:
            return least
        if not are_copied(problem.x, problem.y):
            return math.inf
        rate = figures.products_per_second(Maths.of(problem.x.dtype))
        return least_seconds(problem, rate, _FEWEST_SUMS, figures)

    def search(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Generator[float, None, Offer | str]:
        """What the fastest schedule takes, or the reason why none suits the problem."""
        if problem.direction is not Direction.BACKWARD_FILTER:
            return f"it has no {problem.direction.value}"
        reason = why_no_wgmma(problem, figures.architecture, _unit(DTYPES[0], TILES[0]))
        reason = reason or why_not_fed(problem, in_planes=False)
        if reason is not None:
            return reason
        kernels = Kernels(TILES, _unit, _sum_unit, Maths.of(problem.x.dtype))
        return (yield from searching_offer(problem, figures, kernels, self.elsewhere))
