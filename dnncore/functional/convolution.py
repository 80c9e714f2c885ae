"""Convolution with bias and activation, and transposed convolution."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor, TensorDescriptor
from dnncore.descriptors.settings import each
from dnncore.errors import BadParamError
from dnncore.formats import along_channels, new, without_leading
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, Step, remembered
from dnncore.functional.shapes import Extents, image
from dnncore.problems import AddProblem, ConvolutionProblem, Direction, FusedConvolutionProblem
from dnncore.tensor import Tensor

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]

Padding = int | str | Sequence[int | tuple[int, int]]
"""As `Extents`, also pairs (before, after); or "valid" for none, "same" for as much as keeps the input's extents."""


@remembered
def _forward(
    ndim: int,
    stride: Extents,
    padding: Padding,
    dilation: Extents,
    groups: int,
    activation: ActivationDescriptor | None,
    given: TensorDescriptor,
    w: TensorDescriptor,
    bias: TensorDescriptor | None,
) -> Operation:
    """(x, w, bias) -> y."""
    x = image(given, ndim)
    if not x.dtype.is_floating:
        raise BadParamError(
            f"x is {x.dtype.value}; a floating-point dtype is needed. dnncore.ops.convolution_forward takes int8: its y says "
            "what comes out"
        )
    if isinstance(padding, str):
        padding = _named_padding(padding, w.shape[2:], each(stride, ndim, "stride"), each(dilation, ndim, "dilation"))
    conv = ConvolutionDescriptor.make(ndim, padding=padding, stride=stride, dilation=dilation, groups=groups)
    y = new(conv.output_shape(x.shape, w.shape), x, w)
    draft = Draft(3, y if x is given else without_leading(y))
    (result,) = draft.results
    plain = ConvolutionProblem(Direction.FORWARD, x, w, y, conv)
    if bias is None and activation is None:
        return draft.operation((Step(plain, (0, 1, result)),))
    along = None if bias is None else along_channels(bias, y.ndim)
    read = (0, 1) if along is None else (0, 1, 2)
    fused = (Step(FusedConvolutionProblem(x, w, y, conv, bias=along, activation=activation), (*read, result)),)
    if along is None or activation is not None:
        return draft.operation(fused)
    return draft.operation(fused, (Step(AddProblem(along, y), (2, result)), Step(plain, (0, 1, result), beta=1.0)))


