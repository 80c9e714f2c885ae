"""From what other libraries say of a model's images to a `Preprocessing`. None of these libraries is imported.

None of them looks at EXIF or at alpha. Where an `ExifOrientation` or a `Background` is wanted besides, it goes before the steps:
dataclasses.replace(preprocessing, steps=(ExifOrientation(), *preprocessing.steps)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dnncore.errors import PreprocessingError
from dnncore.preprocessing.decoding import Color
from dnncore.preprocessing.geometry import CenterCrop, GeometricStep, Resize
from dnncore.preprocessing.normalization import ArithmeticStep, Divide, Scale, SubtractMean, SubtractMeanImage
from dnncore.preprocessing.specification import Preprocessing

__all__ = ["from_caffe", "from_timm", "from_torchvision"]

_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)


def from_torchvision(transforms: Any) -> Preprocessing:
    """What a torchvision model's images go through: `Weights.transforms()`, a preset ImageClassification.

    Equal bit for bit to the preset on PIL images in mode RGB, on a CPU.

    Args:
        transforms: Has crop_size, resize_size, mean, std, interpolation and antialias. torchvision ignores antialias=False for PIL
            images and heeds it for tensors; here it means what it says.

    Raises:
        PreprocessingError: it is another preset, or one of its values has no counterpart here.
    """
    missing = [
        name for name in ("crop_size", "resize_size", "mean", "std", "interpolation") if not hasattr(transforms, name)
    ]
    if missing:
        raise PreprocessingError(
            f"{type(transforms).__name__} lacks {', '.join(missing)}; give the preset ImageClassification of Weights.transforms()"
        )
    interpolation = str(getattr(transforms.interpolation, "value", transforms.interpolation))
    resize_size, (crop_h, crop_w) = _numbers(transforms.resize_size), _pair(transforms.crop_size)
    resize = Resize(
        *_pair(transforms.resize_size),
        fit="squash" if len(resize_size) == 2 else "cover",
        interpolation="nearest" if interpolation == "nearest-exact" else interpolation,  # type: ignore[arg-type]
        antialias=getattr(transforms, "antialias", True) is not False or interpolation.startswith("nearest"),
    )
    mean, std = tuple(map(float, transforms.mean)), tuple(map(float, transforms.std))
    return Preprocessing((Color("rgb"), resize, CenterCrop(crop_h, crop_w), *_unit_range(mean, std)))


def from_timm(config: Mapping[str, Any], *, use_test_size: bool = False) -> Preprocessing:
    """What a timm model's images go through when it is evaluated: `model.pretrained_cfg`, or what resolve_data_config returns.

    Equal bit for bit to timm's create_transform(**resolve_data_config(config)) on PIL images, on a CPU.

    Args:
        config: Its keys input_size, interpolation, crop_pct, crop_mode ("center", "squash" or "border"), mean and std count; what
            is missing or None has timm's default. Further keys are left alone.
        use_test_size: Take test_input_size and test_crop_pct where they are given.

    Raises:
        PreprocessingError: a value has no counterpart here; the message names it.
    """

    def setting(name: str, default: Any) -> Any:
        tested = config.get(f"test_{name}") if use_test_size else None
        return tested or config.get(name) or default

    channels, height, width = _shape(setting("input_size", (3, 224, 224)))
    crop_pct, interpolation = setting("crop_pct", 0.875), setting("interpolation", "bicubic")
    mean = tuple(map(float, setting("mean", _IMAGENET_MEAN)))
    std = tuple(map(float, setting("std", _IMAGENET_STD)))
    scaled = (math.floor(height / crop_pct), math.floor(width / crop_pct))
    geometry: tuple[GeometricStep, GeometricStep]
    match mode := config.get("crop_mode") or "center":
        case "squash":
            geometry = Resize(*scaled, interpolation=interpolation), CenterCrop(height, width)
        case "border":
            fill = tuple(round(255 * value) for value in mean)
            resize = Resize(*scaled, fit="contain", interpolation=interpolation, rounding="nearest")
            geometry = resize, CenterCrop(height, width, fill)
        case "center":
            rounding = "down" if scaled[0] == scaled[1] else "nearest"
            resize = Resize(*scaled, fit="cover", interpolation=interpolation, rounding=rounding)  # type: ignore[arg-type]
            geometry = resize, CenterCrop(height, width)
        case _:
            raise PreprocessingError(f"crop_mode {mode!r} is unknown; use center, squash or border")
    return Preprocessing((Color("gray" if channels == 1 else "rgb"), *geometry, *_unit_range(mean, std)))


def from_caffe(
    transform_param: Any,
    *,
    resize: tuple[int, int] = (256, 256),
    channels: int = 3,
    mean_image: np.ndarray | None = None,
) -> Preprocessing:
    """What Caffe's data layer does to an image in phase TEST, after convert_imageset has squashed it to one size.

    (x - mean) * scale on channels in the order blue, green, red, of the middle of the image. Its resize is OpenCV's INTER_LINEAR,
    without antialiasing, in fixed point: ours differs from it by one of 255 at most, in one element of ten. Everything behind it is
    equal bit for bit.

    Args:
        transform_param: A mapping, or an object with attributes, of Caffe's fields scale, mean_value, mean_file, crop_size, mirror,
            force_color and force_gray; what is missing has Caffe's default.
        resize: (rows, columns) that convert_imageset, or new_height and new_width of an ImageData layer, made of each image.
        channels: 3, or 1 for a net on gray images; force_color and force_gray come before it.
        mean_image: What mean_file holds: [C, rows, columns] at the size of `resize`, from which the middle is taken, or at that of
            the crop.

    Raises:
        PreprocessingError: fields contradict each other or lack something; mirror is true, because Caffe then flips at random, also
            in phase TEST: that belongs to training.
    """

    def setting(name: str, default: Any) -> Any:
        value = (
            transform_param.get(name) if isinstance(transform_param, Mapping) else getattr(transform_param, name, None)
        )
        return default if value is None else value

    if setting("mirror", False):
        raise PreprocessingError(
            "mirror is true: Caffe flips at random, also in phase TEST, so that answers would depend on chance; that is for "
            "training: give a transform_param without it"
        )
    force_color, force_gray = bool(setting("force_color", False)), bool(setting("force_gray", False))
    if force_color and force_gray:
        raise PreprocessingError("force_color and force_gray are both true; set one")
    gray = force_gray or (channels == 1 and not force_color)
    crop = int(setting("crop_size", 0))
    steps: list[GeometricStep] = [Resize(*resize, antialias=False)]
    if crop:
        if crop > min(resize):
            raise PreprocessingError(
                f"crop_size {crop} is larger than the image, {resize[0]} x {resize[1]}; give another resize"
            )
        steps.append(CenterCrop(crop, crop, rounding="down"))
    mean = _caffe_mean(tuple(map(float, setting("mean_value", ()))), setting("mean_file", ""), mean_image, resize, crop)
    scale = float(setting("scale", 1.0))
    scaling = (Scale((scale,)),) if scale != 1 else ()
    return Preprocessing((Color("gray" if gray else "bgr"), *steps, *mean, *scaling))


def _caffe_mean(
    mean_value: tuple[float, ...], mean_file: str, mean_image: np.ndarray | None, resize: tuple[int, int], crop: int
) -> tuple[ArithmeticStep, ...]:
    if mean_value and (mean_file or mean_image is not None):
        raise PreprocessingError(f"mean_value {mean_value} and a mean image are both given; Caffe takes one of them")
    if mean_value:
        return (SubtractMean(mean_value),)
    if mean_image is None:
        if mean_file:
            raise PreprocessingError(f"mean_file is {mean_file!r}; read it and give the array as mean_image")
        return ()
    if mean_image.ndim != 3:
        raise PreprocessingError(f"mean_image has shape {list(mean_image.shape)}; [C, rows, columns] is needed")
    if crop and mean_image.shape[1:] == tuple(resize):
        top, left = CenterCrop(crop, crop, rounding="down").offset(*resize)
        mean_image = mean_image[:, top : top + crop, left : left + crop]
    return (SubtractMeanImage.of(mean_image),)


def _unit_range(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[ArithmeticStep, ...]:
    """(x / 255 - mean) / std, rounded as PyTorch does on a CPU."""
    return Divide((255.0,)), SubtractMean(mean), Divide(std)


def _numbers(size: int | Sequence[int]) -> tuple[int, ...]:
    numbers = (size,) if isinstance(size, int) else tuple(size)
    if len(numbers) not in (1, 2):
        raise PreprocessingError(f"size {size} is neither one length nor (rows, columns)")
    return numbers


def _pair(size: int | Sequence[int]) -> tuple[int, int]:
    numbers = _numbers(size)
    return numbers[0], numbers[-1]


def _shape(size: Sequence[int]) -> tuple[int, int, int]:
    if len(size) != 3 or size[0] not in (1, 3):
        raise PreprocessingError(f"input_size {tuple(size)} is not (1 or 3 channels, rows, columns)")
    channels, height, width = size
    return channels, height, width
