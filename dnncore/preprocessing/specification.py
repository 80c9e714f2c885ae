"""Preprocessing: the specification, and what is done by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dnncore.errors import PreprocessingError
from dnncore.preprocessing.decoding import Color, ColorOrder, DecodingStep
from dnncore.preprocessing.formats import DEFAULT_MAX_PIXELS, count_pixels, first_frame, image_of
from dnncore.preprocessing.geometry import CenterCrop, GeometricStep, Resize
from dnncore.preprocessing.normalization import ArithmeticStep, Normalization, Scale, SubtractMean
from dnncore.preprocessing.steps import STEPS, Step, step_from_dict, step_to_dict

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Preprocessing"]

_FORMAT_VERSION = 2
"""Of `to_dict`. Version 1 has no such key: color, height, width, scale, mean, std and max_pixels, for `Preprocessing.squash`."""


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How an image becomes a float32 tensor [C, height, width]: named steps, one after the other. Immutable.

    Args:
        steps: First those that decode (`ExifOrientation`, `Background`, `Color`), then those that change the size (`Resize`,
            `CenterCrop`, `CentralFraction`), then arithmetic (`Scale`, `Divide`, `SubtractMean`, `SubtractMeanImage`). There is one
            `Color`, and the last step that changes the size makes the same size of every image.
        max_pixels: Largest image that is decoded; larger ones are refused by their header, before any memory is taken. Pillow
            refuses those of more than twice its MAX_IMAGE_PIXELS besides, 178,956,970. No step may make more of an image than this
            either, or than 50 million pixels where this is less: of a line of pixels whose shorter side is to become 256, for
            example.

    Raises:
        PreprocessingError: the steps do not go together.
    """

    steps: tuple[Step, ...]
    max_pixels: int = DEFAULT_MAX_PIXELS
    normalization: Normalization = field(init=False, repr=False, compare=False)
    """The arithmetic: uint8 pixels to the net's input."""

    input_shape: tuple[int, int, int] = field(init=False, repr=False, compare=False)
    """(C, height, width) of one preprocessed image."""

    def __post_init__(self) -> None:
        if self.max_pixels < 1:
            raise PreprocessingError(f"max_pixels {self.max_pixels} must be 1 or more")
        names = [step.name for step in self.steps]
        colors = [step for step in self.steps if isinstance(step, Color)]
        if len(colors) != 1:
            raise PreprocessingError(f"the steps {', '.join(names)} have {len(colors)} of {Color.name}; 1 is needed")
        phases = [_phase(step) for step in self.steps]
        if phases != sorted(phases) or self._decoding[-1] != colors[0]:
            raise PreprocessingError(f"the steps {', '.join(names)} are not in the order of {', '.join(STEPS)}")
        size = self.geometry[-1].one_size if self.geometry else None
        if size is None:
            raise PreprocessingError(
                f"the steps {', '.join(names)} do not end in one size; add center_crop, or resize whose fit is squash"
            )
        normalization = Normalization(colors[0].order, tuple(s for s in self.steps if isinstance(s, ArithmeticStep)))
        shape = (normalization.channels, *size)
        mean_image = normalization.mean_image
        if mean_image is not None and mean_image.shape != shape:
            raise PreprocessingError(
                f"the mean image has shape {list(mean_image.shape)}, the net's input {list(shape)}"
            )
        fills = [step.fill for step in self.geometry if isinstance(step, CenterCrop)]
        if any(len(fill) > shape[0] for fill in fills):
            raise PreprocessingError(
                f"center_crop fill {fills} has more values than color {colors[0].order!r} has channels"
            )
        object.__setattr__(self, "normalization", normalization)
        object.__setattr__(self, "input_shape", shape)

    @classmethod
    def squash(
        cls,
        color: ColorOrder,
        height: int,
        width: int,
        scale: float,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> Self:
        """The shortest pipeline: resize to height x width bilinearly, ratio or no ratio; (pixels * scale - mean) * (1 / std).

        Args:
            color: "gray", "rgb" or "bgr": the order of the channels.
            height: Rows of the net's input.
            width: Columns of the net's input.
            scale: Factor on the 0..255 pixel values, before mean and std.
            mean: Subtracted, one per channel.
            std: Divided by (as a factor, its inverse in float32), one per channel.
            max_pixels: As in the constructor.

        Raises:
            PreprocessingError: a value is out of range, or there is not one mean and one std a channel.
        """
        channels = Color(color).channels
        if not len(mean) == len(std) == channels:
            raise PreprocessingError(f"mean {mean} and std {std} need {channels} values each for color {color!r}")
        with np.errstate(divide="ignore", over="ignore"):
            factors = np.float32(1) / np.asarray(std, np.float32)
        if not np.isfinite(factors).all():
            raise PreprocessingError(f"std {std} must be finite and not 0")
        arithmetic = (Scale((scale,)), SubtractMean(mean), Scale(tuple(map(float, factors))))
        return cls((Color(color), Resize(height, width), *arithmetic), max_pixels)

    @property
    def color(self) -> ColorOrder:
        """The order of the channels: "gray", "rgb" or "bgr"."""
        return self.normalization.color

    @property
    def channels(self) -> int:
        """C: 1 for gray, else 3."""
        return self.input_shape[0]

    @property
    def height(self) -> int:
        """Rows of the net's input."""
        return self.input_shape[1]

    @property
    def width(self) -> int:
        """Columns of the net's input."""
        return self.input_shape[2]

    @property
    def geometry(self) -> tuple[GeometricStep, ...]:
        """The steps that change the size."""
        return tuple(step for step in self.steps if isinstance(step, GeometricStep))

    def count_pixels(self, data: bytes) -> int:
        """Pixels of a file's image before it is resized, by its header alone.

        Raises:
            PreprocessingError: not an image that `decode` takes, or larger than `max_pixels`.
            BackendUnavailableError: Pillow is not installed.
        """
        return count_pixels(data, self.max_pixels)

    def decode(self, data: bytes) -> np.ndarray:
        """Decode a file, resize and crop it.

        Args:
            data: The bytes of a JPEG, PNG, WebP, BMP, GIF or TIFF file, of which the first frame counts.

        Returns:
            uint8 pixels [height, width, C], channels in the net's order.

        Raises:
            PreprocessingError: not such an image, damaged, or larger than `max_pixels`.
            BackendUnavailableError: Pillow is not installed.
        """
        return self._fitted(self._decoded(data))

    def fit(self, pixels: np.ndarray) -> np.ndarray:
        """Resize and crop an image that is decoded already.

        Args:
            pixels: uint8 [H, W, C], gray or red, green, blue.

        Returns:
            As `decode`.

        Raises:
            PreprocessingError: it has other channels than the net, or a step would make too much of it.
            BackendUnavailableError: Pillow is not installed.
        """
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != self.channels:
            raise PreprocessingError(
                f"pixels are {pixels.dtype}{list(pixels.shape)}; uint8 [H, W, {self.channels}] is needed"
            )
        if pixels.shape[:2] == (self.height, self.width):
            return pixels[..., ::-1] if self.color == "bgr" else pixels
        return self._fitted(image_of(pixels))

    def _fitted(self, image: Image) -> np.ndarray:
        """An image, gray or in RGB, in the net's size and order of channels."""
        self.check_work(image.height, image.width)
        for change in self.geometry:
            image = change.apply(image)
        pixels = np.asarray(image, np.uint8).reshape(self.height, self.width, self.channels)
        return pixels[..., ::-1] if self.color == "bgr" else pixels

    def decode_whole(self, data: bytes) -> np.ndarray:
        """Decode a file and leave its size as it is, for `dnncore.image_pipeline`, which does the steps that follow.

        Args:
            data: As `decode` takes it.

        Returns:
            uint8 pixels [H, W, C], gray or red, green, blue.

        Raises:
            PreprocessingError: as `decode`.
            BackendUnavailableError: Pillow is not installed.
        """
        image = self._decoded(data)
        return np.asarray(image, np.uint8).reshape(image.height, image.width, self.channels)

    def check_work(self, height: int, width: int) -> None:
        """Refuse an image, by its size, of which a step would make more than `max_pixels`, or 50 million.

        Raises:
            PreprocessingError: it would; the message names the step.
        """
        limit = max(self.max_pixels, DEFAULT_MAX_PIXELS)
        for step in self.geometry:
            if isinstance(step, Resize) and (work := step.working_pixels(height, width)) > limit:
                raise PreprocessingError(
                    f"{step.name} of an image of {width} x {height} would take {work} pixels; at most {limit} are made"
                )
            height, width = step.output_size(height, width)

    def normalize(self, pixels: np.ndarray) -> np.ndarray:
        """Turn pixels into the net's input.

        Args:
            pixels: uint8 [..., height, width, C], channels in the net's order.

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
        return self.normalization.apply(pixels)

    def from_bytes(self, data: bytes) -> np.ndarray:
        """Decode, resize, crop and normalise one image: float32 [C, height, width]."""
        return self.normalize(self.decode(data))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: format_version, max_pixels and the steps, each with its name under "step"."""
        return {
            "format_version": _FORMAT_VERSION,
            "max_pixels": self.max_pixels,
            "steps": [step_to_dict(step) for step in self.steps],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from `to_dict`, or from what it gave before there were steps.

        Raises:
            PreprocessingError: a key is missing or unknown, a value has the wrong type, or the version is a later one.
        """
        if not isinstance(values, Mapping):
            raise PreprocessingError(f"preprocessing is {values!r}; a table of settings is needed")
        if "format_version" not in values and "steps" not in values:
            return cls._from_version_1(values)
        version, steps = values.get("format_version", _FORMAT_VERSION), values.get("steps")
        if version != _FORMAT_VERSION:
            raise PreprocessingError(
                f"preprocessing has format version {version!r}; this version of dnncore reads up to {_FORMAT_VERSION}"
            )
        unknown = sorted(str(key) for key in values if key not in ("format_version", "max_pixels", "steps"))
        max_pixels = values.get("max_pixels", DEFAULT_MAX_PIXELS)
        if unknown or not isinstance(steps, list | tuple) or type(max_pixels) is not int:
            raise PreprocessingError(
                f"preprocessing has unknown keys {unknown}, max_pixels {max_pixels!r} (an integer is needed) and "
                f"steps of type {type(steps).__name__} (an array is needed)"
            )
        return cls(tuple(step_from_dict(step) for step in steps), max_pixels)

    @classmethod
    def _from_version_1(cls, values: Mapping[str, Any]) -> Self:
        needed = ("color", "height", "width", "scale", "mean", "std")
        unknown, missing = set(values) - {*needed, "max_pixels"}, set(needed) - set(values)
        if unknown or missing:
            raise PreprocessingError(f"preprocessing has unknown keys {sorted(unknown)} and lacks {sorted(missing)}")
        try:
            return cls.squash(
                values["color"],
                height=int(values["height"]),
                width=int(values["width"]),
                scale=float(values["scale"]),
                mean=tuple(float(v) for v in values["mean"]),
                std=tuple(float(v) for v in values["std"]),
                max_pixels=int(values.get("max_pixels", DEFAULT_MAX_PIXELS)),
            )
        except (TypeError, ValueError, OverflowError) as error:  # int() of JSON's 1e999 overflows
            raise PreprocessingError(f"preprocessing {dict(values)} has a value of the wrong type: {error}") from error

    @property
    def _decoding(self) -> tuple[DecodingStep, ...]:
        return tuple(step for step in self.steps if isinstance(step, DecodingStep))

    def _decoded(self, data: bytes) -> Image:
        """The file's image in the net's colours, the right way up."""
        with first_frame(data, self.max_pixels) as image:
            for step in self._decoding:
                image = step.apply(image)
        return image


def _phase(step: Step) -> int:
    return 0 if isinstance(step, DecodingStep) else 1 if isinstance(step, GeometricStep) else 2
