"""What a resize and the crops around it are, for a device: which rows and columns of an image make up each of the result, and with
which weights. Whole numbers, which give Pillow's result bit for bit on any machine.

Pillow resamples along one axis and then along the other. Each new pixel is a sum of old ones times weights of 22 bits after the
point, to which a half is added before the point is dropped; the sums are clamped to 0..255. Weights come from a filter that is
stretched when the image gets smaller.

Source: Pillow, src/libImaging/Resample.c and Geometry.c.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dnncore.errors import PreprocessingError
from dnncore.preprocessing.geometry import CenterCrop, CentralFraction, GeometricStep, Resize
from dnncore.preprocessing.sampling import taps as sampled_taps

__all__ = ["BITS", "Taps", "check_one_pass", "columns_first", "taps"]

BITS = 22
"""Of a weight, after the point: with 8 of a pixel and 2 for the overshoot of filters with negative parts, 32."""

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """The rows of an image, or its columns, that make up each one of the result. Immutable.

    Args:
        first: int32 [L]: the first that counts.
        count: int32 [L]: how many do; 0 where the border is.
        weights: int32 [most, L]: of the first, the second, ..., times 2^BITS; 0 from `count` on.
    """

    first: npt.NDArray[np.int32]
    count: npt.NDArray[np.int32]
    weights: npt.NDArray[np.int32]

    @classmethod
    def of_each(cls, old: int, start: int, extent: int) -> Taps:
        """Each of `old` as it is, `extent` of them from `start` on; where there are none, border."""
        places = np.arange(start, start + extent)
        inside = (places >= 0) & (places < old)
        weights = np.where(inside, 1 << BITS, 0)
        return cls(_words(places * inside), _words(inside), _words(weights[np.newaxis]))

    @property
    def extent(self) -> int:
        """L: rows, or columns, of the result."""
        return self.first.size

    @property
    def words(self) -> npt.NDArray[np.int32]:
        """int32 [(2 + most) * L]: first, count, weights, as `ops.image_resize` takes them."""
        return np.concatenate([self.first, self.count, self.weights.ravel()])

    def cut(self, start: int, extent: int) -> Taps:
        """Those from `start` on; where there are none, border."""
        places = np.arange(start, start + extent)
        inside = (places >= 0) & (places < self.extent)
        places = places * inside
        return Taps(self.first[places], self.count[places] * inside, self.weights[:, places] * inside)

    def moved(self, by: int) -> Taps:
        """The same for an image that has `by` more rows, or columns, in front."""
        return Taps(_words(self.first + by), self.count, self.weights)


def taps(steps: Sequence[GeometricStep], height: int, width: int) -> tuple[Taps, Taps]:
    """The taps of the rows and of the columns that some steps make of an image of height x width.

    Args:
        steps: Those that change the size, of which `check_one_pass` thinks well.
        height: Of the image.
        width: Of the image.
    """
    top = left = 0  # where the image begins that is looked at
    found: tuple[Taps, Taps] | None = None
    for step in steps:
        size = step.output_size(height, width)
        if isinstance(step, Resize):
            found = (
                _resized(height, size[0], step).moved(top),
                _resized(width, size[1], step).moved(left),
            )
        elif isinstance(step, CentralFraction) and found is None:
            top, left = step.offset(height, width)
        else:
            start = step.offset(height, width)
            if found is None:
                found = (
                    Taps.of_each(height, start[0], size[0]).moved(top),
                    Taps.of_each(width, start[1], size[1]).moved(left),
                )
            else:
                found = found[0].cut(start[0], size[0]), found[1].cut(start[1], size[1])
        height, width = size
    assert found is not None
    return found


def columns_first(steps: Sequence[GeometricStep], height: int, width: int) -> bool:
    """Whether Pillow adds up what lies above each other, column by column, before what lies side by side.

    It does so from version 13 on where the image loses more than twice as many rows as columns. An earlier one always begins with
    what lies side by side, and gives other bits in such images, by one of 255 here and there.
    """
    for step in steps:
        rows, columns = step.output_size(height, width)
        if isinstance(step, Resize):
            return step.antialias and height - rows > max(0, 2 * (width - columns))
        height, width = rows, columns
    return False


def check_one_pass(steps: Sequence[GeometricStep]) -> None:
    """Refuse steps that are more than one resampling, cut out of the image before it or of its result.

    Raises:
        PreprocessingError: there are two of resize, a center_crop or a second central_fraction comes before one, or borders differ
            in colour.
    """
    resizes = [number for number, step in enumerate(steps) if isinstance(step, Resize)]
    before = steps[: resizes[0]] if resizes else ()
    fills = {step.fill if len(set(step.fill)) > 1 else step.fill[:1] for step in steps if isinstance(step, CenterCrop)}
    if (
        len(resizes) > 1
        or len(fills) > 1
        or len(before) > 1
        or not all(isinstance(step, CentralFraction) for step in before)
    ):
        raise PreprocessingError(
            f"the steps {', '.join(step.name for step in steps)} are done on a host only: a device does at most one "
            f"{Resize.name}, after at most one {CentralFraction.name}, and has one colour for borders"
        )


def _resized(old: int, new: int, step: Resize) -> Taps:
    """The whole of an axis, resampled."""
    if old == new:
        return Taps.of_each(old, 0, old)
    if step.interpolation == "nearest":
        return _nearest(old, new)
    if step.antialias:
        return _filtered(old, new, *_FILTERS[step.interpolation])
    return _sampled(old, new, step.interpolation)


def _nearest(old: int, new: int) -> Taps:
    """The one whose middle is next; places are added up one by one, as Pillow does, errors of rounding included."""
    step = old / new
    places = np.cumsum(np.concatenate([[step * 0.5], np.full(new - 1, step)]))
    first = np.minimum(places.astype(np.int32), old - 1)
    return Taps(first, np.ones(new, np.int32), np.full((1, new), 1 << BITS, np.int32))


def _filtered(old: int, new: int, function: Callable[[_Floats], _Floats], support: float) -> Taps:
    scale = old / new
    stretch = max(scale, 1.0)
    support *= stretch
    center = (np.arange(new) + 0.5) * scale
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)
    count = np.minimum((center + support + 0.5).astype(np.int64), old) - first
    weights = np.zeros((int(count.max()), new))
    total = np.zeros(new)
    for tap in range(len(weights)):
        weights[tap] = np.where(tap < count, function((tap + first - center + 0.5) * (1.0 / stretch)), 0.0)
        total += weights[tap]  # in Pillow's order
    weights = np.divide(weights, total, out=weights, where=total != 0)
    return Taps(_words(first), _words(count), _fixed(weights))


def _sampled(old: int, new: int, interpolation: str) -> Taps:
    """Without antialiasing; what lies beyond the borders counts for the outermost."""
    indices, weights = sampled_taps(old, new, interpolation)
    first, most = indices.min(0), int((indices.max(0) - indices.min(0)).max()) + 1
    merged = np.zeros((most, new))
    np.add.at(merged, (indices - first, np.arange(new)[np.newaxis]), weights)
    count = indices.max(0) - first + 1
    return Taps(_words(first), _words(count), _fixed(merged))


def _fixed(weights: _Floats) -> npt.NDArray[np.int32]:
    """Times 2^BITS, halves away from 0."""
    return _words(np.trunc(weights * (1 << BITS) + np.copysign(0.5, weights)))


def _words(numbers: np.ndarray) -> npt.NDArray[np.int32]:
    return numbers.astype(np.int32)


def _triangle(x: _Floats) -> _Floats:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _box(x: _Floats) -> _Floats:
    return ((x > -0.5) & (x <= 0.5)).astype(np.float64)


def _hamming(x: _Floats) -> _Floats:
    x = np.abs(x)
    angle = np.where(x == 0, 1.0, x * math.pi)
    constant, cosine = float(np.float32(0.54)), float(np.float32(0.46))  # which Pillow has as float
    window = np.sin(angle) / angle * (constant + cosine * np.cos(angle))
    return np.where(x == 0, 1.0, np.where(x >= 1, 0.0, window))


def _cubic(x: _Floats) -> _Floats:
    a, x = -0.5, np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _sinc(x: _Floats) -> _Floats:
    angle = np.where(x == 0, 1.0, x * math.pi)
    return np.where(x == 0, 1.0, np.sin(angle) / angle)


def _lanczos(x: _Floats) -> _Floats:
    return np.where((x >= -3) & (x < 3), _sinc(x) * _sinc(x / 3), 0.0)


_FILTERS: dict[str, tuple[Callable[[_Floats], _Floats], float]] = {
    "box": (_box, 0.5),
    "bilinear": (_triangle, 1.0),
    "hamming": (_hamming, 1.0),
    "bicubic": (_cubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}
"""The filters, and how far each reaches to either side."""
