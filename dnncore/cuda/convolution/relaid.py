"""Convolution of 16 bits or in tf32 in any layout, by way of copies as matrix units want them: implicit_gemm_wgmma_relaid.

The copy engine gathers channels, so they must be innermost, and each pixel must begin at a multiple of 16 bytes. Where that is not
so, as in PyTorch's default layout or of 65 channels, operands are copied into the workspace first, and the result is copied from
there:

    x  NCHW --- transpose ---> NHWC --+
                                      +--> matrix units --> y  NHWC --- transpose ---> NCHW
    w  KCRS --- transpose ---> KRSC --+

    a pixel of a copy   | channel 0 ... 64 | gap |   whole 16 bytes; nothing fills the gap: the engine reads zeros there

An operand that can be taken as it is stays where it is. Images of so few channels that their rows are laid out by threads
(`image_rows`) may also be copied pixel behind pixel, without gaps. The result is rounded once, and once more where a launch blends
it with what y held. What is computed in between is any algorithm's that wants channels innermost.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from dnncore.backend import Offer
from dnncore.bounds import Searched, Selective
from dnncore.choice import searching
from dnncore.cuda.algorithm import BoundedAnywhere, CudaAlgorithm
from dnncore.cuda.convolution.copies import copying_seconds, searching_with_copies
from dnncore.cuda.convolution.copy_engine import StoresChunks, is_copied, is_stored
from dnncore.cuda.convolution.elsewhere import NOWHERE
from dnncore.cuda.convolution.image_rows import MOST_CHUNKS, chunk_values, row_values
from dnncore.cuda.convolution.operands import operands_of
from dnncore.cuda.convolution.wgmma_tile import multiplies
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES
from dnncore.cuda.unit import Unit
from dnncore.descriptors import Layout, MathType, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.family import Family
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction, FusedConvolutionProblem

__all__ = ["RelaidConvolution"]

_16_BITS = (DType.FLOAT16, DType.BFLOAT16)

_PARAMETERS = ("scale", "bias")
"""Operands that are never copied; no kernel wants them aligned."""

_Problem = ConvolutionProblem | FusedConvolutionProblem


@dataclass(frozen=True)
class RelaidConvolution(Searched, Selective):
    """A convolution by channels-last algorithms, operands that these do not take copied. Immutable.

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
    def _over_copies(self) -> dict[tuple[bool, bool], Family[CudaAlgorithm]]:
        """The algorithms, by whether all operands are copies, and whether the output is one."""
        return {
            (everything, output): Family([_over_copies(each, everything, output) for each in self.algorithms])
            for everything, output in ((False, False), (False, True), (True, True))
        }

    def suits(self, kind: ConvolutionKind) -> bool:
        """Those that matrix units may multiply."""
        return multiplies(kind, (*_16_BITS, DType.FLOAT32)) and len(kind.taps) == 2

    def least_seconds(self, problem: _Problem, figures: DeviceFigures) -> float:
        """What the copies take at least, and their way through memory once more."""
        if not _is_for(problem):
            return math.inf
        copies = _copies(problem)
        if not copies:
            return math.inf
        tensors = (_copies_without_gaps(problem) or copies).values()
        strided = max(problem.convolution.stride) > 1  # what lies between the pixels that are met may be left unread
        read = 0 if strided else sum([tensor.size * tensor.dtype.itemsize for tensor in tensors])
        return copying_seconds(tensors, figures) + read / figures.bytes_per_second

    def search(self, problem: _Problem, figures: DeviceFigures) -> Generator[float, None, Offer | str]:
        """What the copies and the fastest of the algorithms take together."""
        if not _is_for(problem):
            return f"x is {problem.x.dtype.value}; copies pay where matrix units are many times faster: with 16 bits or tf32"
        if problem.x.ndim != 4:
            return f"{problem.x.ndim - 2} spatial dimensions; it has 2"
        copies = _copies(problem)
        if not copies:
            return "the copy engine takes every operand as it is"
        without_gaps = _copies_without_gaps(problem)
        if not without_gaps:
            algorithms = self._algorithms_for(problem, copies)
            return (yield from searching_with_copies(problem, copies, copies, algorithms, figures))
        ways = [_OverCopies(self._algorithms_for(problem, each), each) for each in (copies, without_gaps)]
        found = yield from searching(ways, problem, figures)
        return found[1] if found else ways[0].offer(problem, figures)

    def _algorithms_for(self, problem: _Problem, copies: Mapping[str, TensorDescriptor]) -> Family[CudaAlgorithm]:
        """What computes over some copies, which are aligned: nothing is prepared for operands that are not where all are copies."""
        *names, output = [name for name in operands_of(problem) if name not in _PARAMETERS]
        return self._over_copies[len(copies) > len(names), output in copies]