def _named_padding(
    name: str, filter_shape: Sequence[int], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> int | list[tuple[int, int]]:
    if name == "valid":
        return 0
    if name != "same":
        raise BadParamError(f"padding {name!r} is neither valid nor same, nor numbers")
    if set(stride) != {1}:
        raise BadParamError(f'padding "same" keeps the extents of the input, which stride {stride} does not')
    totals = [step * (taps - 1) for step, taps in zip(dilation, filter_shape, strict=False)]
    return [(total // 2, total - total // 2) for total in totals]


def conv1d(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Extents = 1,
    padding: Padding = 0,
    dilation: Extents = 1,
    groups: int = 1,
    *,
    activation: ActivationDescriptor | None = None,
) -> Tensor:
    """y [N, K, L'] = x [N, C, L] correlated with w [K, C/G, S], plus bias [K]; otherwise as `conv2d`."""
    return compute(_forward, (1, stride, padding, dilation, groups, activation), input, weight, bias, optional=1)[0]


def conv2d(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Extents = 1,
    padding: Padding = 0,
    dilation: Extents = 1,
    groups: int = 1,
    *,
    activation: ActivationDescriptor | None = None,
) -> Tensor:
    """y [N, K, P, Q] = x [N, C, H, W] correlated with w [K, C/G, R, S], plus bias [K]; in one launch, rounded once.

    Args:
        input: [N, C, H, W], or [C, H, W], which gives [K, P, Q].
        weight: [K, C/G, R, S].
        bias: [K], of the dtype of the input or its compute type.
        stride: Steps of the filter.
        padding: Zeros before and after; "same" adds what is left over behind, and needs a stride of 1.
        dilation: Distance between the filter's taps.
        groups: G; C and K are cut into G parts that do not see each other.
        activation: Applied to the result in the same launch; PyTorch has no such argument.
    """
    return compute(_forward, (2, stride, padding, dilation, groups, activation), input, weight, bias, optional=1)[0]


def conv3d(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Extents = 1,
    padding: Padding = 0,
    dilation: Extents = 1,
    groups: int = 1,
    *,
    activation: ActivationDescriptor | None = None,
) -> Tensor:
    """y [N, K, *output] = x [N, C, D, H, W] correlated with w [K, C/G, T, R, S], plus bias [K]; otherwise as `conv2d`."""
    return compute(_forward, (3, stride, padding, dilation, groups, activation), input, weight, bias, optional=1)[0]


@remembered
def _transposed(
    ndim: int,
    stride: Extents,
    padding: Extents,
    output_padding: Extents,
    groups: int,
    dilation: Extents,
    given: TensorDescriptor,
    w: TensorDescriptor,
    bias: TensorDescriptor | None,
) -> Operation:
    """(y, w, bias) -> x, in the words of the convolution whose adjoint this is."""
    y = image(given, ndim)
    if w.ndim != ndim + 2:
        raise BadParamError(f"w has shape {w.shape}; [C, K/G, *filter] with {ndim} spatial dimensions is needed")
    if w.shape[0] != y.shape[1]:
        raise BadParamError(f"input has {y.shape[1]} channels, weight {w.shape} needs {w.shape[0]}")
    conv = ConvolutionDescriptor.make(ndim, padding=padding, stride=stride, dilation=dilation, groups=groups)
    extra = each(output_padding, ndim, "output_padding")
    if any(not 0 <= one < step for one, step in zip(extra, conv.stride, strict=True)):
        raise BadParamError(f"output_padding {extra} must be 0 or more and less than the stride {conv.stride}")
    spatial = [
        (y.shape[2 + i] - 1) * conv.stride[i]
        - sum(conv.padding[i])
        + conv.dilation[i] * (w.shape[2 + i] - 1)
        + 1
        + extra[i]
        for i in range(ndim)
    ]
    if min(spatial) < 0:
        raise BadParamError(f"padding {conv.padding} leaves no output of {y.shape} with filter {w.shape}: {spatial}")
    x = new((y.shape[0], w.shape[1] * groups, *spatial), y, w)
    draft = Draft(3, x if y is given else without_leading(x))
    if bias is not None:
        if bias.shape != x.shape[1:2]:
            raise BadParamError(f"bias has shape {bias.shape} but the result {x.shape} needs {x.shape[1:2]}")
        draft.step(AddProblem(along_channels(bias, x.ndim), x), 2, *draft.results)
    problem = ConvolutionProblem(Direction.BACKWARD_DATA, x, w, y, conv)
    draft.step(problem, 1, 0, *draft.results, beta=0.0 if bias is None else 1.0)
    return draft.operation()


def conv_transpose1d(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Extents = 1,
    padding: Extents = 0,
    output_padding: Extents = 0,
    groups: int = 1,
    dilation: Extents = 1,
) -> Tensor:
    """The adjoint of `conv1d` in its input, of x [N, C, L] with w [C, K/G, S], plus bias [K]; otherwise as `conv_transpose2d`."""
    return compute(
        _transposed, (1, stride, padding, output_padding, groups, dilation), input, weight, bias, optional=1
    )[0]


def conv_transpose2d(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Extents = 1,
    padding: Extents = 0,
    output_padding: Extents = 0,
    groups: int = 1,
    dilation: Extents = 1,
) -> Tensor:
    """The adjoint of `conv2d` in its input, of x [N, C, H, W] with w [C, K/G, R, S], plus bias [K].

    An extent of the result is (H - 1) * stride - 2 * padding + dilation * (R - 1) + output_padding + 1.

    Args:
        input: [N, C, H, W], or [C, H, W].
        weight: [C, K/G, R, S].
        bias: [K].
        stride: That of the convolution.
        padding: Likewise.
        output_padding: Places more at the end, fewer than the stride: the inputs of a strided convolution with one output differ by
            so many.
        groups: G.
        dilation: That of the convolution.
    """
    return compute(
        _transposed, (2, stride, padding, output_padding, groups, dilation), input, weight, bias, optional=1
    )[0]


def conv_transpose3d(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Extents = 1,
    padding: Extents = 0,
    output_padding: Extents = 0,
    groups: int = 1,
    dilation: Extents = 1,
) -> Tensor:
    """The adjoint of `conv3d` in its input, of x [N, C, D, H, W] with w [C, K/G, T, R, S], plus bias [K]; otherwise as in 2D."""
    return compute(
        _transposed, (3, stride, padding, output_padding, groups, dilation), input, weight, bias, optional=1
    )[0]
