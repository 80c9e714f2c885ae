"""Which algorithms there are for a convolution of images of 8 bits, or of float32 that is rounded: a net's first layer.

Where no kernel looks pixels up or rounds while it loads, images are converted into the workspace, some at a time, and convolved
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
from dnncore.cuda.tensor import ADD
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures
from dnncore.problems import ImageConvolutionProblem

__all__ = ["IMAGES", "ConvertedFirst"]

_OF_L2 = 0.4
"""Of the second-level cache, that a part fills, converted."""


@dataclass(frozen=True, slots=True)
class ConvertedFirst:
    """Lookups or a rounding, then a fused convolution, part by part. Immutable.

    Args:
        of_l2: Share of the second-level cache that a part fills, converted; one image may have more.
        name: See `backend.Algorithm`.
    """

    of_l2: float
    name: str = "converted_first"

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
        """None of its own: those of conversions and of fused convolutions."""
        return ()


@dataclass(frozen=True, slots=True)
class _Part:
    """So many images. Immutable.

    Args:
        problem: Of these images.
        conversion: Offer of the lookups, or of the rounding.
        convolution: Offer of what follows.
    """

    problem: ImageConvolutionProblem
    conversion: Offer
    convolution: Offer

    @classmethod
    def of(cls, whole: ImageConvolutionProblem, size: int, figures: DeviceFigures) -> _Part:
        """So many images of a problem."""
        problem = replace(whole, x=images(whole.x, size), y=images(whole.y, size))
        conversion = fastest(
            ADD if problem.table is None else NORMALIZATION, problem.conversion, figures, _without_workspace
        )
        convolution = fastest(FUSED, problem.fused, figures)
        assert conversion is not None, "the last algorithm supports everything"
        assert convolution is not None, "the last algorithm supports everything"
        return cls(problem, conversion[1], convolution[1])

    @property
    def seconds(self) -> float:
        """Of both."""
        return self.conversion.seconds + self.convolution.seconds

    def calls(self, own_bytes: int) -> Calls:
        """Both steps, for the first images; converted they are at the beginning of the workspace."""
        names, converted = self.problem.input_names, Place(WORKSPACE)
        others = [Place(i) for i, name in enumerate(names) if name not in ("x", "table")]
        tables = [Place(i) for i, name in enumerate(names) if name == "table"]
        conversion = rewired(self.conversion.prepare(), (Place(0), *tables, converted), alpha=1.0, beta=0.0)
        rest, y = Place(WORKSPACE, own_bytes), Place(len(names))
        return *conversion, *rewired(self.convolution.prepare(), (converted, *others, y), rest)


def _without_workspace(offer: Offer) -> bool:
    return not offer.workspace_bytes


def _calls(problem: ImageConvolutionProblem, cuts: Cuts, parts: Mapping[int, _Part], own_bytes: int) -> Calls:
    return calls_of_parts(problem, cuts, {size: part.calls(own_bytes) for size, part in parts.items()})


IMAGES: tuple[CudaAlgorithm, ...] = (
    WgmmaRows("implicit_gemm_wgmma_rows", ConvertedFirst(LITTLE_OF_L2)),
    ConvertedFirst(_OF_L2),
    FUSED_DIRECT,
)
"""Of equal estimates the first is taken; the last supports everything that is legal."""
