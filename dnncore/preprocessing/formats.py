"""Which image files are read, and how large an image may be: what is known of a file before its pixels are.

A file is an attacker's: its size is read from its header and compared with the limit before anything is allocated for its pixels,
and only the first frame of a file with several is looked at.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from dnncore.errors import BackendUnavailableError, PreprocessingError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

__all__ = ["DEFAULT_MAX_PIXELS", "SUFFIXES", "count_pixels", "first_frame", "image_of"]

_NO_PILLOW = "decoding images needs Pillow: pip install 'dnncore[image]'"

DEFAULT_MAX_PIXELS = 50_000_000
"""Larger images are refused where a specification says nothing else."""

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
"""Lower-case endings of the names of files that are read."""

_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF")
_NAMES = "JPEG, PNG, BMP, GIF, WebP or TIFF"
_MAX_TILE_PIXELS = 1 << 20
"""Of a TIFF file, whatever max_pixels is; tiles have 512 x 512 pixels and less, as a rule."""

_TILE_WIDTH, _TILE_LENGTH = 322, 323
_DAMAGED = (
    *(OSError, ValueError, SyntaxError, EOFError, OverflowError, MemoryError, IndexError, struct.error),
    *(TypeError, KeyError, ZeroDivisionError),
)
"""What Pillow raises for damaged files; the second line for the tags of TIFF and EXIF."""


@contextmanager
def first_frame(data: bytes, max_pixels: int) -> Iterator[Image]:
    """The first frame of a file as Pillow decodes it, in a mode of 8 bits a channel.

    What Pillow raises for damaged files, while it is opened or in the body, comes out as a PreprocessingError.

    Args:
        data: The bytes of a JPEG, PNG, BMP, GIF, WebP or TIFF file.
        max_pixels: An image with more is refused by its header.

    Raises:
        PreprocessingError: not such a file, damaged, too large, or of pixels that have no range from black to white.
        BackendUnavailableError: Pillow is not installed.
    """
    with _opened(data, max_pixels) as file:
        yield _in_eight_bits(file)


def count_pixels(data: bytes, max_pixels: int) -> int:
    """Pixels of a file's first frame by its header, without decoding any.

    Raises:
        PreprocessingError: not such a file as `first_frame` takes, damaged, or too large.
        BackendUnavailableError: Pillow is not installed.
    """
    with _opened(data, max_pixels) as file:
        return file.width * file.height


def image_of(pixels: np.ndarray) -> Image:
    """An image of pixels, uint8 [H, W, C], gray or red, green, blue.

    Raises:
        BackendUnavailableError: Pillow is not installed.
    """
    try:
        from PIL.Image import fromarray
    except ImportError as error:
        raise BackendUnavailableError(_NO_PILLOW) from error
    return fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))


@contextmanager
def _opened(data: bytes, max_pixels: int) -> Iterator[ImageFile]:
    """A file whose header was read and checked, with what Pillow raises translated."""
    try:
        # Image.open would look for the last two by importing every plug-in there is.
        from PIL import Image, TiffImagePlugin, WebPImagePlugin  # noqa: F401
    except ImportError as error:
        raise BackendUnavailableError(_NO_PILLOW) from error
    if not data:
        raise PreprocessingError(f"the image is empty (0 bytes); send the bytes of a {_NAMES} file")
    try:
        _check_size(_webp_size(data), max_pixels)  # Pillow takes memory for the canvas when it opens the file
        with Image.open(io.BytesIO(data), formats=_FORMATS) as file:
            _check_size(file.size, max_pixels)
            _check_coding(file, max_pixels)
            yield file
    except PreprocessingError:
        raise
    except Image.DecompressionBombError as error:
        raise PreprocessingError(f"the image is too large: {error}") from error
    except _DAMAGED as error:
        raise PreprocessingError(
            f"{len(data)} bytes starting with {data[:8]!r} are not a readable {_NAMES} image"
        ) from error


def _check_size(size: tuple[int, int], max_pixels: int, what: str = "the image") -> None:
    columns, rows = size
    if columns * rows > max_pixels:
        raise PreprocessingError(f"{what} has {columns} x {rows} pixels; at most {max_pixels} are decoded")


def _check_coding(file: ImageFile, max_pixels: int) -> None:
    """Refuse what takes time or memory out of proportion to the size that the header gives."""
    if file.format == "BMP" and file.tile and file.tile[0][0] == "bmp_rle":
        # Pillow decodes these in Python, byte by byte: a file of 100 bytes would keep a core busy for seconds.
        raise PreprocessingError("run-length encoded BMP files are not read; save it without compression")
    tags = getattr(file, "tag_v2", {})
    if _TILE_WIDTH in tags:
        _check_size(
            (tags[_TILE_WIDTH], tags.get(_TILE_LENGTH, 1)), max(max_pixels, _MAX_TILE_PIXELS), "a tile of the image"
        )


def _webp_size(data: bytes) -> tuple[int, int]:
    """(columns, rows) of a WebP file's canvas; (0, 0) for what is no WebP file.

    Source: RFC 9649 (VP8X, VP8L) and RFC 6386, 9.1 (VP8).
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return (0, 0)
    kind, body = data[12:16], data[20:30]
    if kind == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        columns, rows = struct.unpack_from("<HH", body, 6)
        return columns & 0x3FFF, rows & 0x3FFF
    return (0, 0)


def _in_eight_bits(image: Image) -> Image:
    """The same image in 8 bits a channel, not multiplied with its alpha."""
    if image.mode == "F" or (image.mode == "I" and image.format != "PNG"):
        raise PreprocessingError(
            f"pixels of 32 bits (mode {image.mode}) have no range from black to white; save them with 8 or 16 bits"
        )
    if image.mode.startswith("I"):
        # 16 bits, whose range is 0..65535; Pillow's conversion to 8 bits would clip.
        from PIL.Image import fromarray

        upper = fromarray((np.asarray(image, np.uint32) >> 8).astype(np.uint8))
        upper.info = {key: value for key, value in image.info.items() if key != "transparency"}  # that is of 16 bits
        return upper
    return image.convert({"RGBa": "RGBA", "La": "LA"}[image.mode]) if image.mode in ("RGBa", "La") else image
