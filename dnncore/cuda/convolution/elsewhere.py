"""What computes where an operand does not begin where a kernel wants it to: another algorithm, or nothing where all do."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.backend import Offer
from dnncore.cuda.calls import Calls, Place, WhereAligned
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionProblem, FusedConvolutionProblem

__all__ = ["NOWHERE", "where_aligned"]


@dataclass(frozen=True)
class _Nowhere:
    """For operands that all lie in the workspace, whose places are multiples of 256 bytes. Immutable."""

    name: str = "nowhere"

    def units(self) -> tuple[Unit, ...]:
        """None."""
        return ()

    def offer(self, _problem: ConvolutionProblem | FusedConvolutionProblem, _figures: DeviceFigures) -> Offer:
        """No calls, which `where_aligned` takes for never."""
        return Offer(0.0, tuple)


NOWHERE = _Nowhere()


def where_aligned(aligned: tuple[tuple[Place, int], ...], calls: Calls, elsewhere: Offer) -> Calls:
    """Calls that want operands at multiples of so many bytes, and others where these are not; without others, the calls alone."""
    otherwise: Calls = elsewhere.prepare()
    return (WhereAligned(aligned, calls, otherwise),) if otherwise else calls
