"""From image bytes to a net's input: the one code path that training, evaluation, the server and clients share.

The specification is part of the model package, so an image is treated when it is served as it was when the net was trained.
Needs Pillow (extra `[image]`, part of `[server]`, `[client]` and `[train]`) to decode and resize; the arithmetic needs NumPy only.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from dnncore.errors import BackendUnavailableError, PreprocessingError

__all__ = ["Preprocessing"]

_CHANNELS = {"gray": 1, "rgb": 3, "bgr": 3}
_FORMATS = ("JPEG", "PNG")
_DAMAGED = (OSError, ValueError, SyntaxError, EOFError, OverflowError, MemoryError, IndexError, struct.error)
"""What Pillow raises for damaged files; the last two for chunks behind the pixels (in a header it maps them itself)."""


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How an image becomes a float32 tensor [C, height, width]: (pixels * scale - mean) / std. Immutable.

    Args:
        color: "gray" (ITU-R 601 luma), "rgb" or "bgr": the order of the channels.
        height: Rows of the net's input.
        width: Columns of the net's input.
        scale: Factor on the 0..255 pixel values, before mean and std.
        mean: Subtracted, one a channel.
        std: Divided by, one a channel.
        max_pixels: Largest image that is decoded; larger ones are refused by their header, before any memory is taken.
    """

    color: str
    height: int
    width: int
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    max_pixels: int = 50_000_000

    def __post_init__(self) -> None:
        if self.color not in _CHANNELS:
            raise PreprocessingError(f"color {self.color!r} is unknown; use one of {', '.join(_CHANNELS)}")
        if self.height < 1 or self.width < 1 or self.max_pixels < 1:
            raise PreprocessingError(
                f"height {self.height}, width {self.width} and max_pixels {self.max_pixels} must be 1 or more"
            )
        if not len(self.mean) == len(self.std) == self.channels:
            raise PreprocessingError(
                f"mean {self.mean} and std {self.std} need {self.channels} values each for color {self.color!r}"
            )
        if not all(map(math.isfinite, (self.scale, *self.mean, *self.std))) or 0 in self.std:
            raise PreprocessingError(
                f"scale {self.scale}, mean {self.mean} and std {self.std} must be finite, std not 0"
            )

    @property
    def channels(self) -> int:
        """C: 1 for gray, else 3."""
        return _CHANNELS[self.color]

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, height, width) of one preprocessed image."""
        return (self.channels, self.height, self.width)

    def decode(self, data: bytes) -> np.ndarray:
        """Decode a JPEG or PNG and resize it bilinearly to height x width.

        Returns:
            uint8 pixels [height, width, C].

        Raises:
            PreprocessingError: not such an image, damaged, or larger than `max_pixels`.
            BackendUnavailableError: Pillow is not installed.
        """
        try:
            from PIL import Image
        except ImportError as error:
            raise BackendUnavailableError("decoding images needs Pillow: pip install 'dnncore[image]'") from error
        if not data:
            raise PreprocessingError("the image is empty (0 bytes); send the bytes of a JPEG or PNG file")
        try:
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                self._check_size(*image.size)
                # A 16-bit PNG comes as mode "I;16": its own range is 0..65535, and Pillow's conversion to 8 bits would clip.
                if image.mode.startswith("I"):
                    pixels = Image.fromarray((np.asarray(image, np.uint32) >> 8).astype(np.uint8), "L")
                else:
                    pixels = image.convert("RGBA" if "transparency" in image.info else image.mode)
                converted = pixels.convert("L" if self.channels == 1 else "RGB")
                if converted.size != (self.width, self.height):
                    converted = converted.resize((self.width, self.height), Image.Resampling.BILINEAR)
                array = np.asarray(converted, np.uint8).reshape(self.height, self.width, self.channels)
        except PreprocessingError:
            raise
        except Image.DecompressionBombError as error:
            raise PreprocessingError(f"the image is too large: {error}") from error
        except _DAMAGED as error:
            raise PreprocessingError(
                f"{len(data)} bytes starting with {data[:8]!r} are not a readable {' or '.join(_FORMATS)} image"
            ) from error
        return array[..., ::-1] if self.color == "bgr" else array

    def _check_size(self, columns: int, rows: int) -> None:
        if columns * rows > self.max_pixels:
            raise PreprocessingError(f"the image has {columns} x {rows} pixels; at most {self.max_pixels} are decoded")

    def normalize(self, pixels: np.ndarray) -> np.ndarray:
        """Turn pixels into the net's input.

        Args:
            pixels: uint8 [..., height, width, C].

        Returns:
            float32 [..., C, height, width], C-contiguous.

        Raises:
            PreprocessingError: wrong dtype or shape.
        """
        expected = (self.height, self.width, self.channels)
        if pixels.dtype != np.uint8 or pixels.shape[-3:] != expected:
            raise PreprocessingError(
                f"pixels are {pixels.dtype}{list(pixels.shape)}; uint8 [..., {', '.join(map(str, expected))}] is needed"
            )
        mean = np.asarray(self.mean, np.float32)
        factor = np.float32(1) / np.asarray(self.std, np.float32)
        values = (pixels.astype(np.float32) * np.float32(self.scale) - mean) * factor
        return np.ascontiguousarray(np.moveaxis(values, -1, -3))

    def from_bytes(self, data: bytes) -> np.ndarray:
        """Decode, resize and normalise one image: float32 [C, height, width]."""
        return self.normalize(self.decode(data))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """Rebuild from `to_dict`.

        Raises:
            PreprocessingError: a key is missing or unknown, or a value has the wrong type.
        """
        if not isinstance(values, Mapping):
            raise PreprocessingError(f"preprocessing is {values!r}; a table of settings is needed")
        names = {field.name for field in fields(cls)}
        unknown, missing = set(values) - names, names - set(values) - {"max_pixels"}
        if unknown or missing:
            raise PreprocessingError(f"preprocessing has unknown keys {sorted(unknown)} and lacks {sorted(missing)}")
        try:
            return cls(
                color=str(values["color"]),
                height=int(values["height"]),
                width=int(values["width"]),
                scale=float(values["scale"]),
                mean=tuple(float(v) for v in values["mean"]),
                std=tuple(float(v) for v in values["std"]),
                max_pixels=int(values.get("max_pixels", 50_000_000)),
            )
        except (TypeError, ValueError, OverflowError) as error:  # int() of JSON's 1e999 overflows
            raise PreprocessingError(f"preprocessing {dict(values)} has a value of the wrong type: {error}") from error
