"""What computes where an operand does not begin where a kernel wants it to: another algorithm, or nothing where all do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Calls, Place, WhereAligned
from dnncore.cuda.convolution.direct import DIRECT
from dnncore.cuda.convolution.fused_direct import FUSED_DIRECT
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionProblem, FusedConvolutionProblem, ImageConvolutionProblem

__all__ = ["NOWHERE", "Otherwise", "computing_elsewhere", "where_aligned"]

_Problem = ConvolutionProblem | FusedConvolutionProblem | ImageConvolutionProblem

Otherwise = Callable[[], Calls] | None
"""Makes the calls for operands that begin anywhere; None where there are none such."""


@dataclass(frozen=True)
class _Nowhere:
    """For operands that all lie in the workspace, whose places are multiples of 256 bytes. Immutable."""

    name: str = "nowhere"

    def units(self) -> tuple[Unit, ...]:
        """None."""
        return ()

    def offer(self, _problem: _Problem, _figures: DeviceFigures) -> str:
        """The reason why it is not asked."""
        return "every operand begins at a multiple of 256 bytes"


NOWHERE = _Nowhere()


def computing_elsewhere(algorithm: CudaAlgorithm, problem: _Problem, figures: DeviceFigures) -> Otherwise:
    """What lets an algorithm that takes no workspace solve a problem, or the definition where it cannot, once somebody asks."""
    return None if algorithm is NOWHERE else partial(_calls, algorithm, problem, figures)


def _calls(algorithm: CudaAlgorithm, problem: _Problem, figures: DeviceFigures) -> Calls:
    offer = algorithm.offer(problem, figures)
    if isinstance(offer, str):
        direct: CudaAlgorithm = DIRECT if isinstance(problem, ConvolutionProblem) else FUSED_DIRECT
        offer = direct.offer(problem, figures)
    assert isinstance(offer, Offer), f"{offer}: the definition takes everything"
    assert not offer.workspace_bytes, f"{algorithm.name} takes {offer.workspace_bytes} B that nobody has asked for"
    calls: Calls = offer.prepare()
    return calls


def where_aligned(aligned: tuple[tuple[Place, int], ...], calls: Calls, otherwise: Otherwise) -> Calls:
    """Calls that want operands at multiples of so many bytes, and others where these are not; without others, the calls alone."""
    return calls if otherwise is None else (WhereAligned(aligned, calls, otherwise),)
