"""Which algorithms there are for a convolution of images of 8 bits, a net's first layer.

Where no kernel looks pixels up while it loads them, they are normalised into the workspace, some images at a time, and convolved
from there by any algorithm:

    pixels      [ 0 | 1 | 2 | 3 ]
    workspace   [ 0 ]  [ 1 ]  [ 2 ]  [ 3 ]     one after the other, in the same place
    y           [ 0 |    1 |    2 |    3 ]

A part is still in the second-level cache when it is convolved.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial

from dnncore.backend import Offer
from dnncore.choice import fastest
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, Place, aligned, rewired
from dnncore.cuda.convolution.fused import FUSED
from dnncore.cuda.convolution.fused_direct import FUSED_DIRECT
from dnncore.cuda.convolution.wgmma_rows import WgmmaRows
from dnncore.cuda.image import NORMALIZATION
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.figures import DeviceFigures
from dnncore.problems import ImageConvolutionProblem

__all__ = ["IMAGES"]

_MOST_BYTES = 24 << 20
"""Of a part, normalised: about half of an H200's second-level cache."""


@dataclass(frozen=True, slots=True)
class NormalizedFirst:
    """Normalisation, then a fused convolution, part by part. Immutable."""

    name: str = "normalized_first"

    def offer(self, problem: ImageConvolutionProblem, figures: DeviceFigures) -> Offer:
        """What both take; it computes everything that is legal."""
        batch = problem.x.shape[0]
        num_parts = max(min(-(-problem.images.nbytes // _MOST_BYTES), batch), 1)
        cuts = itertools.pairwise(batch * i // num_parts for i in range(num_parts + 1))
        parts = [_Part.of(problem, begin, end, figures) for begin, end in cuts]
        own_bytes = max(aligned(part.problem.images.nbytes) for part in parts)
        return Offer(
            sum(part.normalization.seconds + part.convolution.seconds for part in parts),
            partial(_calls, parts, own_bytes),
            own_bytes + max(part.convolution.workspace_bytes for part in parts),
            all(part.convolution.deterministic for part in parts),
            parts[0].convolution.math,
            parts[0].convolution.error_factor,
        )

    def units(self) -> tuple[Unit, ...]:
        """None of its own: those of normalisations and of fused convolutions."""
        return ()


@dataclass(frozen=True, slots=True)
class _Part:
    """Some images. Immutable.

    Args:
        problem: Of these images.
        first: Which is the first.
        normalization: Offer of the lookups.
        convolution: Offer of what follows them.
    """

    problem: ImageConvolutionProblem
    first: int
    normalization: Offer
    convolution: Offer

    @classmethod
    def of(cls, whole: ImageConvolutionProblem, begin: int, end: int, figures: DeviceFigures) -> _Part:
        """Images of a problem, from one on until before another."""
        problem = replace(whole, x=_images(whole.x, begin, end), y=_images(whole.y, begin, end))
        normalization = fastest(NORMALIZATION, problem.normalization, figures)
        convolution = fastest(FUSED, problem.fused, figures)
        assert normalization is not None, "the last algorithm supports everything"
        assert convolution is not None, "the last algorithm supports everything"
        return cls(problem, begin, normalization[1], convolution[1])

    def calls(self, own_bytes: int) -> Calls:
        """Both steps, the normalised images being at the beginning of the workspace."""
        names = self.problem.input_names
        x, y, normalized = Place(0), Place(len(names)), Place(WORKSPACE)
        x = x.plus(self.first * self.problem.x.strides[0] * self.problem.x.dtype.itemsize)
        y = y.plus(self.first * self.problem.y.strides[0] * self.problem.y.dtype.itemsize)
        others = [Place(i) for i in range(1, names.index("table"))]
        rest = Place(WORKSPACE, own_bytes)
        lookups = rewired(
            self.normalization.prepare(), (x, Place(names.index("table")), normalized), alpha=1.0, beta=0.0
        )
        return *lookups, *rewired(self.convolution.prepare(), (normalized, *others, y), rest)


def _images(tensor: TensorDescriptor, begin: int, end: int) -> TensorDescriptor:
    return tensor.with_shape((end - begin, *tensor.shape[1:]))


def _calls(parts: list[_Part], own_bytes: int) -> Calls:
    return tuple(call for part in parts for call in part.calls(own_bytes))


_NORMALIZED_FIRST = NormalizedFirst()

IMAGES: tuple[CudaAlgorithm, ...] = (
    WgmmaRows("implicit_gemm_wgmma_rows", _NORMALIZED_FIRST),
    _NORMALIZED_FIRST,
    FUSED_DIRECT,
)
"""Of equal estimates the first is taken; the last supports everything that is legal."""
