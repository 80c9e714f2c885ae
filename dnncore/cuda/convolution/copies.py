"""Convolutions over copies of operands, which lie in the workspace as an algorithm wants them.

The result is rounded once, and once more where a launch blends it with what the output held and that is a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from dnncore.backend import Offer
from dnncore.choice import composed, searching
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import WORKSPACE, Calls, Place, aligned, rewired
from dnncore.cuda.convolution.operands import operands_of
from dnncore.cuda.elementwise import Elementwise, layout_of
from dnncore.cuda.tensor import COPY, COPY_TO_ANOTHER_INNERMOST, COPY_TO_THE_SAME_INNERMOST
from dnncore.cuda.traffic import operand_bytes
from dnncore.cuda.transpose import Matrices
from dnncore.descriptors import TensorDescriptor
from dnncore.figures import DeviceFigures
from dnncore.problems import AddProblem, ConvolutionProblem, FusedConvolutionProblem

__all__ = ["copying_seconds", "fastest_copy", "searching_with_copies"]

_Problem = ConvolutionProblem | FusedConvolutionProblem


def copying_seconds(copies: Collection[TensorDescriptor], figures: DeviceFigures) -> float:
    """What so many copies to other layouts take at least: a launch each, and their bytes at the rate of the fastest copy.

    A little less, for what rounding adds.
    """
    copied = 2 * sum([tensor.size * tensor.dtype.itemsize for tensor in copies])
    of_memory_rate, _ = COPY[0]
    memory = copied / (figures.bytes_per_second * of_memory_rate)
    return (len(copies) * figures.launch_seconds + memory) * (1 - 1e-9)


def searching_with_copies(
    problem: _Problem,
    copies: Mapping[str, TensorDescriptor],
    inner_operands: Mapping[str, TensorDescriptor],
    algorithms: Sequence[CudaAlgorithm],
    figures: DeviceFigures,
) -> Generator[float, None, Offer | str]:
    """What copies of operands, and the fastest convolution with these in their places, take together; or why there is none.

    Yields:
        Seconds that it is not below, as `bounds.Searched`.

    Args:
        problem: Whose operands are copied.
        copies: Those, by the problem's fields, as they are in the workspace, in the problem's shapes.
        inner_operands: The same as the convolution over the copies sees them.
        algorithms: What may compute that.
        figures: Of the device.
    """
    given, moves = operands_of(problem), dict[str, Offer]()
    *_, output = given
    if isinstance(problem, ConvolutionProblem):  # `replace` takes twice as long
        x, w, y = (inner_operands.get(name, given[name]) for name in ("x", "w", "y"))
        inner: _Problem = ConvolutionProblem(problem.direction, x, w, y, problem.convolution)
    else:
        fields: dict[str, Any] = dict(inner_operands)
        inner = replace(problem, **fields)

    least = copying_seconds(copies.values(), figures)
    search = searching(algorithms, inner, figures)
    next(search, None)  # what the first bound says is known already
    found = yield from composed(least.__add__, search)
    if found is None:
        return f"over copies: {algorithms[0].offer(inner, figures)}"
    # Copies are worth choosing where something takes them, and may be the fastest.
    convolution = found[1]
    yield least + convolution.seconds
    for name, tensor in copies.items():
        move = (tensor, given[name]) if name == output else (given[name], tensor)
        moves[name] = fastest_copy(*move, figures)
    seconds = convolution.seconds + sum([move.seconds for move in moves.values()])
    yield seconds
    own_bytes = sum([aligned(tensor.nbytes) for tensor in copies.values()])
    return replace(
        convolution,
        seconds=seconds,
        prepare=partial(_calls, problem, copies, moves, convolution.prepare, own_bytes),
        workspace_bytes=own_bytes + convolution.workspace_bytes,
    )


@lru_cache(maxsize=32)
def fastest_copy(source: TensorDescriptor, target: TensorDescriptor, figures: DeviceFigures) -> Offer:
    """The fastest to another layout of the same dtype, without a workspace; those that cannot be it are not asked.

    A fused convolution and one that it is composed of, and both over phases, ask for the same ones.
    """
    problem, found = AddProblem(source, target), None
    nbytes, matrices = operand_bytes(problem), Matrices.of(problem)
    ways = COPY
    if matrices is None:
        ways = COPY_TO_THE_SAME_INNERMOST
    elif matrices.a_row > 1:
        ways = COPY_TO_ANOTHER_INNERMOST
    for of_memory_rate, algorithm in ways:
        memory = nbytes / (figures.bytes_per_second * of_memory_rate)
        if found is not None and found.seconds <= figures.launch_seconds + memory:
            break
        if isinstance(algorithm, Elementwise):
            offer = algorithm.offer_of(layout_of(problem), problem, figures)
        else:
            offer = algorithm.offer(problem, figures)
        if isinstance(offer, Offer) and (found is None or offer.seconds < found.seconds):
            found = offer
    assert found is not None, "the last one copies everything"
    return found


def _calls(
    problem: _Problem,
    copies: Mapping[str, TensorDescriptor],
    moves: dict[str, Offer],
    prepare: Callable[[], Calls],
    own_bytes: int,
) -> Calls:
    names = tuple(operands_of(problem))
    given = {name: Place(i) for i, name in enumerate(names)}
    own, offset, output = {}, 0, names[-1]
    for name, tensor in copies.items():
        own[name] = Place(WORKSPACE, offset)
        offset += aligned(tensor.nbytes)
    calls: list[Calls] = [
        rewired(move.prepare(), (given[name], own[name]), alpha=1.0, beta=0.0)
        for name, move in moves.items()
        if name != output
    ]
    places = tuple(own.get(name, given[name]) for name in names)
    # The operation's alpha is the matrix units': sums beyond the range of 16 bits may be within it when they are scaled.
    factors = {"beta": 0.0} if output in own else {}
    calls.append(rewired(prepare(), places, Place(WORKSPACE, own_bytes), **factors))
    if output in own:
        calls.append(rewired(moves[output].prepare(), (own[output], given[output]), alpha=1.0))
    return tuple(call for some in calls for call in some)
