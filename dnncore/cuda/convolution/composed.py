"""Fused convolution in two steps: any algorithm's convolution, then its epilogue as a kernel of its own.

For what no kernel with an epilogue computes, or not as fast: a residual that is laid out otherwise than y, few channels. The sums
are stored in x's dtype (of int8: float32), so with 16 bits they are rounded once more than by the other algorithms. They lie in the
workspace or, where y may be overwritten and is of their dtype, in y.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache, lru_cache, partial

import numpy as np

from dnncore.backend import Offer
from dnncore.bounds import Searched
from dnncore.choice import composed, searching
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, Place, aligned, blocks_for, in_order, kernel_call, rewired
from dnncore.cuda.convolution.copy_engine import why_no_matrix
from dnncore.cuda.convolution.direct import DIRECT
from dnncore.cuda.convolution.few_channels import DIRECT_FEW_CHANNELS
from dnncore.cuda.convolution.finished import FINISHED, FINISHED_ALONE
from dnncore.cuda.convolution.fused_product import epilogue_of, why_unlike
from dnncore.cuda.convolution.gemm import GEMM
from dnncore.cuda.convolution.implicit_gemm import IMPLICIT_GEMM
from dnncore.cuda.convolution.implicit_gemm_split_k import IMPLICIT_GEMM_SPLIT_K
from dnncore.cuda.convolution.implicit_precomp_gemm import IMPLICIT_PRECOMP_GEMM
from dnncore.cuda.convolution.plain import algorithms, best_offer
from dnncore.cuda.convolution.space_to_depth import SpaceToDepth
from dnncore.cuda.convolution.wgmma_output import why_not_finished
from dnncore.cuda.gemm import EPILOGUE, fields_of, fill_epilogue
from dnncore.cuda.params import (
    ADDRESS,
    BLEND,
    DIVISOR,
    FLOATING,
    TENSOR_VIEW,
    c_type,
    collapse,
    divisor,
    generate,
    record,
    struct,
    view,
)
from dnncore.cuda.unit import Unit
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.family import Family
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionProblem, Direction, FusedConvolutionProblem

__all__ = ["COMPOSED", "COMPOSED_IN_PLACE"]

_THREADS = 128
_PACK_BYTES = 16

# Of the estimate: what the epilogue's pass over the sums and y reaches on an H200, and its launch.
_OF_MEMORY_RATE = 0.6573
_LAUNCHES = 1.25

_OPERANDS = 4
_PARAMS = struct(
    *BLEND,
    ("epilogue", EPILOGUE),
    ("sums", ADDRESS),
    ("y", ADDRESS),
    ("rows", "<i8"),
    ("row_packs", DIVISOR),
    ("views", TENSOR_VIEW, (_OPERANDS,)),
)


@cache
def _unit(sums: DType, y: DType) -> Unit:
    types = (c_type(sums),) if sums is y else (c_type(sums), c_type(y))
    return generate(
        header="dnncore/convolution/fused_epilogue.cuh",
        entry=f"convolution_fused_epilogue_{'_'.join(types)}",
        function=f"fused_epilogue::fused_epilogue<{c_type(sums)}, {c_type(y)}>",
        struct_name="fused_epilogue::Params",
        dtype=_PARAMS,
        threads=_THREADS,
    )


def _sums_dtype(problem: FusedConvolutionProblem) -> DType:
    return problem.x.dtype if problem.x.dtype.is_floating else DType.FLOAT32


def _sums(problem: FusedConvolutionProblem) -> TensorDescriptor:
    """The convolution's result in the workspace."""
    return _without_gaps(problem.y, _sums_dtype(problem))


@lru_cache(maxsize=8)  # for the bound, and for the search
def _without_gaps(tensor: TensorDescriptor, dtype: DType) -> TensorDescriptor:
    """Of the same shape, its dimensions in the order of the tensor's."""
    shape = tensor.shape
    order = sorted(range(len(shape)), key=lambda axis: (tensor.strides[axis], -axis))
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis] = step
        step *= max(shape[axis], 1)
    return TensorDescriptor(dtype, shape, tuple(strides))


