"""Which operands of an operation may share memory: an output only with what its problem declares in `in_place`."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.problems import Problem
from dnncore.tensor import Tensor

__all__ = ["check_apart"]


_NOWHERE = (0, 0)
"""Where an empty tensor lies: before everything else, so that it meets nothing."""


def check_apart(problem: Problem, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Refuse outputs that share memory with an input or with each other.

    An input and an output that `problem.in_place` pairs may be the same memory, seen through equal descriptors.

    Raises:
        BadParamError: two operands share an element; the message names both.
    """
    operands = (*inputs, *outputs)
    spans = [(start := tensor.pointer, start + tensor.nbytes) if tensor.nbytes else _NOWHERE for tensor in operands]
    for index in range(len(inputs), len(operands)):
        start, end = spans[index]
        for other_index in range(index):
            other_start, other_end = spans[other_index]
            if start < other_end and other_start < end:
                _check_pair(problem, operands, index, other_index, other_start - start)


def _check_pair(problem: Problem, operands: Sequence[Tensor], index: int, other_index: int, distance: int) -> None:
    """Refuse an output that shares elements with another operand, which begins `distance` bytes behind it and meets its span."""
    output, other = operands[index].descriptor, operands[other_index].descriptor
    names = (*problem.input_names, *problem.output_names)
    name, other_name = names[index], names[other_index]
    paired = (other_name, name) in problem.in_place
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
