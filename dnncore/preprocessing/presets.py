"""Preprocessing by name, for models that come without theirs: what most models of a library have learnt on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

from dnncore.errors import PreprocessingError
from dnncore.preprocessing.mappings import from_caffe, from_timm, from_torchvision
from dnncore.preprocessing.specification import Preprocessing

__all__ = ["PRESETS", "preset"]

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_IMAGENET_BGR = (104.0, 117.0, 123.0)
_CAFFE_IMAGE = 256
_TORCHVISION_RESIZE = 256 / 224
"""Of the crop: 256 for 224, 342 for 299, as the presets of ResNet, VGG and Inception have it. Those of EfficientNet differ."""


def preset(name: str, input_shape: tuple[int, ...]) -> Preprocessing:
    """The preprocessing that goes by a library's name, at the size of a net's input.

    Args:
        name: "torchvision": the shorter side to 8/7 of the crop, bilinear; "timm": the same, bicubic; both with
            ImageNet's mean and deviation. "caffe": squashed to 256 x 256, the crop, BGR from 0 to 255 minus (104, 117, 123).
        input_shape: (3, height, width) of the net's input.

    Raises:
        PreprocessingError: there is none of that name, or it makes no such input.
    """
    if name not in PRESETS:
        raise PreprocessingError(f"no preprocessing is called {name!r}; there are {', '.join(PRESETS)}")
    if len(input_shape) != 3 or input_shape[0] != 3:
        raise PreprocessingError(
            f"{name}'s preprocessing makes images of 3 channels; the net reads {list(input_shape)}"
        )
    return PRESETS[name](*input_shape[1:])


def _torchvision(height: int, width: int) -> Preprocessing:
    return from_torchvision(
        SimpleNamespace(
            crop_size=(height, width),
            resize_size=round(min(height, width) * _TORCHVISION_RESIZE),
            mean=_IMAGENET_MEAN,
            std=_IMAGENET_STD,
            interpolation="bilinear",
        )
    )


def _timm(height: int, width: int) -> Preprocessing:
    return from_timm({"input_size": (3, height, width)})


def _caffe(height: int, width: int) -> Preprocessing:
    if height != width or height > _CAFFE_IMAGE:
        raise PreprocessingError(
            f"Caffe crops squares of images of {_CAFFE_IMAGE} x {_CAFFE_IMAGE}; the net reads {height} x {width}"
        )
    return from_caffe({"crop_size": height, "mean_value": _IMAGENET_BGR}, resize=(_CAFFE_IMAGE, _CAFFE_IMAGE))


PRESETS: Mapping[str, Callable[[int, int], Preprocessing]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "caffe": _caffe,
}
"""By name: from height and width of a net's input."""
