from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dnncore.errors import PreprocessingError
from dnncore.preprocessing import Preprocessing

GRAY = Preprocessing.squash("gray", 8, 8, 1 / 255, (0.5,), (0.25,))
RGB = Preprocessing.squash("rgb", 5, 7, 1.0, (0.0, 1.0, 2.0), (1.0, 2.0, 4.0))


def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze()).save(file, kind)
    return file.getvalue()


def test_a_png_of_the_nets_size_arrives_pixel_by_pixel() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 1), np.uint8)
    assert np.array_equal(GRAY.decode(encode(pixels)), pixels)
    expected = (pixels[..., 0] / 255 - 0.5) / 0.25
    assert np.allclose(GRAY.from_bytes(encode(pixels)), expected[None], atol=1e-6)


def test_channels_come_first_and_in_the_asked_order() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, 3), np.uint8)
    rgb = RGB.normalize(pixels)
    assert rgb.shape == (3, 5, 7)
    assert np.allclose(rgb[2], (pixels[..., 2].astype(float) - 2) / 4)
    bgr = Preprocessing.squash("bgr", 5, 7, 1.0, (0.0,) * 3, (1.0,) * 3)
    assert np.array_equal(bgr.decode(encode(pixels)), pixels[..., ::-1])


def test_a_batch_is_normalised_like_its_images() -> None:
    batch = np.random.default_rng(2).integers(0, 256, (3, 8, 8, 1), np.uint8)
    assert np.array_equal(GRAY.normalize(batch), np.stack([GRAY.normalize(image) for image in batch]))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "LA", "CMYK", "I;16"])
def test_every_mode_of_image_becomes_the_nets_channels(mode: str) -> None:
    gradient = np.linspace(0, 255, 20 * 30).reshape(20, 30).astype(np.uint8)
    image = Image.fromarray(gradient)
    image = Image.fromarray(gradient.astype(np.uint16) * 257) if mode == "I;16" else image.convert(mode)
    file = io.BytesIO()
    image.save(file, "JPEG" if mode == "CMYK" else "PNG")
    pixels = GRAY.decode(file.getvalue())
    assert pixels.shape == (8, 8, 1)
    assert pixels[0].mean() < pixels[-1].mean()


@pytest.mark.parametrize("data", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a" + b"\0" * 50])
def test_bytes_that_are_no_image_are_refused(data: bytes) -> None:
    with pytest.raises(PreprocessingError):
        GRAY.decode(data)


def test_a_truncated_image_is_refused() -> None:
    data = encode(np.random.default_rng(3).integers(0, 256, (64, 64), np.uint8))
    with pytest.raises(PreprocessingError):
        GRAY.decode(data[: len(data) // 2])


@given(st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    for candidate in (data, b"\x89PNG\r\n\x1a\n" + data, b"\xff\xd8\xff\xe0" + data):
        try:
            GRAY.decode(candidate)
        except PreprocessingError:
            continue


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def test_a_damaged_chunk_behind_the_pixels_is_refused() -> None:
    sound = encode(np.zeros((8, 8), np.uint8))
    end = sound.index(b"IEND") - 4
    with pytest.raises(PreprocessingError, match="not a readable"):
        GRAY.decode(sound[:end] + chunk(b"iCCP", b"") + sound[end:])


def test_an_image_bomb_is_refused_by_its_header() -> None:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    with pytest.raises(PreprocessingError, match=r"pixels|large"):
        GRAY.decode(bomb)


def test_the_specification_survives_json() -> None:
    assert Preprocessing.from_dict(RGB.to_dict()) == RGB


@pytest.mark.parametrize(
    "change",
    [
        {"color": "cmyk"},
        {"mean": [1.0, 2.0]},
        {"std": [0.0]},
        {"height": 0},
        {"height": float("inf")},
        {"mean": [10**400]},
        {"scale": float("nan")},
        {"zoom": 2},
        {"mean": None},
    ],
)
def test_bad_specifications_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(PreprocessingError):
        Preprocessing.from_dict({**GRAY.to_dict(), **change})


def test_pixels_of_another_shape_or_dtype_are_refused() -> None:
    with pytest.raises(PreprocessingError, match="uint8"):
        GRAY.normalize(np.zeros((8, 8, 1), np.float32))
    with pytest.raises(PreprocessingError, match="uint8"):
        GRAY.normalize(np.zeros((8, 9, 1), np.uint8))
