"""Images of 8 bits a channel, resized to one size and turned into a net's input; and images, convolved as they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor, Layout, TensorDescriptor
from dnncore.descriptors.settings import settle, wholes
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.problems.fused_convolution import FusedConvolutionProblem
from dnncore.problems.normalization.operands import OptionalOperands
from dnncore.problems.problem import Operands, writable
from dnncore.problems.tensor import AddProblem

__all__ = ["ImageConvolutionProblem", "ImageNormalizationProblem", "ImageResizeProblem"]

_NARROW = (DType.FLOAT16, DType.BFLOAT16)
_FLOATING = (*_NARROW, DType.FLOAT32)
_MAX_CHANNELS = 4
_MAX_INDEX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ImageNormalizationProblem(OptionalOperands):
    """y[n, c, p, q] = table[c, v] - mean[c, p, q], v being the pixel x[n, order[c], top + p, left + q], or border[c] outside x.

    What is done to pixels one by one has 256 results a channel, so any arithmetic on them is a table, and a device gives the bits
    with which the host filled it.

    Args:
        x: uint8 [N, C, H, W], 1 to 4 channels; as images lie in memory, its layout is NHWC.
        table: float32 [C, 256] without gaps, by the channels of y.
        y: float16, bfloat16 or float32 [N, C, P, Q].
        mean: float32 [C, P, Q]; None for 0.
        offset: (top, left): the pixel of x that is y's first; negative where a border comes before it.
        order: For each channel of y that of x: (2, 1, 0) turns red, green, blue into blue, green, red. None for the same order.
        border: What pixels outside x are taken for, one per channel of y, each 0..255; None for 0.

    Raises:
        BadParamError: dtypes or shapes disagree, or a setting is out of range.
    """

    x: TensorDescriptor
    table: TensorDescriptor
    y: TensorDescriptor
    mean: TensorDescriptor | None = None
    offset: tuple[int, int] = (0, 0)
    order: tuple[int, ...] | None = None
    border: tuple[int, ...] | None = None
    possible_inputs: ClassVar[tuple[str, ...]] = ("x", "table", "mean")
    possible_outputs: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        channels = _check_images("x", self.x)
        top, left = _pair(self.offset, "offset")
        order = tuple(range(channels)) if self.order is None else wholes(self.order, "order")
        settle(self, offset=(top, left), order=order, border=_border(self.border, channels))
        if len(order) != channels or not all(0 <= channel < channels for channel in order):
            raise BadParamError(f"order {order} must name one of the {channels} channels of x for each channel of y")
        if self.y.dtype not in _FLOATING:
            names = ", ".join(dtype.value for dtype in _FLOATING)
            raise BadParamError(f"y is {self.y.dtype.value}; it must be one of {names}")
        if self.y.ndim != 4 or self.y.shape[:2] != self.x.shape[:2]:
            raise BadParamError(f"y has shape {self.y.shape}; x {self.x.shape} gives {[*self.x.shape[:2], 'P', 'Q']}")
        if self.table.dtype is not DType.FLOAT32 or self.table.shape != (channels, 256) or not self.table.is_row_major:
            raise BadParamError(f"table ({self.table}) must be float32 [{channels}, 256] without gaps")
        if self.mean is not None and (self.mean.dtype is not DType.FLOAT32 or self.mean.shape != self.y.shape[1:]):
            raise BadParamError(f"mean ({self.mean}) must be float32 of shape {list(self.y.shape[1:])}")
        if not all(
            abs(start) + extent <= _MAX_INDEX for start, extent in zip((top, left), self.y.shape[2:], strict=True)
        ):
            raise BadParamError(f"offset {self.offset} is out of range")
        writable(y=self.y)


@dataclass(frozen=True, slots=True)
class ImageConvolutionProblem(OptionalOperands):
    """y = activation(conv(images, w) + bias), images being table[c, x[n, c, h, w]] or x, rounded to w's dtype: a first layer.

    The result is that of two problems one after the other: of `conversion`, and of `fused`. Padding is zeros beside the images,
    whatever the table makes of a pixel of 0.

    Args:
        x: [N, C, H, W], 1 to 4 channels. uint8 with a table, whose layout is NHWC as images lie in memory; or float32 without.
        w: float16, bfloat16 or, of uint8, float32 [K, C, R, S]; there is one group.
        y: [N, K, P, Q], of w's dtype.
        table: float32 [C, 256] without gaps: what each value of a pixel becomes; None where x is float32.
        convolution: Padding, stride, dilation, mode, math.
        bias: [1, K, 1, 1], of w's dtype or float32; None for 0.
        activation: None for the identity.

    Raises:
        BadParamError: dtypes or shapes disagree.
    """

    x: TensorDescriptor
    w: TensorDescriptor
    y: TensorDescriptor
    table: TensorDescriptor | None
    convolution: ConvolutionDescriptor
    bias: TensorDescriptor | None = None
    activation: ActivationDescriptor | None = None
    possible_inputs: ClassVar[tuple[str, ...]] = ("x", "w", "bias", "table")
    possible_outputs: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        if self.table is None:
            _check_images("x", self.x, DType.FLOAT32)
            if self.w.dtype not in _NARROW:
                names = " or ".join(dtype.value for dtype in _NARROW)
                raise BadParamError(f"w is {self.w.dtype.value}; without a table x is rounded to {names}")
        _ = self.conversion  # which checks table and w's dtype, and
        _ = self.fused  # everything else

    @property
    def images(self) -> TensorDescriptor:
        """What x becomes, [N, C, H, W], channels-last without gaps: nobody need write it."""
        return TensorDescriptor.packed(self.x.shape, self.w.dtype, Layout.NHWC)

    @property
    def conversion(self) -> ImageNormalizationProblem | AddProblem:
        """The lookups alone, or the rounding; its inputs are x and the table."""
        if self.table is None:
            return AddProblem(self.x, self.images)
        return ImageNormalizationProblem(self.x, self.table, self.images)

    @property
    def fused(self) -> FusedConvolutionProblem:
        """What follows; its inputs are the first ones of this problem."""
        return FusedConvolutionProblem(
            self.images, self.w, self.y, self.convolution, bias=self.bias, activation=self.activation
        )

    @property
    def macs(self) -> int:
        """Multiply-adds of the convolution."""
        return self.fused.macs


@dataclass(frozen=True, slots=True)
class ImageResizeProblem(Operands):
    """Resample N images of different sizes to P x Q in fixed point: along one axis, rounded to 8 bits, and then along the other.

        row(h)[c, q] = clamp((2^21 + sum_i column_weight[i, q] * image[h, column_first[q] + i, c]) >> 22)
        y[n, c, p, q] = clamp((2^21 + sum_j row_weight[j, p] * row(row_first[p] + j)[c, q]) >> 22)

    or columns before rows. With the weights of `dnncore.preprocessing.resampling` that is Pillow's resize bit for bit, then a crop
    or a border. Sizes and weights are operands, so that one plan, and a captured program, serves every batch.

    Args:
        pixels: uint8 [bytes] without gaps: images, each [H, W, C] with the channels innermost, at any places.
        images: int32 [N, 5] without gaps, for each image: where it begins in `pixels`, the bytes from one of its rows to the next,
            where the taps of the result's rows, and of its columns, begin in `taps`, and 1 where columns are added up before
            rows, 0 where rows are first.
        taps: int32 [words] without gaps. For L rows (P) or columns (Q) of the result: L times the first row or column of the image
            that counts, L times how many do (0: the border is there), and then, for the first of these, the second, ..., L times
            its weight, of 2^22. Nothing checks that they stay inside `pixels`, nor that the absolute values of a row's or column's
            weights add up to less than 2 * 2^22, so that sums fit into 32 bits.
        y: uint8 [N, C, P, Q], 1 to 4 channels.
        border: The colour where there are no taps, one value a channel, each 0..255; None for 0.
        rounds_between: False keeps 16 bits after the point between the two, and does not clamp: for interpolation that looks at
            both directions at once, as `dnncore.preprocessing.sampling`.

    Raises:
        BadParamError: dtypes or shapes disagree, or there is more than an int32 can count.

    Source: Pillow, src/libImaging/Resample.c, for 8 bits a channel.
    """

    pixels: TensorDescriptor
    images: TensorDescriptor
    taps: TensorDescriptor
    y: TensorDescriptor
    border: tuple[int, ...] | None = None
    rounds_between: bool = True
    input_names: ClassVar[tuple[str, ...]] = ("pixels", "images", "taps")
    output_names: ClassVar[tuple[str, ...]] = ("y",)

    def __post_init__(self) -> None:
        channels = _check_images("y", self.y)
        settle(self, border=_border(self.border, channels))
        for name, tensor, dtype in (("pixels", self.pixels, DType.UINT8), ("taps", self.taps, DType.INT32)):
            if tensor.dtype is not dtype or tensor.ndim != 1 or not tensor.is_row_major or tensor.size > _MAX_INDEX:
                raise BadParamError(f"{name} ({tensor}) must be {dtype.value}, one dimension without gaps, below 2^31")
        expected = (self.y.shape[0], 5)
        if self.images.dtype is not DType.INT32 or self.images.shape != expected or not self.images.is_row_major:
            raise BadParamError(f"images ({self.images}) must be int32 {list(expected)} without gaps")
        writable(y=self.y)


def _check_images(name: str, tensor: TensorDescriptor, dtype: DType = DType.UINT8) -> int:
    """The channels of images."""
    if tensor.dtype is not dtype or tensor.ndim != 4 or not 1 <= tensor.shape[1] <= _MAX_CHANNELS:
        raise BadParamError(f"{name} ({tensor}) must be {dtype.value} [N, C, H, W] with 1 to {_MAX_CHANNELS} channels")
    return tensor.shape[1]


def _border(values: tuple[int, ...] | None, channels: int) -> tuple[int, ...]:
    border = (0,) * channels if values is None else wholes(values, "border")
    if len(border) != channels or not all(0 <= value <= 255 for value in border):
        raise BadParamError(f"border {border} must have {channels} values of 0..255")
    return border


def _pair(values: tuple[int, int], what: str) -> tuple[int, int]:
    numbers = wholes(values, what)
    if len(numbers) != 2:
        raise BadParamError(f"{what} {numbers} must be two numbers")
    return numbers[0], numbers[1]
