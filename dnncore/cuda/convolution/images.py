"""Which algorithms there are for a convolution of images of 8 bits, a net's first layer.

Where no kernel looks pixels up while it loads them, they are normalised into the workspace, some images at a time, and convolved
from there by any algorithm. A part is still in the second-level cache when it is convolved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from dnncore.backend import Offer
from dnncore.choice import fastest
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, Place, aligned, rewired
from dnncore.cuda.convolution.batch_parts import LITTLE_OF_L2, Cuts, calls_of_parts, cut, images
from dnncore.cuda.convolution.fused import FUSED
from dnncore.cuda.convolution.fused_direct import FUSED_DIRECT
from dnncore.cuda.convolution.wgmma_rows import WgmmaRows
from dnncore.cuda.image import NORMALIZATION
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures
from dnncore.problems import ImageConvolutionProblem

__all__ = ["IMAGES", "NormalizedFirst"]

_OF_L2 = 0.4
"""Of the second-level cache, that a part fills, normalised."""


@dataclass(frozen=True, slots=True)
class NormalizedFirst:
    """Normalisation, then a fused convolution, part by part. Immutable.

    Args:
        of_l2: Share of the second-level cache that a part fills, normalised; one image may have more.
        name: See `backend.Algorithm`.
    """

    of_l2: float
    name: str = "normalized_first"

    def offer(self, problem: ImageConvolutionProblem, figures: DeviceFigures) -> Offer:
        """What both take; it computes everything that is legal."""
        cuts = cut(problem.x.shape[0], problem.images.nbytes, figures.l2_bytes * self.of_l2)
        sizes = [end - begin for begin, end in cuts]  # two at most
        parts = {size: _Part.of(problem, size, figures) for size in set(sizes)}
        own_bytes = max(aligned(part.problem.images.nbytes) for part in parts.values())
        convolution = parts[max(sizes)].convolution
        return Offer(
            sum(parts[size].seconds for size in sizes),
            partial(_calls, problem, cuts, parts, own_bytes),
            own_bytes + max(part.convolution.workspace_bytes for part in parts.values()),
            convolution.deterministic,
            convolution.math,
            convolution.error_factor,
        )

    def units(self) -> tuple[Unit, ...]:
        """None of its own: those of normalisations and of fused convolutions."""
        return ()


@dataclass(frozen=True, slots=True)
class _Part:
    """So many images. Immutable.

    Args:
        problem: Of these images.
        normalization: Offer of the lookups.
        convolution: Offer of what follows them.
    """

    problem: ImageConvolutionProblem
    normalization: Offer
    convolution: Offer

    @classmethod
    def of(cls, whole: ImageConvolutionProblem, size: int, figures: DeviceFigures) -> _Part:
        """So many images of a problem."""
        problem = replace(whole, x=images(whole.x, size), y=images(whole.y, size))
        normalization = fastest(NORMALIZATION, problem.normalization, figures)
        convolution = fastest(FUSED, problem.fused, figures)
        assert normalization is not None, "the last algorithm supports everything"
        assert convolution is not None, "the last algorithm supports everything"
        return cls(problem, normalization[1], convolution[1])

    @property
    def seconds(self) -> float:
        """Of both."""
        return self.normalization.seconds + self.convolution.seconds

    def calls(self, own_bytes: int) -> Calls:
        """Both steps, for the first images; normalised they are at the beginning of the workspace."""
        names, normalized = self.problem.input_names, Place(WORKSPACE)
        table, y = names.index("table"), len(names)
        others = [Place(i) for i in range(1, table)]
        lookups = rewired(self.normalization.prepare(), (Place(0), Place(table), normalized), alpha=1.0, beta=0.0)
        rest = Place(WORKSPACE, own_bytes)
        return *lookups, *rewired(self.convolution.prepare(), (normalized, *others, Place(y)), rest)


def _calls(problem: ImageConvolutionProblem, cuts: Cuts, parts: Mapping[int, _Part], own_bytes: int) -> Calls:
    return calls_of_parts(problem, cuts, {size: part.calls(own_bytes) for size, part in parts.items()})


IMAGES: tuple[CudaAlgorithm, ...] = (
    WgmmaRows("implicit_gemm_wgmma_rows", NormalizedFirst(LITTLE_OF_L2)),
    NormalizedFirst(_OF_L2),
    FUSED_DIRECT,
)
"""Of equal estimates the first is taken; the last supports everything that is legal."""
