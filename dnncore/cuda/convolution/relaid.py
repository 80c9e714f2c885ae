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

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dnncore.backend import Bounded, Offer
from dnncore.choice import fastest
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, Place, aligned, rewired
from dnncore.cuda.tensor import ADD
from dnncore.cuda.unit import Unit
from dnncore.descriptors import Layout, MathType, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import AddProblem, ConvolutionProblem, FusedConvolutionProblem

__all__ = ["FIELDS", "RelaidConvolution", "copying_seconds", "operands_of", "with_copies"]

FIELDS = {"dx": "x", "dw": "w", "dy": "y"}
"""Fields of problems by the names of operands that are gradients."""

_DTYPES = (DType.FLOAT16, DType.BFLOAT16)


@dataclass(frozen=True)
class RelaidConvolution(Bounded):
    """A convolution by channels-last algorithms, operands of other layouts copied. Immutable.

    Args:
        name: See `backend.Algorithm`.
        algorithms: What computes: for channels-last operands, without a copy.
    """

    name: str
    algorithms: tuple[CudaAlgorithm, ...]

    def units(self) -> tuple[Unit, ...]:
        """None of its own: those of transforms and of the algorithms."""
        return ()

    def least_seconds(self, problem: ConvolutionProblem | FusedConvolutionProblem, figures: DeviceFigures) -> float:
        """What the copies take at least: a launch for each, and its bytes."""
        return copying_seconds(_relaid(problem).values(), figures)

    def offer(self, problem: ConvolutionProblem | FusedConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """What the copies and the fastest of the algorithms take together."""
        is_tf32 = problem.x.dtype is DType.FLOAT32 and problem.convolution.math is MathType.TF32
        if problem.x.dtype not in _DTYPES and not is_tf32:
            return f"x is {problem.x.dtype.value}; copies pay where matrix units are many times faster: with 16 bits or tf32"
        if problem.x.ndim != 4:
            return f"{problem.x.ndim - 2} spatial dimensions; it has 2"
        relaid = _relaid(problem)
        if not relaid:
            return "channels are innermost already"
        fields: dict[str, Any] = {FIELDS.get(name, name): tensor for name, tensor in relaid.items()}
        inner = replace(problem, **fields)
        found = fastest(self.algorithms, inner, figures)
        if found is None:
            return f"with channels innermost: {self.algorithms[0].offer(inner, figures)}"
        return with_copies(problem, relaid, found[1], figures)


def operands_of(problem: ConvolutionProblem | FusedConvolutionProblem) -> dict[str, TensorDescriptor]:
    """All operands by name, in the order of their places."""
    return dict(zip((*problem.input_names, *problem.output_names), (*problem.inputs, *problem.outputs), strict=True))


def _relaid(problem: ConvolutionProblem | FusedConvolutionProblem) -> dict[str, TensorDescriptor]:
    """The operands that are copied, as they are in the workspace."""
    return {
        name: TensorDescriptor.packed(tensor.shape, tensor.dtype, Layout.NHWC)
        for name, tensor in operands_of(problem).items()
        if name not in ("scale", "bias") and tensor.shape[1] > 1 and tensor.strides[1] != 1
    }


def copying_seconds(copies: Collection[TensorDescriptor], figures: DeviceFigures) -> float:
    """What so many copies take at least."""
    copied = sum(2 * tensor.nbytes for tensor in copies)
    return max(copied / figures.bytes_per_second, len(copies) * figures.launch_seconds)


def with_copies(
    problem: ConvolutionProblem | FusedConvolutionProblem,
    relaid: Mapping[str, TensorDescriptor],
    convolution: Offer,
    figures: DeviceFigures,
) -> Offer:
    """What copies of operands, and a convolution with these in their places, take together.

    Args:
        problem: Whose operands are copied.
        relaid: Those, by name, as they are in the workspace, in the problem's shapes.
        convolution: What it takes with the copies.
        figures: Of the device.
    """
    moves = {}
    for name, tensor in relaid.items():
        old = operands_of(problem)[name]
        move = AddProblem(tensor, old) if name in problem.output_names else AddProblem(old, tensor)
        copy = fastest(ADD, move, figures, lambda offer: not offer.workspace_bytes)
        assert copy is not None, "the last algorithm copies everything, without a workspace"
        moves[name] = copy[1]
    own_bytes = sum(aligned(tensor.nbytes) for tensor in relaid.values())
    return replace(
        convolution,
        seconds=convolution.seconds + sum(move.seconds for move in moves.values()),
        prepare=partial(_calls, problem, relaid, moves, convolution.prepare, own_bytes),
        workspace_bytes=own_bytes + convolution.workspace_bytes,
    )


def _calls(
    problem: ConvolutionProblem | FusedConvolutionProblem,
    relaid: Mapping[str, TensorDescriptor],
    moves: dict[str, Offer],
    prepare: Callable[[], Calls],
    own_bytes: int,
) -> Calls:
    names = tuple(operands_of(problem))
    given = {name: Place(i) for i, name in enumerate(names)}
    copies, offset = {}, 0
    for name, tensor in relaid.items():
        copies[name] = Place(WORKSPACE, offset)
        offset += aligned(tensor.nbytes)
    (output,) = problem.output_names
    calls: list[Calls] = [
        rewired(move.prepare(), (given[name], copies[name]), alpha=1.0, beta=0.0)
        for name, move in moves.items()
        if name != output
    ]
    places = tuple(copies.get(name, given[name]) for name in names)
    # The operation's alpha is the matrix units': sums beyond the range of 16 bits may be within it when they are scaled.
    factors = {"beta": 0.0} if output in copies else {}
    calls.append(rewired(prepare(), places, Place(WORKSPACE, own_bytes), **factors))
    if output in copies:
        calls.append(rewired(moves[output].prepare(), (copies[output], given[output]), alpha=1.0))
    return tuple(call for some in calls for call in some)
