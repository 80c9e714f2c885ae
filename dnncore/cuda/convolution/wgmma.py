"""Forward convolution of channels-last images by the matrix units and the copy engine of sm_90: implicit_gemm_wgmma.

Of 16 bits, whose sums are in fp32, or of int8, whose sums are exact; they are rounded once, whatever follows the convolution. Of
float32 where the caller permits tf32 (`ConvolutionDescriptor.math`), to which the copy engine rounds x and w; sums and what follows
are in fp32. The picture is in `convolution/wgmma.cuh`.

Padding is zeros that are multiplied, as in `implicit_gemm`, which computes where an operand does not begin at a multiple of 16
bytes.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache, partial

from dnncore.backend import Offer
from dnncore.bounds import Searched, Selective
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Calls, Place
from dnncore.cuda.convolution.copy_engine import (
    StoresChunks,
    are_copied,
    forward_window,
    why_no_groups,
    why_no_matrix,
    why_not_copied,
    why_not_gathered,
    why_not_stored,
)
from dnncore.cuda.convolution.elsewhere import Otherwise, computing_elsewhere, where_aligned
from dnncore.cuda.convolution.one_row import with_one_row
from dnncore.cuda.convolution.wgmma_launch import (
    LEAST_ROW_BYTES,
    OF_MEMORY_RATE,
    Launch,
    Pace,
    Phase,
    fastest,
    launches,
    tiles,
)
from dnncore.cuda.convolution.wgmma_output import finish, residual_map, why_not_finished
from dnncore.cuda.convolution.wgmma_tile import (
    DTYPES,
    LONGEST_SUM,
    MOST,
    ROW_BYTES,
    TILES,
    least_of_wgmma,
    multiplies,
    unit,
    why_no_wgmma,
)
from dnncore.cuda.gemm import LONGEST_INT8_SUM
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction, FusedConvolutionProblem

__all__ = ["WgmmaConvolution", "forward_launches", "forward_phase", "why_not_forward"]

_DTYPES = (*DTYPES, DType.INT8, DType.FLOAT32)


@dataclass(frozen=True)
class WgmmaConvolution(Searched, Selective, StoresChunks):
    """A forward convolution, with its epilogue or without, no workspace. Immutable.

    Args:
        name: See `backend.Algorithm`.
        elsewhere: What computes where an operand does not begin at a multiple of 16 bytes.
        into_copy: See `StoresChunks`.
    """

    name: str
    elsewhere: CudaAlgorithm
    into_copy: bool = False

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype and tile."""
        return tuple(unit(dtype, tile, backward=False) for dtype in _DTYPES for tile in tiles(dtype, backward=False))

    def suits(self, kind: ConvolutionKind) -> bool:
        """Forward, channels innermost."""
        return kind.direction is Direction.FORWARD and multiplies(kind, _DTYPES) and all(kind.inside)

    def least_seconds(self, problem: ConvolutionProblem | FusedConvolutionProblem, figures: DeviceFigures) -> float:
        """What its products take at the full rate, or memory for what it reads at least of x and for all else.

        Infinite where the copy engine does not take an operand, as with pixels of an odd number of channels.
        """
        least = least_of_wgmma(problem, figures, _DTYPES)
        if not 0 < least < math.inf:
            return least
        if not are_copied(problem.x, problem.w):
            return math.inf
        x, y = problem.x, problem.y
        unread = max(x.size - y.size // y.shape[1] * x.shape[1], 0) * x.dtype.itemsize
        return max(least, (operand_bytes(problem) - unread) / (figures.bytes_per_second * OF_MEMORY_RATE))

    def search(
        self, problem: ConvolutionProblem | FusedConvolutionProblem, figures: DeviceFigures
    ) -> Generator[float, None, Offer | str]:
        """What the fastest tile takes, of equal ones the one with least to do; or the reason why none suits the problem."""
        given, problem = problem, with_one_row(problem)
        plain = problem if isinstance(problem, ConvolutionProblem) else problem.plain
        options = forward_launches(plain, figures)
        if isinstance(options, str):
            return options
        reason = why_not_finished(problem, why_no_matrix) or why_not_stored("y", plain.y, into_copy=self.into_copy)
        if reason is not None:
            return reason
        # All but what lies between the pixels that strides reach is read and written; pixels of few channels count for more.
        nbytes = operand_bytes(problem) + _in_vain(plain.x) + _in_vain(plain.y)
        x_bytes = plain.x.size * plain.x.dtype.itemsize
        seconds, launch = fastest(
            [
                (pace.seconds(nbytes - max(x_bytes - pace.gathered_bytes, 0), figures), pace.busy, launch)
                for launch, pace in options
            ]
        )
        yield seconds
        return Offer(
            seconds,
            partial(_calls, problem, launch, figures, computing_elsewhere(self.elsewhere, given, figures)),
            math="tf32" if plain.x.dtype is DType.FLOAT32 else "dtype",
        )


@lru_cache(maxsize=8)  # a fused convolution and one that it is composed of, and both over copies, have the same ones
def forward_launches(problem: ConvolutionProblem, figures: DeviceFigures) -> tuple[tuple[Launch, Pace], ...] | str:
    """One for each tile that suits the convolution; or the reason why there is none."""
    reason = why_not_forward(problem, figures)
    if reason is not None:
        return reason
    x, w, y = problem.x, problem.w, problem.y
    if x.dtype is DType.INT8:
        phases = ((tile, forward_phase(problem, tile.slab(x.dtype))) for tile in tiles(x.dtype, backward=False))
        made = (Launch.of(x, w, (phase,), tile, backward=False) for tile, phase in phases)
        found = [launch for launch in made if launch.suits(figures.multiprocessors)]
    else:
        phase = forward_phase(problem, ROW_BYTES // x.dtype.itemsize)
        found = launches(x, w, [phase], figures.multiprocessors, backward=False)
    most_tiles = max([launch.pixel_tiles * launch.filter_tiles for launch in found])
    counts = (y.size // y.shape[1], x.size // x.shape[1], w.shape[0], most_tiles)
    if max(counts) > MOST:
        return f"{counts} pixels of y and x, filters and tiles; at most {MOST}"
    return tuple([(launch, launch.pace(figures)) for launch in found])


def why_not_forward(problem: ConvolutionProblem, figures: DeviceFigures) -> str | None:
    """None where the kernel takes the convolution, as far as `why_not_stored` does not say otherwise of y, else the reason."""
    x, w = problem.x, problem.w
    if problem.direction is not Direction.FORWARD:
        return f"it has no {problem.direction.value}"
    reason = why_no_wgmma(problem, figures.architecture, unit(DTYPES[0], TILES[0], backward=False), _DTYPES)
    if reason is not None:
        return reason
    if problem.y.dtype is not x.dtype:
        return f"y is {problem.y.dtype.value}; it stores {x.dtype.value}, as x is"
    longest = LONGEST_INT8_SUM if x.dtype is DType.INT8 else LONGEST_SUM
    if math.prod(w.shape[1:]) > longest:
        return f"sums of {math.prod(w.shape[1:])} products; at most {longest}"
    return (
        why_not_copied("x", x)
        or why_not_copied("w", w)
        or why_no_matrix("y", problem.y)
        or why_not_gathered(x, forward_window(problem))
        or (why_no_groups(w) if w.dtype is DType.INT8 else None)
    )


def forward_phase(problem: ConvolutionProblem, slab: int) -> Phase:
    """All of the convolution, so many channels at a time."""
    taps, dilation = problem.w.shape[2:], problem.convolution.dilation
    rows, columns = (step if count > 1 else 1 for step, count in zip(dilation, taps, strict=True))
    return Phase(
        window=forward_window(problem),
        y=problem.y,
        y_offset_bytes=0,
        taps=(taps[0], taps[1]),
        dilation=(rows, columns),
        slabs=(0, -(-problem.w.shape[1] // slab)),
        slab=slab,
    )


def _in_vain(images: TensorDescriptor) -> int:
    """What the rows of pixels are shorter than what each takes as long as."""
    channels = images.shape[1]
    return images.size // channels * max(LEAST_ROW_BYTES - channels * images.dtype.itemsize, 0)


def _calls(
    problem: ConvolutionProblem | FusedConvolutionProblem, launch: Launch, figures: DeviceFigures, elsewhere: Otherwise
) -> Calls:
    params, operands = launch.params(), (Place(0), Place(1), Place(len(problem.inputs)))
    others, maps = finish(params, problem), residual_map(problem, launch.output_map)
    calls = launch.calls(params, operands, others, maps, figures)
    places = (*operands, *(place for place, _ in maps.values()))
    return where_aligned(tuple((place, ALIGNMENT_BYTES) for place in places), calls, elsewhere)
