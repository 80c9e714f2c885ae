"""Which algorithms there are for a convolution whose result is pooled.

Where a kernel does not pool what it has computed before it stores it, that lies in the workspace and is pooled from there: all of
it at once, or some images at a time, in the same place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from dnncore.backend import Offer
from dnncore.choice import fastest
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, Place, aligned, rewired
from dnncore.cuda.convolution.batch_parts import LITTLE_OF_L2, Cuts, calls_of_parts, cut, images
from dnncore.cuda.convolution.fused import FUSED
from dnncore.cuda.convolution.wgmma_pooled import WgmmaPooled
from dnncore.cuda.pooling import FORWARD
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures
from dnncore.problems import PooledConvolutionProblem

__all__ = ["POOLED", "LayerByLayer"]


@dataclass(frozen=True, slots=True)
class LayerByLayer:
    """A fused convolution, then max pooling of its result; it computes everything that is legal. Immutable.

    Args:
        of_l2: Share of the second-level cache that a part's result of the convolution fills; one image may have more. Infinite for
            the whole batch at once.
        name: See `backend.Algorithm`.
    """

    of_l2: float = math.inf
    name: str = "layer_by_layer"

    def units(self) -> tuple[Unit, ...]:
        """None of its own: those of fused convolutions and of pooling."""
        return ()

    def offer(self, problem: PooledConvolutionProblem, figures: DeviceFigures) -> Offer:
        """What both take."""
        cuts = cut(problem.x.shape[0], problem.fused.y.nbytes, figures.l2_bytes * self.of_l2)
        sizes = [end - begin for begin, end in cuts]  # two at most
        parts = {size: _Part.of(problem, size, figures) for size in set(sizes)}
        convolutions = [part.convolution for part in parts.values()]
        own_bytes = max(aligned(part.problem.fused.y.nbytes) for part in parts.values())
        return Offer(
            sum(parts[size].seconds for size in sizes),
            partial(_calls, problem, cuts, parts, own_bytes),
            own_bytes + max(part.further_bytes for part in parts.values()),
            deterministic=all(part.is_deterministic for part in parts.values()),
            math=parts[max(sizes)].convolution.math,
            error_factor=max((one.error_factor for one in convolutions if one.error_factor is not None), default=None),
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """So many images. Immutable.

    Args:
        problem: Of these images.
        convolution: Offer of the convolution.
        pooling: Offer of what follows it.
    """

    problem: PooledConvolutionProblem
    convolution: Offer
    pooling: Offer

    @classmethod
    def of(cls, whole: PooledConvolutionProblem, size: int, figures: DeviceFigures) -> _Part:
        """So many images of a problem."""
        problem = replace(whole, x=images(whole.x, size), y=images(whole.y, size))
        convolution = fastest(FUSED, problem.fused, figures)
        pooling = fastest(FORWARD, problem.pooling, figures)
        assert convolution is not None, "the last algorithm supports everything"
        assert pooling is not None, "the last algorithm supports everything"
        return cls(problem, convolution[1], pooling[1])

    @property
    def seconds(self) -> float:
        """Of both."""
        return self.convolution.seconds + self.pooling.seconds

    @property
    def further_bytes(self) -> int:
        """Scratch memory beside what is pooled."""
        return max(self.convolution.workspace_bytes, self.pooling.workspace_bytes)

    @property
    def is_deterministic(self) -> bool:
        """Whether both are."""
        return self.convolution.deterministic and self.pooling.deterministic

    def calls(self, own_bytes: int) -> Calls:
        """Both steps, for the first images; what is pooled is at the beginning of the workspace."""
        inputs, pooled = [Place(i) for i in range(len(self.problem.inputs))], Place(WORKSPACE)
        y, rest = Place(len(inputs)), Place(WORKSPACE, own_bytes)
        convolution = rewired(self.convolution.prepare(), (*inputs, pooled), rest, alpha=1.0, beta=0.0)
        return *convolution, *rewired(self.pooling.prepare(), (pooled, y), rest)


def _calls(problem: PooledConvolutionProblem, cuts: Cuts, parts: Mapping[int, _Part], own_bytes: int) -> Calls:
    return calls_of_parts(problem, cuts, {size: part.calls(own_bytes) for size, part in parts.items()})


POOLED: tuple[CudaAlgorithm, ...] = (
    WgmmaPooled("implicit_gemm_wgmma", LayerByLayer(LITTLE_OF_L2)),
    LayerByLayer(),
)
"""Of equal estimates the first is taken; the last supports everything that is legal."""
