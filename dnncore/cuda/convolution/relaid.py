"""Convolution of 16 bits or in tf32 in any layout, by way of channels-last copies for matrix units: implicit_gemm_wgmma_relaid.

The copy engine gathers channels, so they must be innermost. Where they are not, as in PyTorch's default layout, operands are
transposed into the workspace first, and the result is transposed from there:

    x  NCHW --- transpose ---> NHWC --+
                                      +--> matrix units --> y  NHWC --- transpose ---> NCHW
    w  KCRS --- transpose ---> KRSC --+

An operand whose channels are innermost stays where it is. The result is rounded once, and once more where a launch blends it with
what y held. What is computed in between is any algorithm's that wants channels innermost.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from dnncore.backend import Offer
from dnncore.bounds import Searched, Selective
from dnncore.cuda.algorithm import BoundedAnywhere, CudaAlgorithm
from dnncore.cuda.convolution.copies import copying_seconds, searching_with_copies
from dnncore.cuda.convolution.elsewhere import NOWHERE
from dnncore.cuda.convolution.operands import operands_of
from dnncore.cuda.unit import Unit
from dnncore.descriptors import Layout, MathType, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.family import Family
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionKind, ConvolutionProblem, FusedConvolutionProblem

__all__ = ["RelaidConvolution"]

_DTYPES = (DType.FLOAT16, DType.BFLOAT16)
_PARAMETERS = ("scale", "bias")
"""Operands that are never copied; no kernel wants them aligned."""


@dataclass(frozen=True)
class RelaidConvolution(Searched, Selective):
    """A convolution by channels-last algorithms, operands of other layouts copied. Immutable.

    Args:
        name: See `backend.Algorithm`.
        algorithms: What computes: for channels-last operands, without a copy.
    """

    name: str
    algorithms: tuple[BoundedAnywhere, ...]

    def units(self) -> tuple[Unit, ...]:
        """None of its own: those of transforms and of the algorithms."""
        return ()

    @cached_property
    def _of_aligned(self) -> Family[CudaAlgorithm]:
        algorithms: tuple[Any, ...] = self.algorithms
        return Family([replace(each, elsewhere=NOWHERE) for each in algorithms])

    def suits(self, kind: ConvolutionKind) -> bool:
        """Those that matrix units may multiply, with some operand whose channels are not innermost."""
        is_tf32 = kind.dtypes[0] is DType.FLOAT32 and kind.math is MathType.TF32
        return (is_tf32 or kind.dtypes[0] in _DTYPES) and len(kind.taps) == 2 and not all(kind.inside)

    def least_seconds(self, problem: ConvolutionProblem | FusedConvolutionProblem, figures: DeviceFigures) -> float:
        """What the copies take at least, and their way through memory once more."""
        if not _is_for(problem):
            return math.inf
        copies = [tensor for _, tensor in _to_relay(problem)]
        strided = max(problem.convolution.stride) > 1  # what lies between the pixels that are met may be left unread
        read = 0 if strided else sum([tensor.size * tensor.dtype.itemsize for tensor in copies])
        return copying_seconds(copies, figures) + read / figures.bytes_per_second

    def search(
        self, problem: ConvolutionProblem | FusedConvolutionProblem, figures: DeviceFigures
    ) -> Generator[float, None, Offer | str]:
        """What the copies and the fastest of the algorithms take together."""
        if not _is_for(problem):
            return f"x is {problem.x.dtype.value}; copies pay where matrix units are many times faster: with 16 bits or tf32"
        if problem.x.ndim != 4:
            return f"{problem.x.ndim - 2} spatial dimensions; it has 2"
        relaid = _relaid(problem)
        if not relaid:
            return "channels are innermost already"
        # Copies are aligned, so that nothing is prepared for operands that are not where all are copies.
        given = [name for name in operands_of(problem) if name not in _PARAMETERS]
        algorithms = self._of_aligned if len(relaid) == len(given) else self.algorithms
        return (yield from searching_with_copies(problem, relaid, relaid, algorithms, figures))


def _is_for(problem: ConvolutionProblem | FusedConvolutionProblem) -> bool:
    """Whether matrix units may multiply its dtype."""
    is_tf32 = problem.x.dtype is DType.FLOAT32 and problem.convolution.math is MathType.TF32
    return is_tf32 or problem.x.dtype in _DTYPES


def _to_relay(problem: ConvolutionProblem | FusedConvolutionProblem) -> list[tuple[str, TensorDescriptor]]:
    """The operands that are copied, as they are given."""
    return [
        (name, tensor)
        for name, tensor in operands_of(problem).items()
        if name not in _PARAMETERS and tensor.shape[1] > 1 and tensor.strides[1] != 1
    ]


def _relaid(problem: ConvolutionProblem | FusedConvolutionProblem) -> dict[str, TensorDescriptor]:
    """The operands that are copied, as they are in the workspace."""
    return {name: _channels_last(tensor) for name, tensor in _to_relay(problem)}


@lru_cache(maxsize=32)  # a residual is as y is, and a convolution with an epilogue has the operands of one without
def _channels_last(tensor: TensorDescriptor) -> TensorDescriptor:
    return TensorDescriptor.packed(tensor.shape, tensor.dtype, Layout.NHWC)
