"""Images: resizing a batch of them, turning them into a net's input, and convolving them as they come."""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.descriptors import ActivationDescriptor, ConvolutionDescriptor
from dnncore.descriptors.settings import wholes
from dnncore.handle import Handle
from dnncore.problems import ImageConvolutionProblem, ImageNormalizationProblem, ImageResizeProblem
from dnncore.tensor import Tensor

__all__ = ["image_convolution", "image_normalization", "image_resize"]


def image_convolution(
    handle: Handle,
    alpha: float,
    x: Tensor,
    table: Tensor | None,
    w: Tensor,
    conv: ConvolutionDescriptor,
    bias: Tensor | None,
    activation: ActivationDescriptor | None,
    beta: float,
    y: Tensor,
    *,
    algorithm: str | None = None,
) -> None:
    """y = activation(conv(table[c, x], w) + bias): `image_normalization` and a fused convolution in one, rounded alike.

    Without a table y = activation(conv(x, w) + bias), x rounded to w's dtype: a cast and a fused convolution in one.

    Args:
        x: [N, C, H, W], 1 to 4 channels: uint8, an image in memory is channels-last; or, without a table, float32.
        table: float32 [C, 256]: what each value of a pixel becomes, rounded to w's dtype. Padding is zeros beside that.
        w: float16, bfloat16 or, of uint8, float32 [K, C, R, S].
        bias: [1, K, 1, 1], of w's dtype or float32.
        activation: None for the identity.
        y: [N, K, P, Q], of w's dtype.
        algorithm: Take the one of this name; None lets the handle's preference choose.
    """
    arguments = (
        *(x.descriptor, w.descriptor, y.descriptor, None if table is None else table.descriptor, conv),
        *(None if bias is None else bias.descriptor, activation),
    )
    inputs = (x, w, *(one for one in (bias, table) if one is not None))
    handle.execute(ImageConvolutionProblem, arguments, alpha, inputs, beta, (y,), algorithm=algorithm)


def image_normalization(
    handle: Handle,
    alpha: float,
    x: Tensor,
    table: Tensor,
    beta: float,
    y: Tensor,
    *,
    mean: Tensor | None = None,
    offset: tuple[int, int] = (0, 0),
    order: Sequence[int] | None = None,
    border: Sequence[int] | None = None,
) -> None:
    """y[n, c, p, q] = table[c, x[n, order[c], top + p, left + q]] - mean[c, p, q]: (pixel * scale - mean) / std, or another table.

    Args:
        x: uint8 [N, C, H, W], 1 to 4 channels; an image in memory is channels-last.
        table: float32 [C, 256]: the result for every value of a pixel (`Normalization.operands` fills it).
        y: float16, bfloat16 or float32 [N, C, P, Q], any strides: this is also where the layout changes.
        mean: float32 [C, P, Q], another one for each place, as Caffe's mean_file.
        offset: (top, left), the pixel of x that is y's first: a crop; negative for a border before it.
        order: For each channel of y that of x.
        border: What pixels outside x are taken for, one per channel of y; None for 0.
    """
    arguments = (
        *(x.descriptor, table.descriptor, y.descriptor, None if mean is None else mean.descriptor),
        *(wholes(offset, "offset"), _settled(order, "order"), _settled(border, "border")),
    )
    inputs = (x, table) if mean is None else (x, table, mean)
    handle.execute(ImageNormalizationProblem, arguments, alpha, inputs, beta, (y,))


def image_resize(
    handle: Handle,
    alpha: float,
    pixels: Tensor,
    images: Tensor,
    taps: Tensor,
    beta: float,
    y: Tensor,
    *,
    border: Sequence[int] | None = None,
    rounds_between: bool = True,
) -> None:
    """Resample N images of different sizes to y, uint8 [N, C, P, Q], as Pillow does in fixed point, bit for bit.

    `dnncore.image_pipeline` fills the operands; `ImageResizeProblem` says what they hold. The caller answers for their indices.

    Args:
        pixels: uint8 [bytes]: the images, each [H, W, C].
        images: int32 [N, 5]: where each begins, the bytes of its rows, where its taps begin, and which axis is first.
        taps: int32 [words]: which rows and columns count for each of y, and with which weights, of 2^22.
        border: The colour where there are no taps; None for 0.
        rounds_between: Whether what the columns are summed from is rounded to 8 bits, as Pillow does.
    """
    tensors = (pixels.descriptor, images.descriptor, taps.descriptor, y.descriptor)
    arguments = (*tensors, _settled(border, "border"), bool(rounds_between))
    handle.execute(ImageResizeProblem, arguments, alpha, (pixels, images, taps), beta, (y,))


def _settled(values: Sequence[int] | None, what: str) -> tuple[int, ...] | None:
    return None if values is None else wholes(values, what)
