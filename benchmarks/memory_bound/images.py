"""Images of 8 bits: resized as Pillow does it, normalised, and convolved as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from PIL import Image

from benchmarks.measurement import Measurement, Part, Sized
from dnncore import RELU, DType, TensorDescriptor
from dnncore.descriptors import ConvolutionDescriptor, Layout
from dnncore.preprocessing import CenterCrop, Resize
from dnncore.preprocessing.resampling import taps
from dnncore.problems import ImageConvolutionProblem, ImageNormalizationProblem, ImageResizeProblem

__all__ = ["images"]

_MEAN, _DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Of ImageNet's red, green and blue, of 255."""

_BATCHES = (128, 1)
_PHOTOGRAPH, _RESIZED, _CROP = (375, 500), 256, 224


def _fill_table(place: int) -> Callable[[Sequence[torch.Tensor]], None]:
    """Writes what each value of a pixel becomes, (value - mean) / deviation."""

    def prepare(inputs: Sequence[torch.Tensor]) -> None:
        table = torch.arange(256, dtype=torch.float64) - torch.tensor(_MEAN, dtype=torch.float64)[:, None]
        inputs[place].copy_(table / torch.tensor(_DEVIATION, dtype=torch.float64)[:, None])

    return prepare


def _kept(arguments: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Mean and deviation on the device."""
    x = arguments[0]
    return tuple(torch.tensor(one, dtype=torch.float32, device=x.device)[:, None, None] for one in (_MEAN, _DEVIATION))


def _normalizations(dtype: DType, sized: Sized) -> Iterator[Measurement]:
    """Channels-last pixels to planes of numbers, as PyTorch's users do it on the device."""
    table, of_torch = TensorDescriptor.packed((3, 256)), getattr(torch, dtype.value)
    for batch in _BATCHES:
        count, _, height, width = sized((batch, 3, _CROP, _CROP))
        shape = (count, 3, height, width)
        x, y = TensorDescriptor.packed(shape, DType.UINT8, Layout.NHWC), TensorDescriptor.packed(shape, dtype)
        yield Measurement(
            f"image-normalization {_CROP} batch {batch}",
            ImageNormalizationProblem(x, table, y),
            (x, y),
            partial(_normalized, of_torch),
            prepare=_fill_table(1),
            kept=_kept,
        )


def _normalized(
    dtype: torch.dtype, x: torch.Tensor, _table: torch.Tensor, mean: torch.Tensor, deviation: torch.Tensor
) -> torch.Tensor:
    return x.float().sub_(mean).div_(deviation).to(dtype, memory_format=torch.contiguous_format)


def _resizes(sized: Sized) -> Iterator[Measurement]:
    """Photographs of one size to squares, Pillow's bits; PyTorch's antialiased resize is of float32, and rounds otherwise."""
    _, _, height, width = sized((1, 3, *_PHOTOGRAPH))
    _, _, crop, _ = sized((1, 3, _CROP, _CROP))
    resized = crop * _RESIZED // _CROP
    steps = Resize(resized, resized, fit="cover"), CenterCrop(crop, crop)
    rows, columns = (one.words for one in taps(steps, height, width))
    row_bytes, image_bytes = 3 * width, 3 * height * width

    def prepare(inputs: Sequence[torch.Tensor]) -> None:
        _, images, words = inputs
        images.copy_(
            torch.tensor(
                [[place * image_bytes, row_bytes, 0, rows.size, 0] for place in range(images.shape[0])],
                dtype=torch.int32,
            )
        )
        words.copy_(torch.from_numpy(np.concatenate([rows, columns])))

    def reference(inputs: Sequence[torch.Tensor]) -> Part:
        pixels = inputs[0][:image_bytes].cpu().numpy().reshape(height, width, 3)
        image = Image.fromarray(pixels)
        for step in steps:
            image = step.apply(image)
        expected = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
        return expected.double().to(inputs[0].device), lambda output: output[:1]

    def of_torch(pixels: torch.Tensor, images: torch.Tensor, _words: torch.Tensor) -> torch.Tensor:
        x = pixels.reshape(images.shape[0], height, width, 3).permute(0, 3, 1, 2).float()
        short = min(height, width)
        size = [height * resized // short, width * resized // short]
        wide = torch.nn.functional.interpolate(x, size=size, mode="bilinear", antialias=True)
        top, left = (size[0] - crop) // 2, (size[1] - crop) // 2
        return wide[:, :, top : top + crop, left : left + crop].round().clamp(0, 255).to(torch.uint8)

    for batch in _BATCHES:
        count = sized((batch, 3, 1, 1))[0]
        pixels = TensorDescriptor.packed((count * image_bytes,), DType.UINT8)
        y = TensorDescriptor.packed((count, 3, crop, crop), DType.UINT8, Layout.NHWC)
        problem = ImageResizeProblem(
            *(pixels, TensorDescriptor.packed((count, 5), DType.INT32)),
            *(TensorDescriptor.packed((rows.size + columns.size,), DType.INT32), y),
        )
        yield Measurement(
            f"image-resize {_PHOTOGRAPH[0]}x{_PHOTOGRAPH[1]} to {_CROP} batch {batch}",
            *(problem, (pixels, y), of_torch),
            prepare=prepare,
            reference=reference,
            exact=True,
        )


def _convolutions(dtype: DType, sized: Sized) -> Iterator[Measurement]:
    """ResNet's first layer, from pixels to what its ReLU gives."""
    layout = Layout.NHWC if dtype.itemsize == 2 else Layout.NCHW
    conv = ConvolutionDescriptor.make(stride=2, padding=3)
    for batch in _BATCHES:
        count, _, extent, _ = sized((batch, 3, 224, 224))
        x, filters = TensorDescriptor.packed((count, 3, extent, extent), DType.UINT8, Layout.NHWC), (64, 3, 7, 7)
        w, bias = TensorDescriptor.packed(filters, dtype, layout), TensorDescriptor.packed((1, 64, 1, 1))
        y = TensorDescriptor.packed(conv.output_shape(x.shape, filters), dtype, layout)
        yield Measurement(
            f"image-convolution 7x7 224 batch {batch}",
            ImageConvolutionProblem(x, w, y, TensorDescriptor.packed((3, 256)), conv, bias, RELU),
            (x, w, y),
            _convolution,
            prepare=_fill_filters_and_table,
            kept=_kept,
        )


def _fill_filters_and_table(inputs: Sequence[torch.Tensor]) -> None:
    inputs[1].mul_(inputs[1][0].numel() ** -0.5)
    _fill_table(3)(inputs)


def _convolution(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, *kept: torch.Tensor) -> torch.Tensor:
    _table, mean, deviation = kept
    images = x.float().sub_(mean).div_(deviation).to(w.dtype)
    return torch.nn.functional.conv2d(images, w, bias.flatten().to(w.dtype), 2, 3).relu_()


def images(dtype: DType, sized: Sized) -> Iterator[Measurement]:
    """Batches of photographs, and one."""
    yield from _normalizations(dtype, sized)
    yield from _convolutions(dtype, sized)
    if dtype is DType.FLOAT32:  # a resize has no other dtype than bytes
        yield from _resizes(sized)
