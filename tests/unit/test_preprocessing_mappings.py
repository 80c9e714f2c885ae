"""Bit for bit against torchvision and timm, on their CPU path; Caffe against its formula."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from dnncore.errors import PreprocessingError
from dnncore.preprocessing import (
    CenterCrop,
    Color,
    Preprocessing,
    Resize,
    Scale,
    SubtractMean,
    from_caffe,
    from_timm,
    from_torchvision,
    preset,
)
from tests.unit.vision import (
    PHOTOGRAPHS,
    photograph,
    run,
    timm_configs,
    timm_transform,
    torchvision_preset,
    torchvision_presets,
    torchvision_segmentation,
)

CHINA = photograph("china.jpg")  # 640 x 427
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def assert_same_bits(preprocessing: Preprocessing, transform: Any, path: Path) -> None:
    ours, theirs = preprocessing.from_bytes(path.read_bytes()), run(transform, path)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32)), f"differ by {abs(ours - theirs).max()}"


@pytest.mark.parametrize("path", PHOTOGRAPHS, ids=lambda path: path.name)
def test_photographs_come_out_as_from_torchvision_and_timm(path: Path) -> None:
    theirs = torchvision_preset(crop_size=224, resize_size=232)
    assert_same_bits(from_torchvision(theirs), theirs, path)
    config = {"input_size": (3, 192, 256), "interpolation": "bicubic", "crop_pct": 0.95, "crop_mode": "border"}
    assert_same_bits(from_timm(config), timm_transform(config), path)


def test_every_preset_of_torchvision_is_mapped_bit_for_bit() -> None:
    presets = torchvision_presets()
    assert len(presets) > 20
    for theirs in presets:
        assert_same_bits(from_torchvision(theirs), theirs, CHINA)


@pytest.mark.parametrize(("size", "shorter"), [(224, 256), (299, 342)])  # of ResNet and of Inception
def test_presets_by_name_are_those_of_the_libraries_at_the_nets_size(size: int, shorter: int) -> None:
    theirs = torchvision_preset(crop_size=size, resize_size=shorter)
    assert preset("torchvision", (3, size, size)) == from_torchvision(theirs)
    assert preset("timm", (3, size, size)) == from_timm({"input_size": (3, size, size)})


def test_caffes_preset_is_that_of_its_models_of_imagenet() -> None:
    assert preset("caffe", (3, 227, 227)) == from_caffe({"crop_size": 227, "mean_value": [104, 117, 123]})
    for shape, message in (((1, 224, 224), "3 channels"), ((3, 224, 192), "squares"), ((3, 299, 299), "256 x 256")):
        with pytest.raises(PreprocessingError, match=message):
            preset("caffe", shape)
    with pytest.raises(PreprocessingError, match="torchvision, timm, caffe"):
        preset("keras", (3, 224, 224))


def test_every_pretrained_configuration_of_timm_is_mapped_bit_for_bit() -> None:
    configs = timm_configs()
    assert len(configs) > 100
    for config in configs:
        preprocessing = from_timm(config)
        assert preprocessing.input_shape == config["input_size"]
        if config["input_size"][1] <= 512:  # those above are as many settings of the same steps, and slow
            assert_same_bits(preprocessing, timm_transform(config), CHINA)


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"])
@pytest.mark.parametrize(("size", "crop_pct"), [((3, 75, 75), 0.875), ((3, 80, 131), 0.9), ((3, 131, 80), 1.0)])
def test_every_crop_mode_of_timm_with_every_interpolation(
    mode: str, interpolation: str, size: tuple[int, int, int], crop_pct: float
) -> None:
    config = {"input_size": size, "interpolation": interpolation, "crop_pct": crop_pct, "crop_mode": mode, **IMAGENET}
    assert_same_bits(from_timm(config), timm_transform(config), CHINA)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos"])
@pytest.mark.parametrize(("resize", "crop"), [(256, 225), (50, 64), (300, 301)])
def test_every_interpolation_of_torchvision_also_where_the_crop_is_larger_than_the_image(
    mode: str, resize: int, crop: int
) -> None:
    preset = torchvision_preset(crop_size=crop, resize_size=resize, interpolation=mode)
    assert_same_bits(from_torchvision(preset), preset, CHINA)


def test_what_a_configuration_of_timm_leaves_out_has_timms_default() -> None:
    assert from_timm({}) == from_timm(
        {"input_size": (3, 224, 224), "crop_pct": 0.875, "interpolation": "bicubic", **IMAGENET}
    )
    assert_same_bits(from_timm({"crop_pct": None}), timm_transform({"crop_pct": None}), CHINA)
    config = {"input_size": (3, 224, 224), "test_input_size": (3, 288, 288), "test_crop_pct": 1.0}
    assert from_timm(config, use_test_size=True) == from_timm({"input_size": (3, 288, 288), "crop_pct": 1.0})


def test_antialias_false_means_what_it_says() -> None:
    preprocessing = from_torchvision(torchvision_preset(crop_size=224, antialias=False))
    assert preprocessing.steps[1] == Resize(256, 256, fit="cover", antialias=False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: from_torchvision(torchvision_segmentation()), "SemanticSegmentation lacks crop_size"),
        (
            lambda: from_torchvision(SimpleNamespace(**IMAGENET, crop_size=3, resize_size=4, interpolation="cubic")),
            "'cubic' is unknown",
        ),
        (lambda: from_timm({"crop_mode": "corner"}), "crop_mode 'corner'"),
        (lambda: from_timm({"interpolation": "random"}), "'random' is unknown"),
        (lambda: from_timm({"input_size": (4, 224, 224)}), "input_size"),
        (lambda: from_caffe({"mirror": True}), "mirror is true.*training"),
        (lambda: from_caffe({"force_color": True, "force_gray": True}), "both true"),
        (lambda: from_caffe({"crop_size": 257}), "larger than the image"),
        (lambda: from_caffe({"mean_file": "mean.binaryproto"}), "give the array as mean_image"),
        (lambda: from_caffe({"mean_value": [1.0, 2.0]}), "does not fit the 3 channels"),
        (lambda: from_caffe({"mean_value": [1.0]}, mean_image=np.zeros((3, 256, 256))), "both given"),
        (lambda: from_caffe({"crop_size": 8}, mean_image=np.zeros((3, 9, 9))), "mean image has shape"),
        (lambda: from_caffe({"crop_size": 8}, mean_image=np.zeros((9, 9))), r"\[C, rows, columns\] is needed"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(call: Any, message: str) -> None:
    with pytest.raises(PreprocessingError, match=message):
        call()


def test_caffe_subtracts_mean_values_from_blue_green_red_and_then_scales() -> None:
    param = {"crop_size": 227, "mean_value": [104.0, 117.0, 123.0], "scale": 0.017}
    preprocessing = from_caffe(param)
    assert preprocessing == from_caffe(SimpleNamespace(**param, mirror=False))
    assert preprocessing.steps == (
        Color("bgr"),
        Resize(256, 256, antialias=False),
        CenterCrop(227, 227, rounding="down"),
        SubtractMean((104.0, 117.0, 123.0)),
        Scale((0.017,)),
    )
    pixels = preprocessing.decode(CHINA.read_bytes())
    expected = (pixels.astype(np.float32) - np.array([104, 117, 123], np.float32)) * np.float32(0.017)
    assert np.array_equal(preprocessing.from_bytes(CHINA.read_bytes()), expected.transpose(2, 0, 1))


def test_caffe_cuts_the_mean_image_where_it_cuts_the_image() -> None:
    mean = np.random.default_rng(0).random((3, 256, 256), np.float32) * 255
    preprocessing = from_caffe({"crop_size": 225, "mean_file": "mean.binaryproto"}, mean_image=mean)
    at_crop = from_caffe({"crop_size": 225}, mean_image=mean[:, 15:240, 15:240])  # (256 - 225) / 2 = 15.5, down
    assert preprocessing == at_crop
    whole = from_caffe({}).from_bytes(CHINA.read_bytes())
    assert np.array_equal(preprocessing.from_bytes(CHINA.read_bytes()), (whole - mean)[:, 15:240, 15:240])


@pytest.mark.parametrize(
    "extents", [(256, 256), (227, 341), (53, 1000), (480, 640), (1, 7)], ids="{0[0]}x{0[1]}".format
)
def test_caffes_resize_is_opencvs_but_for_one_of_255(extents: tuple[int, int]) -> None:
    """As convert_imageset squashes images: photographs, and noise, of which no neighbours are alike."""
    rng, differing, size = np.random.default_rng(0), 0, 0
    images = [np.asarray(Image.open(path).convert("RGB")) for path in PHOTOGRAPHS[:3]]
    images += [rng.integers(0, 256, (*shape, 3), np.uint8) for shape in ((256, 256), (97, 31), (5, 600))]
    for image in images:
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "PNG")
        ours = from_caffe({}, resize=extents).from_bytes(stream.getvalue())
        theirs = cv2.resize(image[:, :, ::-1], extents[::-1], interpolation=cv2.INTER_LINEAR).transpose(2, 0, 1)
        difference = np.abs(ours - theirs)
        assert difference.max() <= 1
        differing, size = differing + int(np.count_nonzero(difference)), size + difference.size
    assert differing <= size / 7  # OpenCV's weights have 11 bits


@pytest.mark.parametrize(
    ("param", "channels", "color"),
    [({}, 3, "bgr"), ({}, 1, "gray"), ({"force_gray": True}, 3, "gray"), ({"force_color": True}, 1, "bgr")],
)
def test_caffes_colours(param: dict[str, bool], channels: int, color: str) -> None:
    assert from_caffe({**param, "scale": 0.00390625}, resize=(28, 28), channels=channels).color == color
