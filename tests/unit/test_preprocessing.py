"""The specification, its arithmetic and its JSON; files, geometry and mappings have modules of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dnncore.errors import PreprocessingError
from dnncore.preprocessing import (
    STEPS,
    Background,
    CenterCrop,
    CentralFraction,
    Color,
    Divide,
    ExifOrientation,
    Normalization,
    Preprocessing,
    Resize,
    Scale,
    SubtractMean,
    SubtractMeanImage,
)
from tests.unit.image_files import encode, encode_pixels

GRAY = Preprocessing.squash("gray", 8, 8, 1 / 255, (0.5,), (0.25,))
RGB = Preprocessing.squash("rgb", 5, 7, 1.0, (0.0, 1.0, 2.0), (1.0, 2.0, 4.0))
MEAN_IMAGE = np.random.default_rng(9).random((3, 5, 7), np.float32) * 255
EVERY_STEP = Preprocessing(
    (
        ExifOrientation(),
        Background((255, 128, 0)),
        Color("bgr"),
        CentralFraction(0.875, square=True),
        Resize(9, 9, "cover", "bicubic", antialias=False, rounding="nearest"),
        CenterCrop(5, 7, (1, 2, 3), "down"),
        SubtractMeanImage.of(MEAN_IMAGE),
        SubtractMean((1.5,)),
        Scale((0.017,)),
        Divide((1.0, 2.0, 3.0)),
    ),
    max_pixels=1000,
)


def test_a_png_of_the_nets_size_arrives_pixel_by_pixel() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 1), np.uint8)
    assert np.array_equal(GRAY.decode(encode_pixels(pixels)), pixels)
    expected = (pixels[..., 0] / 255 - 0.5) / 0.25
    assert np.allclose(GRAY.from_bytes(encode_pixels(pixels)), expected[None], atol=1e-6)


def test_channels_come_first_and_in_the_asked_order() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, 3), np.uint8)
    rgb = RGB.normalize(pixels)
    assert rgb.shape == (3, 5, 7)
    assert rgb.flags.c_contiguous
    assert np.allclose(rgb[2], (pixels[..., 2].astype(float) - 2) / 4)
    bgr = Preprocessing.squash("bgr", 5, 7, 1.0, (0.0,) * 3, (1.0,) * 3)
    assert np.array_equal(bgr.decode(encode_pixels(pixels)), pixels[..., ::-1])


def test_a_batch_is_normalised_like_its_images() -> None:
    batch = np.random.default_rng(2).integers(0, 256, (3, 8, 8, 1), np.uint8)
    assert np.array_equal(GRAY.normalize(batch), np.stack([GRAY.normalize(image) for image in batch]))


@pytest.mark.parametrize("color", ["gray", "rgb", "bgr"])
def test_squash_does_bit_for_bit_what_there_was_before_there_were_steps(color: Any) -> None:
    rng = np.random.default_rng(3)
    channels = 1 if color == "gray" else 3
    image = Image.fromarray(rng.integers(0, 256, (50, 61, 3), np.uint8))
    scale, mean, std = 1 / 255, tuple(rng.random(channels)), tuple(rng.random(channels) + 0.1)
    preprocessing = Preprocessing.squash(color, 17, 23, scale, mean, std)
    resized = image.convert("L" if channels == 1 else "RGB").resize((23, 17), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized).reshape(17, 23, channels)[..., :: -1 if color == "bgr" else 1]
    factor = np.float32(1) / np.asarray(std, np.float32)
    expected = (pixels.astype(np.float32) * np.float32(scale) - np.asarray(mean, np.float32)) * factor
    assert preprocessing.from_bytes(encode(image, "PNG")).tobytes() == expected.transpose(2, 0, 1).tobytes()


def test_the_table_gives_every_bit_of_the_arithmetic() -> None:
    normalization = Normalization("bgr", (Divide((255.0,)), SubtractMean((0.4, 0.5, 0.6)), Divide((0.2, 0.3, 0.4))))
    in_file = np.random.default_rng(4).integers(0, 256, (6, 5, 3), np.uint8)
    expected = normalization.apply(in_file[..., ::-1])
    assert normalization.table is not None
    for channel in range(3):
        looked_up = normalization.table[channel, in_file[..., normalization.order[channel]]]
        assert looked_up.tobytes() == expected[channel].tobytes()
    assert not normalization.table.flags.writeable


def test_operations_are_done_in_the_order_in_which_they_stand() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    for steps, expected in (
        ((Scale((3.0,)), SubtractMean((1.0,))), pixels * np.float32(3) - 1),
        ((SubtractMean((1.0,)), Scale((3.0,))), (pixels.astype(np.float32) - 1) * 3),
        ((Divide((255.0,)), Divide((0.3,))), pixels.astype(np.float32) / np.float32(255) / np.float32(0.3)),
        ((), pixels.astype(np.float32)),
    ):
        assert np.array_equal(Normalization("gray", steps).apply(pixels)[0], expected[..., 0])


def test_a_mean_image_is_subtracted_pixel_by_pixel_of_every_image() -> None:
    batch = np.random.default_rng(5).integers(0, 256, (2, 5, 7, 3), np.uint8)
    preprocessing = Preprocessing((Color("rgb"), Resize(5, 7), SubtractMeanImage.of(MEAN_IMAGE), Scale((0.5,))))
    expected = (batch.transpose(0, 3, 1, 2).astype(np.float32) - MEAN_IMAGE) * np.float32(0.5)
    assert np.array_equal(preprocessing.normalize(batch), expected)
    assert preprocessing.normalization.table is None
    assert np.array_equal(preprocessing.normalization.mean_image, MEAN_IMAGE)  # type: ignore[arg-type]


def test_a_specification_says_what_comes_out() -> None:
    assert EVERY_STEP.input_shape == (3, 5, 7)
    assert (EVERY_STEP.color, EVERY_STEP.channels, EVERY_STEP.height, EVERY_STEP.width) == ("bgr", 3, 5, 7)
    assert {type(step).name for step in EVERY_STEP.steps} == set(STEPS)


@pytest.mark.parametrize("preprocessing", [RGB, EVERY_STEP])
def test_the_specification_survives_json(preprocessing: Preprocessing) -> None:
    document = json.loads(json.dumps(preprocessing.to_dict(), allow_nan=False))
    again = Preprocessing.from_dict(document)
    assert (again, hash(again)) == (preprocessing, hash(preprocessing))
    data = encode_pixels(np.random.default_rng(6).integers(0, 256, (30, 20, 3), np.uint8))
    assert again.from_bytes(data).tobytes() == preprocessing.from_bytes(data).tobytes()


@given(st.lists(st.floats(-1e30, 1e30), min_size=3, max_size=3), st.integers(1, 9), st.integers(1, 10**9))
def test_numbers_survive_json(values: list[float], size: int, max_pixels: int) -> None:
    steps = (Color("rgb"), Resize(size, size), SubtractMean(tuple(values)))
    preprocessing = Preprocessing(steps, max_pixels)
    assert Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict()))) == preprocessing


def test_what_a_step_leaves_out_has_the_default() -> None:
    steps = [{"step": "color"}, {"step": "resize", "height": 4, "width": 6}, {"step": "divide", "divisors": [255]}]
    assert Preprocessing.from_dict({"steps": steps}) == Preprocessing((Color(), Resize(4, 6), Divide((255.0,))))


VERSION_1 = {"color": "bgr", "height": 5, "width": 7, "scale": 0.5, "mean": [1.0, 2.0, 3.0], "std": [1.0, 0.3, 4.0]}


def test_a_specification_written_before_there_were_steps_is_read() -> None:
    expected = Preprocessing.squash("bgr", 5, 7, 0.5, (1.0, 2.0, 3.0), (1.0, 0.3, 4.0))
    assert Preprocessing.from_dict(VERSION_1) == expected
    assert Preprocessing.from_dict({**VERSION_1, "max_pixels": 77}) == replace(expected, max_pixels=77)


@pytest.mark.parametrize(
    "change",
    [
        {"color": "cmyk"},
        {"color": ["rgb"]},
        {"mean": [1.0, 2.0]},
        {"std": [0.0, 1.0, 1.0]},
        {"std": [1e-46, 1.0, 1.0]},
        {"height": 0},
        {"height": float("inf")},
        {"mean": [10**400] * 3},
        {"mean": [float("nan")] * 3},
        {"scale": float("nan")},
        {"scale": "much"},
        {"zoom": 2},
        {"mean": None},
        {"max_pixels": 0},
        {"format_version": 1},
        {"steps": []},
    ],
)
def test_bad_specifications_of_that_time_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(PreprocessingError):
        Preprocessing.from_dict({**VERSION_1, **change})


def with_step(**step: object) -> dict[str, object]:
    """A specification that is sound but for this step."""
    return {"steps": [{"step": "color"}, {"step": "resize", "height": 4, "width": 6}, step]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"format_version": 3, "steps": []}, "version 3.*reads up to 2"),
        ({"steps": 7}, "steps of type int"),
        ({"format_version": 2}, "steps of type NoneType"),
        ({**with_step(step="scale", factors=[1]), "zoom": 1}, "unknown keys \\['zoom'\\]"),
        ({**with_step(step="scale", factors=[1]), "max_pixels": 0}, "max_pixels 0"),
        ({**with_step(step="scale", factors=[1]), "max_pixels": 1.5}, "max_pixels 1.5"),
        ({"steps": [7]}, "7 is no step"),
        (with_step(step="sharpen"), "'sharpen'.* is no step; .*resize, center_crop"),
        (with_step(step=["scale"]), "is no step"),
        (with_step(step="scale"), "scale has unknown keys \\[\\] and lacks \\['factors'\\]"),
        (with_step(step="scale", factors=[1], power=2), "unknown keys \\['power'\\]"),
        (with_step(step="scale", factors=1), "scale factors is 1; it must be an array"),
        (with_step(step="scale", factors=["x"]), "scale factors is 'x'; it must be a number"),
        (with_step(step="scale", factors=[True]), "must be a number"),
        (with_step(step="scale", factors=[]), "one or more numbers"),
        (with_step(step="scale", factors=[10**400]), "finite"),
        (with_step(step="scale", factors=[1e39]), "finite"),
        (with_step(step="scale", factors=[1, 2]), "does not fit the 3 channels"),
        (with_step(step="subtract_mean", means=[float("nan")]), "finite"),
        (with_step(step="divide", divisors=[0]), "is 0 as a float32"),
        (with_step(step="divide", divisors=[1e-46]), "is 0 as a float32"),
        (with_step(step="divide", divisors=[1e-44]), "not finite in float32"),
        (with_step(step="subtract_mean_image", shape=[3, 4, 6], data="?"), "not base64"),
        (with_step(step="subtract_mean_image", shape=[3, 4, 6], data=7), "must be a string of base64"),
        (with_step(step="subtract_mean_image", shape=[3, 4, 6], data="AAAA"), "3 bytes of data"),
        (with_step(step="subtract_mean_image", shape=[3, 1, 1], data="AAAA" * 4), "mean image has shape"),
        (with_step(step="subtract_mean_image", shape=[1, 1, 1], data="AAAAAA=="), "does not fit the 3 channels"),
        (with_step(step="resize", height=4.0, width=6), "resize height is 4.0; it must be an integer"),
        (with_step(step="resize", height=True, width=6), "must be an integer"),
        (with_step(step="resize", height=4, width=6, antialias=0), "must be true or false"),
        (with_step(step="resize", height=4, width=6, fit=1), "must be a string"),
        (with_step(step="background", color=[1, 2]), "not three values"),
        (with_step(step="background", color=[1, 2, 300]), "not three values"),
        (with_step(step="exif_orientation"), "not in the order of exif_orientation, background"),
        (with_step(step="color"), "have 2 of color"),
        (with_step(step="resize", height=4, width=6, fit="cover"), "do not end in one size"),
        (with_step(step="central_fraction"), "do not end in one size"),
        ({"steps": [{"step": "color"}]}, "do not end in one size"),
        ({"steps": []}, "have 0 of color"),
        (
            {
                "steps": [
                    {"step": "color", "order": "gray"},
                    {"step": "center_crop", "height": 1, "width": 1, "fill": [1, 2, 3]},
                ]
            },
            "more values than color 'gray' has channels",
        ),
    ],
)
def test_bad_specifications_are_refused_with_the_reason(document: dict[str, object], message: str) -> None:
    with pytest.raises(PreprocessingError, match=message):
        Preprocessing.from_dict(document)


@pytest.mark.parametrize("values", [None, 7, [], "color"])
def test_what_is_no_table_is_refused(values: Any) -> None:
    with pytest.raises(PreprocessingError, match="a table"):
        Preprocessing.from_dict(values)


def test_pixels_of_another_shape_or_dtype_are_refused() -> None:
    with pytest.raises(PreprocessingError, match="uint8"):
        GRAY.normalize(np.zeros((8, 8, 1), np.float32))
    with pytest.raises(PreprocessingError, match="uint8"):
        GRAY.normalize(np.zeros((8, 9, 1), np.uint8))
