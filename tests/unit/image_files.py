"""Image files for tests, sound and malicious, as bytes."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

__all__ = ["BOMBS", "chunk", "encode", "encode_pixels", "png", "tiff"]


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    """An image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def encode_pixels(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    """uint8 [H, W], [H, W, 1] or [H, W, 3] as a file."""
    return encode(Image.fromarray(pixels.squeeze()), kind, **options)


def chunk(kind: bytes, body: bytes) -> bytes:
    """A chunk of PNG."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(columns: int, rows: int) -> bytes:
    """A PNG that claims a size."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


def _jpeg(columns: int, rows: int) -> bytes:
    sound = bytearray(encode(Image.new("L", (8, 8)), "JPEG"))
    frame = sound.index(b"\xff\xc0")
    struct.pack_into(">HH", sound, frame + 5, rows, columns)
    return bytes(sound)


def _gif(columns: int, rows: int) -> bytes:
    sound = bytearray(encode(Image.new("P", (8, 8)), "GIF"))
    struct.pack_into("<HH", sound, 6, columns, rows)
    return bytes(sound)


def _gif_frame(columns: int, rows: int) -> bytes:
    """Its screen is small, its first frame is not."""
    sound = bytearray(encode(Image.new("P", (8, 8)), "GIF"))
    struct.pack_into("<HH", sound, sound.index(b"," + b"\0" * 4) + 5, columns, rows)
    return bytes(sound)


def _bmp(columns: int, rows: int) -> bytes:
    sound = bytearray(encode(Image.new("L", (8, 8)), "BMP"))
    struct.pack_into("<ii", sound, 18, columns, rows)
    return bytes(sound)


def _webp(kind: bytes, body: bytes) -> bytes:
    padded = kind + struct.pack("<I", len(body)) + body + b"\0" * 20
    return b"RIFF" + struct.pack("<I", len(padded) + 4) + b"WEBP" + padded


def _webp_canvas(columns: int, rows: int) -> bytes:
    return _webp(b"VP8X", b"\2\0\0\0" + (columns - 1).to_bytes(3, "little") + (rows - 1).to_bytes(3, "little"))


def _webp_lossless(columns: int, rows: int) -> bytes:
    return _webp(b"VP8L", b"\x2f" + struct.pack("<I", (columns - 1) | (rows - 1) << 14) + b"\0" * 8)


def _webp_lossy(columns: int, rows: int) -> bytes:
    return _webp(b"VP8 ", b"\x10\0\0\x9d\x01\x2a" + struct.pack("<HH", columns, rows))


def tiff(columns: int, rows: int, *, tile: tuple[int, int] | None = None) -> bytes:
    """A deflated gray TIFF in one strip, or in tiles of a size."""
    data = zlib.compress(b"\0" * 100)
    tags = [(256, columns), (257, rows), (258, 8), (259, 8), (262, 1), (277, 1)]
    end = 8 + 2 + 12 * (len(tags) + (4 if tile else 3)) + 4
    tags += (
        [(322, tile[0]), (323, tile[1]), (324, end), (325, len(data))]
        if tile
        else [(273, end), (278, rows), (279, len(data))]
    )
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + b"\0" * 4 + data


BOMBS = {
    "png": png(60_000, 60_000),
    "png, long": png(2**30, 1),
    "jpeg": _jpeg(60_000, 60_000),
    "gif": _gif(60_000, 60_000),
    "gif's frame": _gif_frame(60_000, 60_000),
    "bmp": _bmp(60_000, 60_000),
    "bmp, upside down": _bmp(60_000, -60_000),
    "webp's canvas": _webp_canvas(16_384, 16_384),
    "webp, lossless": _webp_lossless(16_000, 16_000),
    "webp, lossy": _webp_lossy(16_000, 16_000),
    "tiff": tiff(60_000, 60_000),
    "tiff's tile": tiff(8, 8, tile=(40_000, 40_000)),
    "tiff's long tile": tiff(16, 16, tile=(16, 10**9)),
}
"""Files of a few hundred bytes that would take gigabytes."""
