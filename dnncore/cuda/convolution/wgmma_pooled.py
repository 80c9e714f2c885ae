"""Convolution by filters of 3 x 3, what follows it, and the largest of each two by two outputs: implicit_gemm_wgmma.

By the patches of `convolution/wgmma_patches.cuh`, in which a thread has all that is compared: what lies between is never in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.bounds import Bounded
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Calls, Place, WhereAligned
from dnncore.cuda.convolution.copy_engine import why_no_matrix, why_not_stored
from dnncore.cuda.convolution.wgmma import forward_phase, why_not_forward
from dnncore.cuda.convolution.wgmma_launch import Launch
from dnncore.cuda.convolution.wgmma_output import finish, why_not_finished
from dnncore.cuda.convolution.wgmma_tile import DTYPES, MOST, POOLED_TILE, SLAB, least_of_wgmma, unit
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures
from dnncore.problems import PooledConvolutionProblem

__all__ = ["WgmmaPooled"]


@dataclass(frozen=True)
class WgmmaPooled(Bounded):
    """A pooled convolution of 16 bits, no workspace. Immutable.

    Args:
        name: See `backend.Algorithm`.
        elsewhere: What computes where an operand does not begin at a multiple of 16 bytes.
    """

    name: str
    elsewhere: CudaAlgorithm

    def units(self) -> tuple[Unit, ...]:
        """One for each dtype."""
        return tuple(unit(dtype, POOLED_TILE, backward=False, pools=True) for dtype in DTYPES)

    def least_seconds(self, problem: PooledConvolutionProblem, figures: DeviceFigures) -> float:
        """What its products take at the full rate."""
        return least_of_wgmma(problem.fused, figures)

    def offer(self, problem: PooledConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """What it takes; or the reason why it does not suit the problem."""
        fused = problem.fused
        plain = fused.plain
        reason = (
            why_not_forward(plain, figures) or why_not_stored("y", problem.y) or why_not_finished(fused, why_no_matrix)
        )
        if reason is not None:
            return reason
        phase = forward_phase(plain, SLAB)._replace(y=problem.y)
        launch = Launch.of(plain.x, plain.w, (phase,), POOLED_TILE, backward=False, pools=True)
        if not launch.suits(figures.multiprocessors):
            return f"filters of {plain.w.shape[2:]}, {plain.convolution}; it takes 3 x 3, next to each other, without strides"
        counts = (plain.y.size // plain.y.shape[1], plain.x.size // plain.x.shape[1], plain.w.shape[0])
        if max(counts) > MOST:
            return f"{counts} pixels of what is pooled and of x, filters; at most {MOST}"
        elsewhere = self.elsewhere.offer(problem, figures)
        if isinstance(elsewhere, str):
            return elsewhere
        return Offer(
            launch.pace(figures).seconds(operand_bytes(problem), figures),
            partial(_calls, problem, launch, figures, elsewhere),
            elsewhere.workspace_bytes,
        )


def _calls(problem: PooledConvolutionProblem, launch: Launch, figures: DeviceFigures, elsewhere: Offer) -> Calls:
    params, operands = launch.params(), (Place(0), Place(1), Place(len(problem.inputs)))
    calls = launch.calls(params, operands, finish(params, problem.fused), {}, figures)
    return (WhereAligned(tuple((place, ALIGNMENT_BYTES) for place in operands), calls, elsewhere.prepare),)
