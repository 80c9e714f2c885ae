"""Which operands of an operation may share memory: an output only with what its problem declares in `in_place`."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.problems import Problem
from dnncore.tensor import Tensor

__all__ = ["check_apart"]


def check_apart(problem: Problem, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Refuse outputs that share memory with an input or with each other.

    An input and an output that `problem.in_place` pairs may be the same memory, seen through equal descriptors.

    Raises:
        BadParamError: two operands share an element; the message names both.
    """
    written = [(tensor, tensor.pointer) for tensor in outputs]
    operands = [*((tensor, tensor.pointer) for tensor in inputs), *written]
    for index, (output, start) in enumerate(written):
        end = start + output.nbytes
        for other_index, (other, other_start) in enumerate(operands[: len(inputs) + index]):
            if max(start, other_start) >= min(end, other_start + other.nbytes):
                continue
            names = (*problem.input_names, *problem.output_names[: len(outputs)])
            name, other_name = names[len(inputs) + index], names[other_index]
            paired = (other_name, name) in problem.in_place
            if paired and start == other_start and output.descriptor == other.descriptor:
                continue
            if not _interleaved(output.descriptor, other.descriptor, other_start - start):
                remedy = "with the same first element and equal descriptors they may" if paired else "it must not"
                raise BadParamError(
                    f"{name} ({output.descriptor}) shares memory with {other_name} ({other.descriptor}): {remedy}"
                )


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