def _params(problem: FusedConvolutionProblem, sums: TensorDescriptor) -> np.ndarray:
    y, channel = problem.y, (0, 1, *(0,) * problem.convolution.spatial_ndim)
    extents, *strides = collapse(y.shape, sums.strides, channel, (problem.z or y).strides, y.strides)
    params = record(
        _PARAMS,
        rows=math.prod(extents[:-1]),
        row_packs=divisor(-(-extents[-1] // (_PACK_BYTES // sums.dtype.itemsize))),
    )
    for i, step in enumerate(strides):
        params["views"][i] = view(extents, step)
    fill_epilogue(params["epilogue"], epilogue_of(problem))
    return params


@dataclass(frozen=True)
class ComposedConvolution(Searched):
    """A convolution by the fastest algorithm that supports it, then the epilogue. Immutable.

    Args:
        name: Its name.
        in_place: Whether the sums lie in y.
    """

    name: str
    in_place: bool = False

    def units(self) -> tuple[Unit, ...]:
        """Those of the epilogue; the others are the convolution's own."""
        return (*(_unit(dtype, dtype) for dtype in FLOATING), _unit(DType.FLOAT32, DType.INT8))

    def least_seconds(self, problem: FusedConvolutionProblem, figures: DeviceFigures) -> float:
        """What the epilogue takes."""
        if self._why_not(problem) is not None:
            return math.inf
        return _with_epilogue(0.0, problem, self._sums(problem), figures)

    def search(self, problem: FusedConvolutionProblem, figures: DeviceFigures) -> Generator[float, None, Offer | str]:
        """What the best plain offer and the epilogue take; with the sums in the workspace it computes everything that is legal."""
        reason = self._why_not(problem)
        if reason is not None:
            return reason
        sums = self._sums(problem)
        if not self.in_place and sums == problem.y and COMPOSED_IN_PLACE._why_not(problem) is None:
            return f"{COMPOSED_IN_PLACE.name} takes as long, and less workspace"
        plain = _plain(problem, sums)
        found = yield from composed(
            lambda seconds: _with_epilogue(seconds, problem, sums, figures),
            searching(_worth_composing(problem, plain), plain, figures),
        )
        assert found is not None, "the last algorithm supports everything"
        return self._offer(problem, sums, found[1], figures)

    def offer(self, problem: FusedConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """The same, asked for by name, whether or not it is had in place."""
        sums = self._sums(problem)
        return self._why_not(problem) or self._offer(problem, sums, best_offer(_plain(problem, sums), figures), figures)

    def _offer(
        self, problem: FusedConvolutionProblem, sums: TensorDescriptor, convolution: Offer, figures: DeviceFigures
    ) -> Offer:
        own_bytes = 0 if self.in_place else aligned(sums.nbytes)
        of_sums = Place(len(problem.inputs)) if self.in_place else Place(WORKSPACE)
        return Offer(
            _with_epilogue(convolution.seconds, problem, sums, figures),
            partial(_calls, problem, sums, of_sums, convolution, own_bytes, figures),
            own_bytes + convolution.workspace_bytes,
            math=convolution.math,
        )

    def _why_not(self, problem: FusedConvolutionProblem) -> str | None:
        """None where the sums may lie where they are to, else the reason."""
        if self.in_place and not problem.overwrites:
            return "y is blended with, or is z, so that it cannot hold the sums"
        if self.in_place and problem.y.dtype is not _sums_dtype(problem):
            return f"the sums are {_sums_dtype(problem).value}, y is {problem.y.dtype.value}"
        return None

    def _sums(self, problem: FusedConvolutionProblem) -> TensorDescriptor:
        return problem.y if self.in_place else _sums(problem)


def _worth_composing(problem: FusedConvolutionProblem, plain: ConvolutionProblem) -> Family[CudaAlgorithm]:
    """Those whose sums may be worth a pass of their own: not what `FUSED` has with the epilogue for less.

    For 16 bits without a residual that is nearly all, since they take the epilogue for next to nothing.
    """
    has_16_bits = problem.x.dtype.itemsize == 2
    if has_16_bits and problem.z is None and why_not_finished(problem, why_no_matrix) is None:
        return _ALONE
    is_another = plain is not problem.plain  # whose sums lie otherwise than y
    if is_another or why_unlike(problem) is not None:
        return algorithms(Direction.FORWARD)
    return _OF_16_BITS if has_16_bits else _UNFINISHED


def _plain(problem: FusedConvolutionProblem, sums: TensorDescriptor) -> ConvolutionProblem:
    """The convolution whose results are the sums; where they lie as y does, the problem's own."""
    if sums == problem.y:
        return problem.plain
    return ConvolutionProblem(Direction.FORWARD, problem.x, problem.w, sums, problem.convolution)


def _with_epilogue(
    seconds: float, problem: FusedConvolutionProblem, sums: TensorDescriptor, figures: DeviceFigures
) -> float:
    """A convolution's, then a launch, and one pass over the sums, y and a residual."""
    nbytes = sum(tensor.nbytes for tensor in (sums, problem.y, problem.z) if tensor is not None)
    memory = nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE)
    return seconds + _LAUNCHES * figures.launch_seconds + memory


def _calls(
    problem: FusedConvolutionProblem,
    sums: TensorDescriptor,
    of_sums: Place,
    convolution: Offer,
    own_bytes: int,
    figures: DeviceFigures,
) -> Calls:
    if not problem.y.size:
        return ()
    params = _params(problem, sums)
    blocks = blocks_for(figures, int(params["rows"]) * int(params["row_packs"]["value"]), _THREADS)
    fields = in_order(None, None, *fields_of(problem.input_names[2:]), "y")
    operands, rest = (Place(0), Place(1), of_sums), Place(WORKSPACE, own_bytes)
    return (
        *rewired(convolution.prepare(), operands, rest, alpha=1.0, beta=0.0),
        *kernel_call(_unit(sums.dtype, problem.y.dtype), blocks, _THREADS, params, {**fields, "sums": of_sums}),
    )


_UNFINISHED = Family([each for each in algorithms(Direction.FORWARD) if each not in FINISHED])
_OF_16_BITS = Family([each for each in _UNFINISHED if not isinstance(each, SpaceToDepth)])
"""In the order of `plain`. Phases in 16 bits are composed of in turn, which is as fast."""

_ALONE: Family[CudaAlgorithm] = Family(
    (
        *(DIRECT_FEW_CHANNELS, IMPLICIT_GEMM_SPLIT_K, IMPLICIT_GEMM, IMPLICIT_PRECOMP_GEMM),
        *(*FINISHED_ALONE, GEMM, DIRECT),
    )
)
"""What no fused convolution does, or by other tiles; the last supports everything that is legal."""

COMPOSED = ComposedConvolution("composed")
COMPOSED_IN_PLACE = ComposedConvolution("composed_in_place", in_place=True)
"""No workspace for the sums; where y has gaps, as a part of a concatenation has, some convolutions write it more slowly."""
