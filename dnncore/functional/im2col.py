"""Patches of images as the columns of a matrix, and their sum back into images."""

from __future__ import annotations

import math

from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.descriptors.settings import each
from dnncore.errors import BadParamError
from dnncore.formats import with_leading, without_leading
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, remembered
from dnncore.functional.shapes import Extents, image
from dnncore.problems import Col2ImProblem, Im2ColProblem
from dnncore.tensor import Tensor

__all__ = ["fold", "unfold"]


def _spatial_ndim(extents: Extents) -> int:
    """Two, as PyTorch has it, unless there is a number for each dimension."""
    return 2 if isinstance(extents, int) else len(extents)


@remembered
def _unfold(
    kernel_size: Extents, dilation: Extents, padding: Extents, stride: Extents, given: TensorDescriptor
) -> Operation:
    ndim = _spatial_ndim(kernel_size)
    x, taps = image(given, ndim), each(kernel_size, ndim, "kernel_size")
    conv = ConvolutionDescriptor.make(ndim, padding=padding, stride=stride, dilation=dilation)
    places = conv.output_shape(x.shape, (1, x.shape[1], *taps))[2:]
    columns = TensorDescriptor.packed((x.shape[0], x.shape[1] * math.prod(taps), math.prod(places)), x.dtype)
    draft = Draft(1, columns if x is given else without_leading(columns))
    draft.step(Im2ColProblem(x, columns, conv, taps), 0, *draft.results)
    return draft.operation()


def unfold(
    input: Operand, kernel_size: Extents, dilation: Extents = 1, padding: Extents = 0, stride: Extents = 1
) -> Tensor:
    """Columns [N, C * taps, places] of x [N, C, H, W]: what each tap of a window meets at each place, 0 in the padding.

    Args:
        input: [N, C, *spatial], or [C, *spatial], which gives [C * taps, places]; floating-point or int8.
        kernel_size: Extents of the window: one number for two dimensions, or one for each of as many as there are.
        dilation: Distance between taps.
        padding: Zeros before and after.
        stride: Steps of the window.
    """
    return compute(_unfold, (kernel_size, dilation, padding, stride), input)[0]


@remembered
def _fold(
    output_size: Extents,
    kernel_size: Extents,
    dilation: Extents,
    padding: Extents,
    stride: Extents,
    given: TensorDescriptor,
) -> Operation:
    ndim = _spatial_ndim(output_size)
    extents, taps = each(output_size, ndim, "output_size"), each(kernel_size, ndim, "kernel_size")
    if given.ndim not in (2, 3):
        raise BadParamError(f"input has shape {given.shape}; [N, C * taps, places] or [C * taps, places] is needed")
    columns = with_leading(given, 3)
    count = math.prod(taps)
    if count < 1 or columns.shape[1] % count:
        raise BadParamError(
            f"input {given.shape} has {columns.shape[1]} rows, no multiple of the {count} taps of {taps}"
        )
    conv = ConvolutionDescriptor.make(ndim, padding=padding, stride=stride, dilation=dilation)
    x = TensorDescriptor.packed((columns.shape[0], columns.shape[1] // count, *extents), columns.dtype)
    draft = Draft(1, x if columns is given else without_leading(x))
    draft.step(Col2ImProblem(columns, x, conv, taps), 0, *draft.results)
    return draft.operation()


def fold(
    input: Operand,
    output_size: Extents,
    kernel_size: Extents,
    dilation: Extents = 1,
    padding: Extents = 0,
    stride: Extents = 1,
) -> Tensor:
    """x [N, C, *output_size] of columns [N, C * taps, places]: each element is the sum of all that `unfold` copies it to.

    Args:
        input: [N, C * taps, places], or [C * taps, places], which gives [C, *output_size].
        output_size: Extents of the result: one number for two dimensions, or one for each of as many as there are.
        kernel_size: As `unfold`; so are dilation, padding and stride.
        dilation: Distance between taps.
        padding: Zeros before and after.
        stride: Steps of the window.
    """
    return compute(_fold, (output_size, kernel_size, dilation, padding, stride), input)[0]
