"""What is read of which file, and what is refused."""

from __future__ import annotations

import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps, TiffImagePlugin, WebPImagePlugin

from dnncore.errors import PreprocessingError
from dnncore.preprocessing import Background, Color, ExifOrientation, Preprocessing, Resize
from tests.unit.image_files import BOMBS, chunk, encode, encode_pixels, tiff

GRAY = Preprocessing.squash("gray", 8, 8, 1 / 255, (0.5,), (0.25,))
RGB = Preprocessing((Color("rgb"), Resize(20, 30)))
ALL = Preprocessing((ExifOrientation(), Background((255, 255, 255)), Color("rgb"), Resize(20, 30)))
PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
ORIENTATION = 0x0112
LOSSLESS: dict[str, dict[str, Any]] = {
    "PNG": {},
    "WEBP": {"lossless": True},
    "BMP": {},
    "TIFF": {},
    "TIFF, LZW": {"compression": "tiff_lzw"},
    "TIFF, deflate": {"compression": "tiff_adobe_deflate"},
    "TIFF, PackBits": {"compression": "packbits"},
}
FILES = {name: encode_pixels(PIXELS, name.split(",")[0], **options) for name, options in LOSSLESS.items()} | {
    "JPEG": encode_pixels(PIXELS, "JPEG"),
    "JPEG, progressive": encode_pixels(PIXELS, "JPEG", progressive=True),
    "JPEG, CMYK": encode(Image.fromarray(PIXELS).convert("CMYK"), "JPEG"),
    "WEBP, lossy": encode_pixels(PIXELS, "WEBP"),
    "GIF": encode(Image.fromarray(PIXELS).quantize(64), "GIF"),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_lossless_file_arrives_pixel_by_pixel(name: str) -> None:
    assert np.array_equal(RGB.decode(FILES[name]), PIXELS)


@pytest.mark.parametrize("name", FILES)
def test_every_format_is_read_as_pillow_reads_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(FILES[name])
    with Image.open(path) as image:
        assert np.array_equal(RGB.decode(FILES[name]), np.asarray(image.convert("RGB")))


def test_the_first_frame_of_several_counts() -> None:
    frames = [Image.new("P", (30, 20), index) for index in (1, 2, 3)]
    for frame in frames:
        frame.putpalette([0, 0, 0, 250, 0, 0, 0, 250, 0, 0, 0, 250])
    for kind in ("GIF", "TIFF", "WEBP"):
        more = [frame.convert("RGB") if kind == "WEBP" else frame for frame in frames]
        options = {"lossless": True} if kind == "WEBP" else {}
        data = encode(more[0], kind, save_all=True, append_images=more[1:], **options)
        assert np.array_equal(RGB.decode(data), np.broadcast_to(np.array([250, 0, 0], np.uint8), PIXELS.shape)), kind


@pytest.mark.parametrize("name", ["no_time_for_that_tiny.gif", "multipage.tif"])
def test_scikit_images_files_of_several_frames_are_read(name: str) -> None:
    spec = find_spec("skimage")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0], "data", name)
    with Image.open(path) as image:
        assert getattr(image, "n_frames", 1) > 1
        image.seek(0)
        expected = image.convert("RGB").resize((30, 20), Image.Resampling.BILINEAR)
    assert np.array_equal(RGB.decode(path.read_bytes()), np.asarray(expected))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "LA", "CMYK", "I;16"])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_every_mode_of_image_becomes_the_nets_channels(mode: str, kind: str) -> None:
    gradient = np.linspace(0, 255, 20 * 30).reshape(20, 30).astype(np.uint8)
    image = Image.fromarray(gradient)
    image = Image.fromarray(gradient.astype(np.uint16) * 257) if mode == "I;16" else image.convert(mode)
    pixels = GRAY.decode(encode(image, "JPEG" if (mode, kind) == ("CMYK", "PNG") else kind))
    assert pixels.shape == (8, 8, 1)
    assert pixels[0].mean() < 60
    assert pixels[-1].mean() > 195


