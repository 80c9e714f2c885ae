"""The steps that change an image's size: resizing and cropping.

`apply` takes an image of Pillow's in mode "L" or "RGB" and returns another; the other methods are the plain geometry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np

from dnncore.errors import PreprocessingError
from dnncore.preprocessing.sampling import SAMPLED, sample

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["CenterCrop", "CentralFraction", "Fit", "GeometricStep", "Interpolation", "Resize", "Rounding"]

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
"""Pillow's filters."""

Fit = Literal["squash", "cover", "contain"]
"""How an image's shape and that of a box are brought together: see `Resize`."""

Rounding = Literal["down", "nearest"]
"""What becomes of half pixels and other fractions: away, or to the nearest integer, halves to the even one."""

_SUPPORTS = {"nearest": 0.0, "bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0, "box": 0.5, "hamming": 1.0}
"""Half of each filter's width, in new pixels."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize to a box, or so that the sides keep their ratio. Immutable.

    An image that has the size already stays as it is.

    Args:
        height: Rows of the box.
        width: Columns of the box.
        fit: "squash" makes exactly height x width, whatever becomes of the ratio. "cover" keeps the ratio and makes the smallest
            image that covers the box: with a square box, the shorter side gets that length. "contain" makes the largest that fits
            into the box: with a square box, the longer side gets that length. No side becomes shorter than 1.
        interpolation: "nearest", "bilinear", "bicubic", "lanczos", "box" or "hamming".
        antialias: True takes Pillow's filters, which look at all pixels. False, for "bilinear" and "bicubic", looks at those next
            to each place only (`dnncore.preprocessing.sampling`). "nearest" is the same either way.
        rounding: Of the side that the ratio decides: "down" as torchvision does, "nearest" as timm.
    """

    name: ClassVar[str] = "resize"
    height: int
    width: int
    fit: Fit = "squash"
    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    rounding: Rounding = "down"

    def __post_init__(self) -> None:
        _require_box(self.name, self.height, self.width)
        _require_choice(self.name, "fit", self.fit, get_args(Fit))
        _require_choice(self.name, "interpolation", self.interpolation, get_args(Interpolation))
        _require_choice(self.name, "rounding", self.rounding, get_args(Rounding))
        if not self.antialias and self.interpolation not in ("nearest", *SAMPLED):
            raise PreprocessingError(
                f"resize by {self.interpolation} exists antialiased only; leave antialias true, or use {' or '.join(SAMPLED)}"
            )

    @property
    def one_size(self) -> tuple[int, int] | None:
        """(rows, columns) of every result; None where it depends on the image."""
        return (self.height, self.width) if self.fit == "squash" else None

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) that an image of height x width becomes."""
        if self.fit == "squash":
            return self.height, self.width
        ratio_h, ratio_w = height / self.height, width / self.width
        rows_decide = (ratio_h <= ratio_w) == (self.fit == "cover")
        if self.rounding == "nearest":
            ratio = ratio_h if rows_decide else ratio_w
            return max(1, round(height / ratio)), max(1, round(width / ratio))
        if rows_decide:
            return self.height, max(1, width * self.height // height)
        return max(1, height * self.width // width), self.width

    def working_pixels(self, height: int, width: int) -> int:
        """Memory that it takes, as a number of pixels of 4 bytes: a filter's first pass and its weights, or arrays of float32."""
        rows, columns = self.output_size(height, width)
        if (rows, columns) == (height, width) or self.interpolation == "nearest":
            return rows * columns
        if not self.antialias:
            return 9 * rows * columns
        weights_bytes = 16 * _SUPPORTS[self.interpolation] * (max(height, rows) + max(width, columns))
        return max(rows, height) * columns + math.ceil(weights_bytes / 4)

    def apply(self, image: Image) -> Image:
        """The image in its new size."""
        from PIL.Image import Resampling, fromarray

        rows, columns = self.output_size(image.height, image.width)
        if image.size == (columns, rows):
            return image
        if self.antialias or self.interpolation == "nearest":
            return image.resize((columns, rows), Resampling[self.interpolation.upper()])
        pixels = np.asarray(image)
        sampled = sample(pixels.reshape(*pixels.shape[:2], -1), rows, columns, self.interpolation)
        return fromarray(sampled.reshape(rows, columns, *pixels.shape[2:]))


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """Cut height x width out of the middle; where the image is smaller, a border of one colour is put around it. Immutable.

    Args:
        height: Rows of the result.
        width: Columns of the result.
        fill: Colour of the border, one value of 0..255 for all channels or (red, green, blue).
        rounding: Of the rows and columns left away before the crop when an odd number is to go: "nearest" as torchvision and timm
            do, "down" as Caffe. A border has its larger half behind.
    """

    name: ClassVar[str] = "center_crop"
    height: int
    width: int
    fill: tuple[int, ...] = (0,)
    rounding: Rounding = "nearest"

    def __post_init__(self) -> None:
        _require_box(self.name, self.height, self.width)
        _require_choice(self.name, "rounding", self.rounding, get_args(Rounding))
        if len(self.fill) not in (1, 3) or not all(0 <= value <= 255 for value in self.fill):
            raise PreprocessingError(f"center_crop fill {self.fill} is neither one nor three values of 0..255")

    @property
    def one_size(self) -> tuple[int, int]:
        """(rows, columns) of every result."""
        return self.height, self.width

    def output_size(self, height: int, width: int) -> tuple[int, int]:  # noqa: ARG002
        """(rows, columns), whatever the image has."""
        return self.height, self.width

    def offset(self, height: int, width: int) -> tuple[int, int]:
        """(row, column) of the image that is first in the result; negative where a border comes before it."""
        return _before(height - self.height, self.rounding), _before(width - self.width, self.rounding)

    def apply(self, image: Image) -> Image:
        """The middle of the image, with a border where it is too small."""
        from PIL.Image import new

        top, left = self.offset(image.height, image.width)
        if self.height <= image.height and self.width <= image.width:
            return image.crop((left, top, left + self.width, top + self.height))
        fill = self.fill * (len(image.getbands()) // len(self.fill))
        result = new(image.mode, (self.width, self.height), fill if len(fill) > 1 else fill[0])
        result.paste(image, (-left, -top))
        return result


@dataclass(frozen=True, slots=True)
class CentralFraction:
    """Keep the middle part of both sides, before a resize. Immutable.

    Args:
        fraction: Of each side that is kept, greater than 0, at most 1. What goes away is the same before and behind.
        square: Cut the longer side to the length of the shorter one first.

    Source: TensorFlow's image.central_crop, with which Inception and others are evaluated.
    """

    name: ClassVar[str] = "central_fraction"
    fraction: float = 1.0
    square: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise PreprocessingError(f"central_fraction fraction {self.fraction} must be greater than 0 and at most 1")

    @property
    def one_size(self) -> None:
        """None: the size of the result depends on the image."""
        return

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) that are kept of height x width."""
        sides = (min(height, width),) * 2 if self.square else (height, width)
        rows, columns = (side - 2 * int((side - side * self.fraction) / 2) for side in sides)
        return rows, columns

    def offset(self, height: int, width: int) -> tuple[int, int]:
        """(row, column) of the image that is first in the result."""
        rows, columns = self.output_size(height, width)
        return (height - rows) // 2, (width - columns) // 2

    def apply(self, image: Image) -> Image:
        """The middle of the image."""
        rows, columns = self.output_size(image.height, image.width)
        top, left = self.offset(image.height, image.width)
        return image.crop((left, top, left + columns, top + rows))


GeometricStep = Resize | CenterCrop | CentralFraction


def _before(spare: int, rounding: str) -> int:
    """Of the spare rows of an image those before its middle part; of missing ones, as a negative number, those put before."""
    if spare < 0:
        return -(-spare // 2)
    return round(spare / 2) if rounding == "nearest" else spare // 2


def _require_box(step: str, height: int, width: int) -> None:
    if height < 1 or width < 1:
        raise PreprocessingError(f"{step} height {height} and width {width} must be 1 or more")


def _require_choice(step: str, field: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise PreprocessingError(f"{step} {field} {value!r} is unknown; use one of {', '.join(choices)}")
