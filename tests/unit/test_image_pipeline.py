"""Preprocessing on a device against the same on the host, which is torchvision's, timm's and Caffe's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dnncore import Handle
from dnncore.errors import BadParamError, ClosedError, PreprocessingError
from dnncore.image_pipeline import ImagePipeline
from dnncore.preprocessing import (
    CenterCrop,
    CentralFraction,
    Color,
    Divide,
    Preprocessing,
    Resize,
    Scale,
    SubtractMean,
    SubtractMeanImage,
    from_caffe,
    from_timm,
    from_torchvision,
)
from dnncore.preprocessing.geometry import GeometricStep
from dnncore.preprocessing.resampling import Taps, columns_first, taps
from tests.unit.image_files import encode, encode_pixels
from tests.unit.vision import PHOTOGRAPHS, photograph, torchvision_preset


def reduced(name: str, width: int, height: int) -> bytes:
    """A photograph as a file that an emulated device does not take long for."""
    with Image.open(photograph(name)) as image:
        return encode(image.convert("RGB").resize((width, height)), "PNG")


CHINA, COINS = reduced("china.jpg", 96, 64), reduced("coins.png", 55, 71)
FILTERS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
MEAN_IMAGE = np.random.default_rng(0).random((3, 40, 48), np.float32) * 255


def resampled(pixels: np.ndarray, steps: tuple[GeometricStep, ...]) -> np.ndarray:
    """The definition of `ImageResizeProblem`, as products of matrices: exact in float64."""

    def matrix(axis: Taps, old: int) -> np.ndarray:
        found = np.zeros((axis.extent, old))
        for i, (first, count) in enumerate(zip(axis.first, axis.count, strict=True)):
            found[i, first : first + count] = axis.weights[:count, i]
        return found

    def rounded(sums: np.ndarray) -> np.ndarray:
        return np.floor(sums / 2**22 + 0.5).clip(0, 255)

    rows, columns = taps(steps, *pixels.shape[:2])
    along = [(matrix(rows, pixels.shape[0]), 0), (matrix(columns, pixels.shape[1]), 1)]
    found = pixels.astype(np.float64)
    for weights, axis in along if columns_first(steps, *pixels.shape[:2]) else reversed(along):
        found = rounded(np.moveaxis(np.tensordot(weights, found, (1, axis)), 0, axis))
    return found


def pillow(image: Image.Image, steps: tuple[GeometricStep, ...]) -> np.ndarray:
    for step in steps:
        image = step.apply(image)
    return np.asarray(image)


@pytest.mark.parametrize("interpolation", FILTERS)
def test_taps_give_pillows_bits_on_every_photograph(interpolation: Any) -> None:
    sizes = (
        (Resize(97, 131, interpolation=interpolation),),
        (Resize(64, 64, fit="cover", interpolation=interpolation), CenterCrop(60, 90)),
        (CentralFraction(0.7), Resize(200, 77, interpolation=interpolation)),
    )
    for number, path in enumerate(PHOTOGRAPHS):
        with Image.open(path) as file:
            image = file.convert("RGB").resize((300 + 7 * number, 260)) if number % 2 else file.convert("RGB")
        steps = sizes[number % len(sizes)]
        assert np.array_equal(resampled(np.asarray(image), steps), pillow(image, steps)), f"{path.name} by {steps}"


@given(*(st.integers(1, 60),) * 4, st.sampled_from(FILTERS), st.integers(0, 1000))
def test_taps_give_pillows_bits_from_any_size_to_any(
    height: int, width: int, rows: int, columns: int, interpolation: Any, seed: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    steps = (Resize(rows, columns, interpolation=interpolation),)
    assert np.array_equal(resampled(pixels, steps), pillow(Image.fromarray(pixels), steps))


SPECIFICATIONS = {
    "timm": from_timm({"input_size": (3, 40, 48), "crop_pct": 0.9, "interpolation": "bicubic"}),
    "timm, border": from_timm({"input_size": (3, 48, 40), "crop_mode": "border", "crop_pct": 1.0}),
    "timm, gray": from_timm({"input_size": (1, 40, 40), "interpolation": "lanczos", "mean": (0.5,), "std": (0.2,)}),
    "no resize": Preprocessing((Color("bgr"), CenterCrop(68, 40, (7,)), SubtractMean((1.0, 2.0, 3.0)))),
    "fraction": Preprocessing(
        (Color(), CentralFraction(0.5), Resize(40, 40), CentralFraction(0.9), CenterCrop(20, 20))
    ),
    "mean image": Preprocessing((Color("bgr"), Resize(40, 48), SubtractMeanImage.of(MEAN_IMAGE), Scale((0.5,)))),
}


def specification(name: str) -> Preprocessing:
    """By its name; torchvision, which takes seconds to import, is asked only for its own."""
    if name == "torchvision":
        return from_torchvision(torchvision_preset(crop_size=40, resize_size=48))
    return SPECIFICATIONS[name]


@pytest.mark.parametrize("name", ["torchvision", *SPECIFICATIONS])
def test_a_device_gives_the_bits_of_the_host(handle: Handle, name: str) -> None:
    preprocessing = specification(name)
    files = [
        CHINA,
        COINS,
        encode_pixels(np.full((3, 5, 3), 200, np.uint8)),
        CHINA,
    ]
    expected = np.stack([preprocessing.from_bytes(data) for data in files])
    with ImagePipeline(preprocessing, handle) as pipeline, handle.tensor(expected.shape) as y:
        pipeline.from_bytes(files, y)
        assert np.array_equal(y.numpy(), expected)
        with handle.tensor((1, *expected.shape[1:]), "float16", "NHWC") as narrow:
            pipeline.from_bytes(files[1:2], narrow)
            np.testing.assert_allclose(narrow.numpy(), expected[1:2], rtol=2**-10, atol=2**-24)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_without_antialiasing_a_pixel_differs_by_one_at_most(handle: Handle, interpolation: Any) -> None:
    preprocessing = Preprocessing((Color("bgr"), Resize(41, 37, interpolation=interpolation, antialias=False)))
    file = CHINA
    with ImagePipeline(preprocessing, handle) as pipeline, handle.tensor((1, 3, 41, 37)) as y:
        pipeline.from_bytes([file], y)
        difference = np.abs(y.numpy() - preprocessing.from_bytes(file))
        assert difference.max() <= 1
        assert np.count_nonzero(difference) <= difference.size / 500


def test_a_mean_image_with_a_factor_is_off_by_roundings_alone(handle: Handle) -> None:
    base = from_caffe({"scale": 0.017}, resize=(40, 48), mean_image=MEAN_IMAGE)
    preprocessing = Preprocessing(
        (Color("bgr"), Resize(40, 48), *base.steps[2:], SubtractMean((3.0,)), Divide((1.5, 2.5, 3.5)))
    )
    file = CHINA
    with ImagePipeline(preprocessing, handle) as pipeline, handle.tensor((1, 3, 40, 48)) as y:
        pipeline.from_bytes([file], y)
        terms = (255 + MEAN_IMAGE.max()) * 0.017 + 3
        assert np.abs(y.numpy() - preprocessing.from_bytes(file)).max() <= 4 * np.finfo(np.float32).eps / 2 * terms


def test_batches_may_grow_and_shrink_and_the_hosts_images_change(handle: Handle) -> None:
    preprocessing = Preprocessing((Color("gray"), Resize(8, 8), Scale((2.0,))))
    rng = np.random.default_rng(2)
    with ImagePipeline(preprocessing, handle) as pipeline, handle.tensor((5, 1, 8, 8)) as y:
        for count, most in ((1, 9), (5, 60), (2, 30)):
            images = [rng.integers(0, 256, (*rng.integers(1, most, 2), 1), np.uint8) for _ in range(count)]
            expected = [preprocessing.from_bytes(encode_pixels(image)) for image in images]
            part = y.view(y.descriptor.with_shape((count, 1, 8, 8)))
            pipeline.run(images, part)
            for image in images:
                image[...] = 0
            assert np.array_equal(part.numpy(), np.stack(expected))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((Resize(9, 9), Resize(8, 8)), "at most one resize"),
        ((CenterCrop(9, 9), Resize(8, 8)), "at most one resize"),
        ((CentralFraction(0.5), CentralFraction(0.5), Resize(8, 8)), "at most one central_fraction"),
        ((Resize(8, 8), CenterCrop(9, 9, (1,)), CenterCrop(10, 10, (2,))), "one colour for borders"),
    ],
)
def test_steps_that_are_more_than_one_resampling_are_refused(steps: Any, message: str) -> None:
    with Handle("cpu") as handle, pytest.raises(PreprocessingError, match=message):
        ImagePipeline(Preprocessing((Color(), *steps)), handle)


def test_what_does_not_fit_is_refused() -> None:
    preprocessing = Preprocessing((Color(), Resize(8, 8, fit="cover"), CenterCrop(8, 8)))
    image = np.zeros((9, 9, 3), np.uint8)
    with Handle("cpu") as handle, ImagePipeline(preprocessing, handle) as pipeline, handle.tensor((1, 3, 8, 8)) as y:
        pipeline.run([], y.view(y.descriptor.with_shape((0, 3, 8, 8))))
        with pytest.raises(BadParamError, match="y has shape"):
            pipeline.run([image, image], y)
        for wrong in (image.astype(np.float32), image[..., :1], image[0], image[:0]):
            with pytest.raises(PreprocessingError, match="uint8"):
                pipeline.run([wrong], y)
        with pytest.raises(PreprocessingError, match="would take"):
            pipeline.run([np.broadcast_to(image[:1, :1], (1, 9_000_000, 3))], y)


def test_nothing_runs_after_close(handle: Handle) -> None:
    preprocessing = from_caffe({}, resize=(8, 8))
    with handle.tensor((1, 3, 8, 8)) as y:
        pipeline = ImagePipeline(preprocessing, handle)
        pipeline.close()
        with pytest.raises(ClosedError):
            pipeline.run([np.zeros((8, 8, 3), np.uint8)], y)
