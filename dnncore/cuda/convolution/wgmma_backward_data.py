"""Backward-data convolution of channels-last images by the kernel of `convolution/wgmma.cuh`: implicit_gemm_wgmma.

Of 16 bits, or of float32 where the caller permits tf32 (`ConvolutionDescriptor.math`).

    dx[n, h, w, c] = sum over (r, s, k)  dy[n, (h + padding - r * dilation) / stride, ..., k] * w[k, r, s, c]

The division is exact only for some r, the same ones for all h with the same remainder by the stride: such places are a phase, a
dense convolution of dy by those taps, last one first. Nothing is rearranged beforehand, but that of float32 filters and channels of
w are exchanged in the workspace, because the matrix units transpose 16 bits alone. A phase that no tap reaches, as three of four of
a 1x1 filter with stride 2, multiplies zeros once.

Where dy has no element, zeros are multiplied, as in `implicit_gemm`, which computes where an operand does not begin at a multiple
of 16 bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from dnncore.backend import Offer
from dnncore.bounds import Searched, Selective
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, Place, aligned, rewired
from dnncore.cuda.convolution.copies import fastest_copy
from dnncore.cuda.convolution.copy_engine import (
    StoresChunks,
    Window,
    are_copied,
    why_not_copied,
    why_not_gathered,
    why_not_stored,
)
from dnncore.cuda.convolution.elsewhere import Otherwise, computing_elsewhere, where_aligned
from dnncore.cuda.convolution.wgmma_launch import OF_MEMORY_RATE, Launch, Phase, fastest, launches, tiles
from dnncore.cuda.convolution.wgmma_tile import (
    DTYPES,
    LONGEST_SUM,
    MOST,
    MOST_PHASES,
    ROW_BYTES,
    TILES,
    least_of_wgmma,
    multiplies,
    unit,
    why_no_wgmma,
)
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["WgmmaBackwardData", "phases"]

_DTYPES = (*DTYPES, DType.FLOAT32)


class _Axis(NamedTuple):
    """One axis of a phase. Immutable.

    Args:
        first_place: Of dx.
        places: How many there are, `stride` apart.
        taps: Those that reach them, last one first.
        first: Place of dy that the first of them meets for the first place.
        step: Places of dy from one tap to the next.
    """

    first_place: int
    places: int
    taps: range
    first: int
    step: int


def _axes(problem: ConvolutionProblem, axis: int) -> list[_Axis]:
    conv = problem.convolution
    stride, dilation, padding = conv.stride[axis], conv.dilation[axis], conv.padding[axis][0]
    extent, count = problem.x.shape[2 + axis], problem.w.shape[2 + axis]
    period = stride // math.gcd(stride, dilation)
    found = []
    for place in range(min(stride, extent)):
        reaching = [r for r in range(count) if (place + padding - r * dilation) % stride == 0]
        taps = range(reaching[-1], -1, -period) if reaching else range(0)
        first = (place + padding - reaching[-1] * dilation) // stride if reaching else 0
        found.append(_Axis(place, -(-(extent - place) // stride), taps, first, dilation * period // stride))
    return found


def _least_macs(problem: ConvolutionProblem) -> int:
    """Multiply-adds of all pixels of dx by the fewest taps that one meets, inside y or not."""
    conv = problem.convolution
    taps = (
        taps // stride if math.gcd(stride, dilation) == 1 else 0
        for taps, stride, dilation in zip(problem.w.shape[2:], conv.stride, conv.dilation, strict=True)
    )
    return problem.x.size * problem.w.shape[0] * math.prod(taps)


@lru_cache(maxsize=4)  # who asks whether they can be gathered takes them afterwards
def phases(problem: ConvolutionProblem) -> tuple[Phase, ...]:
    """The phases of a backward-data problem, those with the longest sums first."""
    x, conv, slab = problem.x, problem.convolution, ROW_BYTES // problem.x.dtype.itemsize
    slabs = -(-problem.w.shape[0] // slab)
    made = [
        _phase(x, conv.stride, slab, slabs, *axes) for axes in itertools.product(_axes(problem, 0), _axes(problem, 1))
    ]
    return tuple(sorted(made, key=lambda phase: -math.prod(phase.taps) * (phase.slabs[1] - phase.slabs[0])))


def _phase(x: TensorDescriptor, stride: tuple[int, ...], slab: int, slabs: int, rows: _Axis, columns: _Axis) -> Phase:
    n, c, _, _ = x.shape
    of_n, of_c, of_h, of_w = x.strides
    dx = TensorDescriptor(
        x.dtype, (n, c, rows.places, columns.places), (of_n, of_c, of_h * stride[0], of_w * stride[1])
    )
    offset_bytes = (rows.first_place * of_h + columns.first_place * of_w) * x.dtype.itemsize
    outputs = rows.places, columns.places
    if not (rows.taps and columns.taps):  # channels behind the last ones are zeros
        nothing = Window(first=(0, 0), outputs=outputs, steps=(1, 1), reach=(0, 0))
        return Phase(nothing, dx, offset_bytes, taps=(1, 1), dilation=(1, 1), slabs=(slabs, slabs + 1), slab=slab)
    taps = len(rows.taps), len(columns.taps)
    dilation = (rows.step if taps[0] > 1 else 1, columns.step if taps[1] > 1 else 1)
    window = Window(
        first=(rows.first, columns.first),
        outputs=outputs,
        steps=(1, 1),
        reach=((taps[0] - 1) * dilation[0], (taps[1] - 1) * dilation[1]),
    )
    return Phase(
        window=window,
        y=dx,
        y_offset_bytes=offset_bytes,
        taps=taps,
        dilation=dilation,
        slabs=(0, slabs),
        first_tap=(rows.taps[0], columns.taps[0]),
        next_tap=(rows.taps.step, columns.taps.step),
        slab=slab,
    )


@dataclass(frozen=True)
class WgmmaBackwardData(Searched, Selective, StoresChunks):
    """A backward-data convolution, of 16 bits without workspace. Immutable.

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
        return tuple(unit(dtype, tile, backward=True) for dtype in _DTYPES for tile in tiles(dtype, backward=True))

    def suits(self, kind: ConvolutionKind) -> bool:
        """Backward-data, channels innermost."""
        return kind.direction is Direction.BACKWARD_DATA and multiplies(kind, _DTYPES) and all(kind.inside)

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What memory takes, or its products at the full rate: of dx's pixels, of which padding may leave fewer than y has.

        Infinite where the copy engine does not take an operand.
        """
        least = least_of_wgmma(problem, figures, _DTYPES)
        if not 0 < least < math.inf:
            return least
        if not are_copied(problem.w, problem.y, problem.x):
            return math.inf
        memory = operand_bytes(problem) / (figures.bytes_per_second * OF_MEMORY_RATE)
        return max(least * min(1.0, _least_macs(problem) / problem.macs), memory)

    def search(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Generator[float, None, Offer | str]:
        """What the fastest tile takes, of equal ones the one with least to do; or the reason why none suits the problem."""
        reason = _why_not(problem, figures) or why_not_stored("dx", problem.x, into_copy=self.into_copy)
        if reason is not None:
            return reason
        exchange = _Exchange.of(problem.w, figures) if problem.x.dtype is DType.FLOAT32 else None
        w = problem.w if exchange is None else exchange.w
        found = launches(problem.y, w, phases(problem), figures.multiprocessors, backward=True)
        nbytes, paces = operand_bytes(problem), [launch.pace(figures) for launch in found]
        seconds, launch = fastest(
            [(pace.seconds(nbytes, figures), pace.busy, launch) for launch, pace in zip(found, paces, strict=True)]
        )
        seconds += 0.0 if exchange is None else exchange.offer.seconds
        yield seconds
        elsewhere = computing_elsewhere(self.elsewhere, problem, figures)
        return Offer(
            seconds,
            partial(_calls, launch, exchange, figures, elsewhere),
            0 if exchange is None else exchange.w.nbytes,
            math="dtype" if exchange is None else "tf32",
        )


@dataclass(frozen=True)
class _Exchange:
    """Filters and channels of w exchanged. Immutable.

    Args:
        w: What comes out, in the workspace: [C, K, R, S] with K innermost.
        offer: What makes it.
    """

    w: TensorDescriptor
    offer: Offer

    @classmethod
    def of(cls, w: TensorDescriptor, figures: DeviceFigures) -> _Exchange:
        (k, c, r, s), (of_k, of_c, of_r, of_s) = w.shape, w.strides
        pitch = aligned(k * w.dtype.itemsize) // w.dtype.itemsize
        exchanged = TensorDescriptor(w.dtype, (c, k, r, s), (r * s * pitch, 1, s * pitch, pitch))
        given = TensorDescriptor(w.dtype, (c, k, r, s), (of_c, of_k, of_r, of_s))
        return cls(exchanged, fastest_copy(given, exchanged, figures))

    def calls(self) -> Calls:
        """From the operand into the workspace."""
        return rewired(self.offer.prepare(), (Place(0), Place(WORKSPACE)), alpha=1.0, beta=0.0)


def _why_not(problem: ConvolutionProblem, figures: DeviceFigures) -> str | None:
    """None where the kernel takes the convolution, as far as `why_not_stored` does not say otherwise of dx, else the reason."""
    x, w, dy = problem.x, problem.w, problem.y
    if problem.direction is not Direction.BACKWARD_DATA:
        return f"it has no {problem.direction.value}"
    reason = why_no_wgmma(problem, figures.architecture, unit(DTYPES[0], TILES[0], backward=True), _DTYPES)
    if reason is not None:
        return reason
    if math.prod(problem.convolution.stride) > MOST_PHASES:
        return f"strides {problem.convolution.stride} make more than {MOST_PHASES} phases"
    summands = w.size // w.shape[1]
    if summands > LONGEST_SUM:
        return f"sums of {summands} products; at most {LONGEST_SUM}"
    counts = (x.size // x.shape[1] + MOST_PHASES * TILES[0].columns, dy.size // dy.shape[1], *w.shape[:2])
    if max(counts) > MOST:
        return f"{counts} pixels of dx and dy, filters and channels; at most {MOST}"
    reason = why_not_copied("dy", dy) or why_not_copied("w", w) or why_not_copied("dx", x)
    if reason is not None:
        return reason
    for phase in phases(problem):
        reason = why_not_gathered(dy, phase.window)
        if reason is not None:
            return reason
    return None


def _calls(launch: Launch, exchange: _Exchange | None, figures: DeviceFigures, elsewhere: Otherwise) -> Calls:
    of_w, of_dy, of_dx = operands = Place(0), Place(1), Place(2)
    before = () if exchange is None else exchange.calls()
    read = of_w if exchange is None else Place(WORKSPACE)
    calls = (*before, *launch.calls(launch.params(), (of_dy, read, of_dx), {}, {}, figures))
    return where_aligned(tuple((place, ALIGNMENT_BYTES) for place in operands), calls, elsewhere)