@dataclass(frozen=True)
class _OverCopies(Searched):
    """The convolution over some copies. Immutable.

    Args:
        algorithms: What computes it.
        copies: By the problem's names.
    """

    algorithms: Family[CudaAlgorithm]
    copies: Mapping[str, TensorDescriptor]
    name: str = "over_copies"

    def least_seconds(self, _problem: _Problem, figures: DeviceFigures) -> float:
        """What the copies take at least."""
        return copying_seconds(self.copies.values(), figures)

    def search(self, problem: _Problem, figures: DeviceFigures) -> Generator[float, None, Offer | str]:
        """What they and the fastest of the algorithms take together."""
        return (yield from searching_with_copies(problem, self.copies, self.copies, self.algorithms, figures))


def _over_copies(algorithm: BoundedAnywhere, everything: bool, output: bool) -> CudaAlgorithm:
    """An algorithm for copies: of all operands, or of some of them, of which the output may be one."""
    changes: dict[str, Any] = {"elsewhere": NOWHERE} if everything else {}
    if output and isinstance(algorithm, StoresChunks):
        changes["into_copy"] = True
    changed: Any = algorithm
    return replace(changed, **changes) if changes else algorithm


def _is_for(problem: _Problem) -> bool:
    """Whether matrix units may multiply its dtype."""
    is_tf32 = problem.x.dtype is DType.FLOAT32 and problem.convolution.math is MathType.TF32
    return is_tf32 or problem.x.dtype in _16_BITS


@lru_cache(maxsize=8)
def _copies(problem: _Problem) -> dict[str, TensorDescriptor]:
    """The operands that the copy engine does not take as they are, as they are in the workspace.

    A filter gradient is stored by threads, which only want its channels to be neighbours.
    """
    operands = operands_of(problem)
    *_, output = operands
    taken = _has_channels_innermost if output == "w" else is_stored
    return {
        name: _with_channels_innermost(tensor)
        for name, tensor in operands.items()
        if name not in _PARAMETERS and not (taken if name == output else is_copied)(tensor)
    }


def _has_channels_innermost(tensor: TensorDescriptor) -> bool:
    return tensor.shape[1] == 1 or tensor.strides[1] == 1


def _copies_without_gaps(problem: _Problem) -> dict[str, TensorDescriptor]:
    """The same for what reads rows of x, pixel behind pixel, and w as it is; none where rows are long, or x has no gaps."""
    copies = _copies(problem)
    x = copies.get("x")
    if x is None or x.strides[3] == x.shape[1] or not _has_short_rows(problem):
        return {}
    if isinstance(problem, ConvolutionProblem) and problem.direction is Direction.BACKWARD_DATA:
        return {}
    found = {name: tensor for name, tensor in copies.items() if name != "w"}
    packed = TensorDescriptor.packed(x.shape, x.dtype, Layout.NHWC)
    if problem.x == packed:
        del found["x"]
    else:
        found["x"] = packed
    return found


def _has_short_rows(problem: _Problem) -> bool:
    """Whether a row of a filter meets few enough values that threads lay them out."""
    return row_values(problem) <= MOST_CHUNKS * chunk_values(problem.x.dtype)


@lru_cache(maxsize=32)  # a residual is as y is, and a convolution with an epilogue has the operands of one without
def _with_channels_innermost(tensor: TensorDescriptor) -> TensorDescriptor:
    """A copy whose pixels begin at multiples of 16 bytes."""
    _, channels, height, width = tensor.shape
    aligned = ALIGNMENT_BYTES // tensor.dtype.itemsize
    pitch = -(-channels // aligned) * aligned
    return TensorDescriptor(tensor.dtype, tensor.shape, (height * width * pitch, 1, width * pitch, pitch))