def test_a_range_that_is_not_known_is_refused() -> None:
    for values in (np.zeros((4, 4), np.float32), np.zeros((4, 4), np.int32)):
        with pytest.raises(PreprocessingError, match="no range from black to white"):
            GRAY.decode(encode(Image.fromarray(values), "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_the_orientation_that_exif_gives_is_obeyed_where_the_step_is(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encode_pixels(PIXELS, kind, exif=exif)
    sideways = orientation >= 5
    upright = Preprocessing((ExifOrientation(), Color("rgb"), Resize(*((30, 20) if sideways else (20, 30)))))
    stored = Image.fromarray(RGB.decode(encode_pixels(PIXELS, kind)))
    stored.getexif()[ORIENTATION] = orientation
    assert np.array_equal(upright.decode(data), np.asarray(ImageOps.exif_transpose(stored)))
    if kind != "TIFF":  # Pillow obeys it while loading
        assert np.array_equal(RGB.decode(data), RGB.decode(encode_pixels(PIXELS, kind)))


def test_a_16_bit_photograph_is_turned_too() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 3
    gray = PIXELS[..., 0]
    data = encode(Image.fromarray(gray.astype(np.uint16) * 256 + 255), "PNG", exif=exif)
    upright = Preprocessing((ExifOrientation(), Color("gray"), Resize(20, 30)))
    assert np.array_equal(upright.decode(data)[..., 0], gray[::-1, ::-1])


def test_an_orientation_that_is_none_is_left_alone() -> None:
    for orientation in (0, 9, 255):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        assert np.array_equal(ALL.decode(encode_pixels(PIXELS, "PNG", exif=exif)), PIXELS)


def test_alpha_is_laid_on_the_background_and_dropped_without_one() -> None:
    alpha = np.random.default_rng(1).integers(0, 256, (20, 30, 1), np.uint8)
    data = encode(Image.fromarray(np.concatenate([PIXELS, alpha], axis=-1)), "PNG")
    assert np.array_equal(RGB.decode(data), PIXELS)
    on_color = Preprocessing((Background((10, 200, 30)), Color("rgb"), Resize(20, 30))).decode(data)
    weight = alpha / 255
    exact = PIXELS * weight + np.array([10, 200, 30]) * (1 - weight)
    assert abs(on_color - exact).max() <= 0.5 + 1e-6


def test_a_transparent_colour_of_a_palette_shows_the_background() -> None:
    image = Image.new("P", (30, 20), 1)
    image.putpalette([0, 0, 0, 9, 9, 9])
    for kind in ("GIF", "PNG"):
        data = encode(image, kind, transparency=1)
        assert np.array_equal(RGB.decode(data), np.full_like(PIXELS, 9)), kind
        assert np.array_equal(ALL.decode(data), np.full_like(PIXELS, 255)), kind


def test_alpha_multiplied_in_is_divided_out() -> None:
    data = encode(Image.new("RGBA", (30, 20), (100, 50, 25, 128)), "TIFF")
    unassociated, associated = struct.pack("<HHII", 338, 3, 1, 2), struct.pack("<HHII", 338, 3, 1, 1)  # ExtraSamples
    assert data.count(unassociated) == 1
    pixels = RGB.decode(data.replace(unassociated, associated))
    assert abs(pixels - np.array([100, 50, 25]) * 255 / 128).max() <= 2


@pytest.mark.parametrize("name", BOMBS)
def test_an_image_bomb_is_refused_by_its_header(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*_arguments: object) -> None:
        raise AssertionError("memory for the pixels would be taken")

    for kind in (ImageFile.ImageFile, TiffImagePlugin.TiffImageFile, WebPImagePlugin.WebPImageFile):
        monkeypatch.setattr(kind, "load", allocate)
    monkeypatch.setattr("PIL._webp.WebPAnimDecoder", allocate)
    with pytest.raises(PreprocessingError, match=r"pixels|large"):
        GRAY.decode(BOMBS[name])


@pytest.mark.parametrize("name", FILES)
def test_max_pixels_counts_for_every_format(name: str) -> None:
    steps = (Color("rgb"), Resize(20, 30))
    assert Preprocessing(steps, max_pixels=600).decode(FILES[name]).shape == (20, 30, 3)
    with pytest.raises(PreprocessingError, match="30 x 20 pixels; at most 599"):
        Preprocessing(steps, max_pixels=599).decode(FILES[name])


def test_tiles_of_an_ordinary_size_are_read_whatever_the_limit() -> None:
    with pytest.raises(PreprocessingError, match="not a readable"):  # its tile ends too early, but is not too large
        Preprocessing((Color("gray"), Resize(8, 8)), max_pixels=64).decode(tiff(8, 8, tile=(512, 512)))


def test_a_run_length_encoded_bmp_is_refused() -> None:
    sound = bytearray(encode(Image.new("L", (30, 20)), "BMP"))
    struct.pack_into("<I", sound, 30, 1)  # BI_RLE8
    with pytest.raises(PreprocessingError, match="run-length"):
        GRAY.decode(bytes(sound))


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a" + b"\0" * 50, b"%!PS-Adobe"]
)
def test_bytes_that_are_no_image_are_refused(data: bytes) -> None:
    with pytest.raises(PreprocessingError, match="JPEG, PNG, BMP, GIF, WebP or TIFF"):
        GRAY.decode(data)


def test_formats_that_were_not_asked_for_are_not_read() -> None:
    for kind in ("PPM", "ICO", "TGA", "JPEG2000"):
        with pytest.raises(PreprocessingError, match="not a readable"):
            GRAY.decode(encode_pixels(PIXELS, kind))


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_refused(name: str) -> None:
    data = FILES[name]
    for length in (len(data) // 2, len(data) // 4, 40):
        with pytest.raises(PreprocessingError, match="not a readable"):
            RGB.decode(data[:length])


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_and_nothing_else(name: str, data: st.DataObject) -> None:
    content = bytearray(FILES[name])
    places = st.integers(0, min(200, len(content) - 1)) | st.integers(max(0, len(content) - 250), len(content) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    try:
        pixels = Preprocessing(ALL.steps, max_pixels=100_000).decode(bytes(content))
    except PreprocessingError:
        return
    assert pixels.shape == (20, 30, 3)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@given(st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    heads = [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"BM", b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08"]
    for candidate in (*(head + data for head in heads), b"RIFF" + data[:4] + b"WEBPVP8X" + data[4:]):
        try:
            ALL.decode(candidate)
        except PreprocessingError:
            continue


def test_a_damaged_chunk_behind_the_pixels_is_refused() -> None:
    sound = encode_pixels(np.zeros((8, 8), np.uint8))
    end = sound.index(b"IEND") - 4
    with pytest.raises(PreprocessingError, match="not a readable"):
        GRAY.decode(sound[:end] + chunk(b"iCCP", b"") + sound[end:])
