"""The first steps: from a file's image to one in the net's colours, "L" or "RGB", the right way up.

Every step takes an image of Pillow's and returns one of Pillow's. What no step does is left as the file has it: without
`ExifOrientation` a photograph lies as the camera was held, without `Background` alpha is dropped. torchvision's loader does so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from dnncore.errors import PreprocessingError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Background", "Color", "ColorOrder", "DecodingStep", "ExifOrientation"]

ColorOrder = Literal["gray", "rgb", "bgr"]
"""The channels of a net's input, in their order."""

_ORIENTATION = 0x0112
_TRANSPOSITIONS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""Pillow's name of what undoes each value of EXIF's tag Orientation; 1 is upright."""


@dataclass(frozen=True, slots=True)
class ExifOrientation:
    """Turn the image as its EXIF or XMP data say it is to be looked at. Immutable.

    TIFF files are turned with and without this step, because Pillow does so itself.
    """

    name: ClassVar[str] = "exif_orientation"

    def apply(self, image: Image) -> Image:
        """The image upright."""
        from PIL.Image import Transpose

        image.load()  # before the tag is read: loading a TIFF obeys it and takes it away
        transposition = _TRANSPOSITIONS.get(image.getexif().get(_ORIENTATION, 1))
        return image if transposition is None else image.transpose(Transpose[transposition])


@dataclass(frozen=True, slots=True)
class Background:
    """Lay an image with alpha on one colour; other images stay as they are. Immutable.

    Args:
        color: (red, green, blue), each 0..255.
    """

    name: ClassVar[str] = "background"
    color: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.color) != 3 or not all(0 <= value <= 255 for value in self.color):
            raise PreprocessingError(f"background color {self.color} is not three values of 0..255")

    def apply(self, image: Image) -> Image:
        """The image without alpha."""
        from PIL.Image import new

        if not (image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info):
            return image
        above = image.convert("RGBA")
        below = new("RGB", image.size, self.color)
        below.paste(above, mask=above)
        return below


@dataclass(frozen=True, slots=True)
class Color:
    """Convert to the net's colours. Immutable.

    The steps after this one see the order red, green, blue also for "bgr"; the channels change places when they are done.

    Args:
        order: "gray" (ITU-R 601 luma), "rgb" or "bgr".
    """

    name: ClassVar[str] = "color"
    order: ColorOrder = "rgb"

    def __post_init__(self) -> None:
        if self.order not in get_args(ColorOrder):
            raise PreprocessingError(f"color {self.order!r} is unknown; use one of {', '.join(get_args(ColorOrder))}")

    @property
    def channels(self) -> int:
        """C: 1 for gray, else 3."""
        return 1 if self.order == "gray" else 3

    def apply(self, image: Image) -> Image:
        """The image in mode "L" or "RGB", loaded."""
        if "transparency" in image.info:
            image = image.convert("RGBA")
        return image.convert("L" if self.order == "gray" else "RGB")


DecodingStep = ExifOrientation | Background | Color
