"""The arithmetic from pixels to a net's input: what comes after the last crop.

The order of the operations is part of a specification, because float32 rounds after each: (x / 255 - mean) / std is torchvision's
result bit for bit, (x * (1 / 255) - mean) * (1 / std) is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import numpy as np

from dnncore.errors import PreprocessingError
from dnncore.preprocessing.decoding import Color, ColorOrder

__all__ = ["ArithmeticStep", "Divide", "Normalization", "Scale", "SubtractMean", "SubtractMeanImage"]

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Scale:
    """x * factor. Immutable.

    Args:
        factors: One for all channels, or one per channel in the net's order.
    """

    name: ClassVar[str] = "scale"
    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        _require_finite(self.name, self.factors)

    def apply(self, values: np.ndarray) -> None:
        """In place on float32 [..., C, H, W]."""
        values *= _per_channel(self.factors)


@dataclass(frozen=True, slots=True)
class Divide:
    """x / divisor: by 255, or by standard deviations. Immutable.

    Args:
        divisors: One for all channels, or one per channel in the net's order; not 0, also as a float32.
    """

    name: ClassVar[str] = "divide"
    divisors: tuple[float, ...]

    def __post_init__(self) -> None:
        _require_finite(self.name, self.divisors)
        if not _per_channel(self.divisors).all():
            raise PreprocessingError(f"divide {self.divisors} has a value that is 0 as a float32")

    def apply(self, values: np.ndarray) -> None:
        """In place on float32 [..., C, H, W]."""
        values /= _per_channel(self.divisors)


@dataclass(frozen=True, slots=True)
class SubtractMean:
    """x - mean. Immutable.

    Args:
        means: One for all channels, or one per channel in the net's order.
    """

    name: ClassVar[str] = "subtract_mean"
    means: tuple[float, ...]

    def __post_init__(self) -> None:
        _require_finite(self.name, self.means)

    def apply(self, values: np.ndarray) -> None:
        """In place on float32 [..., C, H, W]."""
        values -= _per_channel(self.means)


@dataclass(frozen=True, slots=True)
class SubtractMeanImage:
    """x - mean, another one for each pixel: Caffe's mean_file. Immutable. `of` makes one from an array.

    Args:
        shape: (C, height, width) of the net's input.
        data: float32 [C, height, width], little-endian, channels in the net's order. In JSON it is base64.
    """

    name: ClassVar[str] = "subtract_mean_image"
    shape: tuple[int, ...]
    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.shape) != 3 or min(self.shape) < 1 or len(self.data) != 4 * math.prod(self.shape):
            raise PreprocessingError(
                f"subtract_mean_image has shape {list(self.shape)} and {len(self.data)} bytes of data; "
                "[C, height, width] and 4 bytes a value are needed"
            )
        if not np.isfinite(self.image).all():
            raise PreprocessingError("subtract_mean_image has a value that is not finite")

    @classmethod
    def of(cls, image: np.ndarray) -> SubtractMeanImage:
        """From any array [C, height, width]; values are rounded to float32."""
        return cls(tuple(image.shape), np.ascontiguousarray(image, "<f4").tobytes())

    @property
    def image(self) -> np.ndarray:
        """float32 [C, height, width], read-only."""
        return np.frombuffer(self.data, "<f4").reshape(self.shape)

    def apply(self, values: np.ndarray) -> None:
        """In place on float32 [..., C, H, W]."""
        values -= self.image


ArithmeticStep = Scale | Divide | SubtractMean | SubtractMeanImage


@dataclass(frozen=True, slots=True)
class Normalization:
    """From uint8 pixels [H, W, C] to the net's input [C, H, W]: all that a kernel on a device needs to do the same. Immutable.

    Without a mean image a channel has 256 values, and they are in `table`:
    output[c, h, w] = table[c, pixels[h, w, c]] for pixels in the net's order of channels, table[c, pixels[h, w, order[c]]] for
    pixels in that of the file, bit for bit.

    Args:
        color: The order of the net's channels: "gray", "rgb" or "bgr".
        steps: Done in float32, one after the other, each rounded.

    Raises:
        PreprocessingError: a step has values for another number of channels, or the result of a pixel is not finite.
    """

    color: ColorOrder
    steps: tuple[ArithmeticStep, ...]
    table: np.ndarray | None = field(init=False, repr=False, compare=False)
    """float32 [C, 256], read-only: the output for every value of a pixel; None where there is a mean image."""

    def __post_init__(self) -> None:
        for step in self.steps:
            self._check(step)
        table: np.ndarray | None = None
        if self.mean_image is None:
            values = np.arange(256, dtype=np.uint8).reshape(1, 256, 1).repeat(self.channels, axis=2)
            with np.errstate(over="ignore", invalid="ignore"):
                table = self.apply(values).reshape(self.channels, 256)
            if not np.isfinite(table).all():
                raise PreprocessingError(
                    f"{', '.join(step.name for step in self.steps)}: the result is not finite in float32"
                )
            table.flags.writeable = False
        object.__setattr__(self, "table", table)

    @property
    def channels(self) -> int:
        """C: 1 for gray, else 3."""
        return Color(self.color).channels

    @property
    def order(self) -> tuple[int, ...]:
        """For each channel of the net that of an image in gray or red, green, blue: (2, 1, 0) for "bgr"."""
        return {"gray": (0,), "rgb": (0, 1, 2), "bgr": (2, 1, 0)}[self.color]

    @property
    def mean_image(self) -> np.ndarray | None:
        """float32 [C, H, W], if one is subtracted."""
        return next((step.image for step in self.steps if isinstance(step, SubtractMeanImage)), None)

    def operands(self) -> tuple[np.ndarray, np.ndarray | None]:
        """What `dnncore.ops.image_normalization` takes: output[c, h, w] = table[c, pixel] - mean[c, h, w].

        Returns:
            float32 [C, 256], and float32 [C, height, width] where there is a mean image. Without one the table is `table`, and the
            output `apply`'s bit for bit; so it is where nothing but factors that are powers of two comes with the mean image. Other
            steps are folded into both, in float64, so that the output is off by the rounding of these two and of their difference.
        """
        if self.table is not None:
            return self.table, None
        values = np.tile(np.arange(256, dtype=np.float64), (self.channels, 1, 1))
        mean: np.ndarray | None = None
        for step in self.steps:
            if isinstance(step, SubtractMeanImage):
                mean = step.image.astype(np.float64) + (0.0 if mean is None else mean)
                continue
            step.apply(values)
            if mean is not None and not isinstance(step, SubtractMean):
                step.apply(mean)
        assert mean is not None
        return values.reshape(self.channels, 256).astype(np.float32), mean.astype(np.float32)

    def apply(self, pixels: np.ndarray) -> np.ndarray:
        """Do the arithmetic on the host.

        Args:
            pixels: uint8 [..., H, W, C] in the net's order of channels.

        Returns:
            float32 [..., C, H, W], C-contiguous.
        """
        values = np.moveaxis(pixels, -1, -3).astype(np.float32, order="C")
        for step in self.steps:
            step.apply(values)
        return values

    def _check(self, step: ArithmeticStep) -> None:
        match step:
            case Scale(values) | Divide(values) | SubtractMean(values):
                fits = len(values) in (1, self.channels)
            case SubtractMeanImage():
                fits = step.shape[0] == self.channels
        if not fits:
            raise PreprocessingError(f"{step} does not fit the {self.channels} channels of color {self.color!r}")


@lru_cache(maxsize=256)
def _per_channel(values: tuple[float, ...]) -> np.ndarray:
    """float32 [1 or C, 1, 1], read-only."""
    array = np.array(values, np.float32).reshape(-1, 1, 1)
    array.flags.writeable = False
    return array


def _require_finite(step: str, values: tuple[float, ...]) -> None:
    if not values or not all(abs(value) <= _LARGEST for value in values):
        raise PreprocessingError(f"{step} {values} must be one or more numbers that are finite as float32")
