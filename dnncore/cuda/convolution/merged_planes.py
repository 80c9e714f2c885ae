"""Filters of one tap over all images as over one: implicit_gemm_3xtf32_merged.

Images of float32 in planes (NCHW) are copied into the workspace with the planes of a channel side by side, as of one image:

    x  [N, C, H, W] --- copy ---> [1, C, 1, N H W] --- algorithms for planes ---> [1, K, 1, N H W] --- copy ---> y  [N, K, H, W]

Those algorithms want planes that begin at multiples of 16 bytes, and their tiles end with an image: of 7 x 7 pixels neither suits.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

from dnncore.backend import Offer
from dnncore.bounds import Searched, Selective
from dnncore.choice import least_seconds
from dnncore.cuda.algorithm import BoundedAnywhere
from dnncore.cuda.convolution.copies import copying_seconds, searching_with_copies
from dnncore.cuda.convolution.operands import operands_of
from dnncore.cuda.convolution.planes import has_one_tap, why_not_one_tap
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionKind, ConvolutionProblem, FusedConvolutionProblem

__all__ = ["MergedPlanes"]

_IMAGES = ("x", "y", "z")
_ALIGNED = ALIGNMENT_BYTES // DType.FLOAT32.itemsize


@dataclass(frozen=True)
class MergedPlanes(Searched, Selective):
    """A convolution of one tap over copies in which all images are one. Immutable.

    Args:
        name: See `backend.Algorithm`.
        algorithms: What computes: for planes.
    """

    name: str
    algorithms: tuple[BoundedAnywhere, ...]

    def units(self) -> tuple[Unit, ...]:
        """None of its own: those of transforms and of the algorithms."""
        return ()

    def suits(self, kind: ConvolutionKind) -> bool:
        """Filters of one tap, of float32."""
        return kind.dtypes[0] is DType.FLOAT32 and math.prod(kind.taps) == 1

    def least_seconds(self, problem: ConvolutionProblem | FusedConvolutionProblem, figures: DeviceFigures) -> float:
        """What the copies take at least, and the convolution over them, whose tiles end with the last image alone."""
        plain = problem if isinstance(problem, ConvolutionProblem) else problem.plain
        if problem.x.dtype is not DType.FLOAT32 or problem.x.shape[0] <= 1 or not has_one_tap(plain):
            return math.inf
        images = [tensor for name, tensor in operands_of(problem).items() if name in _IMAGES]
        return copying_seconds(images, figures) + least_seconds(self.algorithms, problem, figures)

    def search(
        self, problem: ConvolutionProblem | FusedConvolutionProblem, figures: DeviceFigures
    ) -> Generator[float, None, Offer | str]:
        """What the copies and the fastest of the algorithms take together."""
        plain = problem if isinstance(problem, ConvolutionProblem) else problem.plain
        if problem.x.dtype is not DType.FLOAT32:
            return f"x is {problem.x.dtype.value}; it is for float32"
        if problem.x.ndim != 4:
            return f"{problem.x.ndim - 2} spatial dimensions; it has 2"
        reason = why_not_one_tap(plain)
        if reason is not None:
            return reason
        if problem.x.shape[0] <= 1:
            return f"{problem.x.shape[0]} images are one already"
        copies = _copies(problem)
        as_one = {name: _as_one(tensor) for name, tensor in copies.items()}
        return (yield from searching_with_copies(problem, copies, as_one, self.algorithms, figures))


def _copies(problem: ConvolutionProblem | FusedConvolutionProblem) -> dict[str, TensorDescriptor]:
    """All images, as they are in the workspace: planes of a channel side by side."""
    return {name: _side_by_side(tensor) for name, tensor in operands_of(problem).items() if name in _IMAGES}


def _side_by_side(tensor: TensorDescriptor) -> TensorDescriptor:
    n, _, h, w = tensor.shape
    pitch = -(-n * h * w // _ALIGNED) * _ALIGNED
    return TensorDescriptor(tensor.dtype, tensor.shape, (h * w, pitch, w, 1))


def _as_one(tensor: TensorDescriptor) -> TensorDescriptor:
    n, c, h, w = tensor.shape
    pitch = tensor.strides[1]
    return TensorDescriptor(tensor.dtype, (1, c, 1, n * h * w), (c * pitch, pitch, n * h * w, 1))
