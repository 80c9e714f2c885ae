"""Backward-filter convolution of float32 images by tensor cores and the copy engine of sm_90.

`implicit_gemm_tf32` is for those who permit tf32 (`ConvolutionDescriptor.math`), to which the copy engine rounds x and dy.
`implicit_gemm_3xtf32` splits both operands into two of tf32 each and computes three of their four products, whose sums are as
precise as those of fp32 (docs/numerics.md has the limits). Images lie channels-last; for 3xTF32 and filters of one tap they may lie
in planes (NCHW), too. The sums are in fp32; their parts are added in order. The pictures
are in `convolution/filter_feed.cuh` and `convolution/tf32_filter.cuh`. dw may lie in memory in any way.

`implicit_gemm` computes where an operand does not begin at a multiple of 16 bytes.

Source of 3xTF32: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical
peak performance" (2022).
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cache, partial

from dnncore.backend import Offer
from dnncore.bounds import Searched, Selective
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.convolution.filter_launch import least_seconds, searching_offer, why_not_fed
from dnncore.cuda.convolution.filter_tile import Kernels, Tile, kernel_unit, sum_unit
from dnncore.cuda.convolution.planes import reads_planes
from dnncore.cuda.convolution.wgmma_tile import ARCHITECTURE, least_of_wgmma, multiplies, why_no_wgmma
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["TILES", "Tf32BackwardFilter"]

TILES = tuple(Tile(*shape, itemsize=4) for shape in ((128, 256, 4), (128, 128, 7), (64, 256, 5), (256, 64, 5)))

_OF_RATE = {1: 0.6, 3: 0.14}
"""What is reached of the rate of `wgmma`, by the products that make one. Of three: 1x1 filters of 1024 to 256 and of 512 to 2048
channels are met within 4 %; of 64 to 256 and back, which memory bounds, the estimate is 18 % too high [measured on an H200]."""

_MOST_SUMS_OF_3XTF32 = 128 * 128
_FEWEST_SUMMANDS = 16

_PREFIX = {1: "tf32", 3: "3xtf32"}
"""By the products that make one."""


@cache
def _unit(products: int, _dtype: DType, tile: Tile) -> Unit:
    entry = f"convolution_{_PREFIX[products]}_backward_filter_{tile.rows}x{tile.columns}"
    stage = ""
    if tile.in_planes:
        entry, stage = f"{entry}_planes", ", filter::Planes"
    kernel = f"tf32_filter::Kernel<{tile.rows}, {tile.columns}, {tile.stages}, {products}{stage}>"
    return kernel_unit("tf32_filter", kernel, entry, tile)


@cache
def _sum_unit(_dtype: DType) -> Unit:
    entry = "convolution_tf32_backward_filter_parts"
    return sum_unit("tf32_filter", "tf32_filter::add_parts", entry)


@cache
def _tiles_for(tiles: tuple[Tile, ...], products: int) -> tuple[Tile, ...]:
    """Those for which there are registers: 3xTF32 has the sums of a stage beside the others."""
    return tuple([tile for tile in tiles if products == 1 or tile.sums <= _MOST_SUMS_OF_3XTF32])


@cache
def _plane_tiles_for(tiles: tuple[Tile, ...], products: int) -> tuple[Tile, ...]:
    """Of those for planes."""
    return () if products == 1 else tuple([replace(tile, in_planes=True) for tile in _tiles_for(tiles, products)])


@dataclass(frozen=True)
class Tf32BackwardFilter(Searched, Selective):
    """A backward-filter convolution whose parts' sums are in the workspace. Immutable.

    Args:
        name: See `backend.Algorithm`.
        products: Of tf32 that make one: 1, where the caller permits it, or 3, as precise as float32.
        elsewhere: What computes where an operand does not begin at a multiple of 16 bytes.
    """

    name: str
    products: int
    elsewhere: CudaAlgorithm

    def units(self) -> tuple[Unit, ...]:
        """One for each tile, and the one that adds up parts."""
        tiles = (*self._tiles, *self._plane_tiles)
        return (*(_unit(self.products, DType.FLOAT32, tile) for tile in tiles), _sum_unit(DType.FLOAT32))

    @property
    def _tiles(self) -> tuple[Tile, ...]:
        """Those for which there are registers."""
        return _tiles_for(TILES, self.products)

    @property
    def _plane_tiles(self) -> tuple[Tile, ...]:
        """Of those for planes."""
        return _plane_tiles_for(TILES, self.products)

    def suits(self, kind: ConvolutionKind) -> bool:
        """Backward-filter of float32."""
        if kind.direction is not Direction.BACKWARD_FILTER:
            return False
        return multiplies(kind, (DType.FLOAT32,), rounds=self.products == 1)

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What products and memory take in schedules without waste."""
        if self.products == 1:
            return least_of_wgmma(problem, figures, (DType.FLOAT32,))
        if problem.x.dtype is not DType.FLOAT32 or figures.architecture != ARCHITECTURE:
            return math.inf
        rate = figures.products_per_second(Maths.TF32) * _OF_RATE[self.products]
        return least_seconds(problem, rate, min([tile.sums for tile in self._tiles]), figures)

    def search(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Generator[float, None, Offer | str]:
        """What the fastest schedule takes, or the reason why none suits the problem."""
        reason = self._why_not(problem, figures)
        if reason is not None:
            return reason
        unit, rounds = partial(_unit, self.products), self.products == 1
        tiles = self._plane_tiles if self._reads_planes(problem) else self._tiles
        kernels = Kernels(tiles, unit, _sum_unit, Maths.TF32, _OF_RATE[self.products], rounds)
        return (yield from searching_offer(problem, figures, kernels, self.elsewhere))

    def _why_not(self, problem: ConvolutionProblem, figures: DeviceFigures) -> str | None:
        """None where there are kernels for a problem, whatever their schedules, else the reason."""
        if problem.direction is not Direction.BACKWARD_FILTER:
            return f"it has no {problem.direction.value}"
        any_unit, rounds = _unit(self.products, DType.FLOAT32, self._tiles[0]), self.products == 1
        reason = why_no_wgmma(problem, figures.architecture, any_unit, (DType.FLOAT32,), rounds=rounds)
        if reason is not None:
            return reason
        pixels = problem.y.size // problem.y.shape[1]
        if not rounds and pixels < _FEWEST_SUMMANDS:
            return (
                f"sums of {pixels} products; at least {_FEWEST_SUMMANDS}, among which what is left out does not count"
            )
        return why_not_fed(problem, in_planes=self._reads_planes(problem))

    def _reads_planes(self, problem: ConvolutionProblem) -> bool:
        return self.products > 1 and reads_planes(problem)
