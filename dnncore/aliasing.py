"""Which operands of an operation may share memory: an output only with what its problem declares in `in_place`."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.problems import Problem

__all__ = ["check_apart"]


def check_apart(problem: Problem, pointers: Sequence[int], nbytes: Sequence[int], num_inputs: int) -> None:
    """Refuse outputs that share memory with an input or with each other.

    An input and an output that `problem.in_place` pairs may be the same memory, seen through equal descriptors.

    Args:
        problem: What the operands are of.
        pointers: Where the inputs and then the outputs begin.
        nbytes: How far each reaches, likewise.
        num_inputs: How many of them are inputs.

    Raises:
        BadParamError: two operands share an element; the message names both.
    """
    if len(pointers) > _FEW:
        _check_many_apart(problem, pointers, nbytes, num_inputs)
        return
    for index in range(num_inputs, len(pointers)):
        start = pointers[index]
        end = start + nbytes[index]
        for other_index in range(index):
            other_start = pointers[other_index]
            # An empty operand begins where it ends, and meets nothing.
            if start < other_start + nbytes[other_index] and other_start < end and start != end and nbytes[other_index]:
                _check_pair(_Named(problem), index, other_index, other_start - start)


_FEW = 32
"""Operands, of which every pair is compared."""


class _Named:
    """What a problem says of its operands, worked out once for all pairs that meet. Immutable."""

    def __init__(self, problem: Problem) -> None:
        self.operands = (*problem.inputs, *problem.outputs)
        self.names = (*problem.input_names, *problem.output_names)
        self.in_place = problem.in_place


def _check_many_apart(problem: Problem, pointers: Sequence[int], nbytes: Sequence[int], num_inputs: int) -> None:
    """The same in the order of their addresses, so that an operand is compared with those alone that have not ended before it."""
    named = _Named(problem)
    reaching: list[int] = []
    for index in sorted((i for i, size in enumerate(nbytes) if size), key=pointers.__getitem__):
        start = pointers[index]
        reaching = [other for other in reaching if pointers[other] + nbytes[other] > start]
        for other in reaching:
            first, last = min(index, other), max(index, other)
            if last >= num_inputs:
                _check_pair(named, last, first, pointers[first] - pointers[last])
        reaching.append(index)


def _check_pair(named: _Named, index: int, other_index: int, distance: int) -> None:
    """Refuse an output that shares elements with another operand, which begins `distance` bytes behind it and meets its span."""
    (name, output), (other_name, other) = ((named.names[i], named.operands[i]) for i in (index, other_index))
    paired = (other_name, name) in named.in_place
    if paired and distance == 0 and output == other:
        return
    if not _interleaved(output, other, distance):
        remedy = "with the same first element and equal descriptors they may" if paired else "it must not"
        raise BadParamError(f"{name} ({output}) shares memory with {other_name} ({other}): {remedy}")


def _interleaved(a: TensorDescriptor, b: TensorDescriptor, distance: int) -> bool:
    """Whether no element of b, which starts `distance` bytes after a, is one of a, as with two channel ranges of one tensor.

    Modulo a stride the elements then fill two spans that do not meet. This proves it for slices of one tensor, not for all layouts.
    """
    for period in {*a.byte_strides, *b.byte_strides} - {0}:
        gap = distance % period
        if _span(a, period) <= gap <= period - _span(b, period):
            return True
    return False


def _span(descriptor: TensorDescriptor, period: int) -> int:
    """Bytes from the first element to the end of the last, without the dimensions that move by whole periods."""
    steps = zip(descriptor.shape, descriptor.byte_strides, strict=True)
    return descriptor.dtype.itemsize + sum((extent - 1) * stride for extent, stride in steps if stride % period)
