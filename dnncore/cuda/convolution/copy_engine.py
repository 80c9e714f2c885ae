"""A convolution's channels-last tensors, of 16 bits or int8, as the copy engine of sm_90 sees them, or why it cannot. Pure.

Images from which taps gather are seen through a window. Filters of one tap without padding or stride make them a matrix whose rows
are the pixels of the output; else the engine gathers the pixels that each tap meets. Images that are written, and those that are
added to them, are matrices where their pixels are evenly spaced, through rows and images.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dnncore.cuda.tensor_map import (
    ALIGNMENT_BYTES,
    FARTHEST_BYTES,
    LARGEST_STEP,
    BoxMap,
    PixelMap,
    TensorMap,
    corners_fit,
)
from dnncore.descriptors import TensorDescriptor
from dnncore.problems import ConvolutionProblem

__all__ = [
    "StoresChunks",
    "Window",
    "are_copied",
    "filters_map",
    "forward_window",
    "groups_map",
    "images_map",
    "is_copied",
    "is_matrix",
    "is_stored",
    "matrix_map",
    "output_map",
    "patches_map",
    "pixel_pitch",
    "reads_matrix",
    "why_no_groups",
    "why_no_matrix",
    "why_not_copied",
    "why_not_gathered",
    "why_not_stored",
]

_GROUP = 16
"""Filters of which the even ones are copied first."""

_NDIM = 4
"""Of images and filters."""

_MOST_OFFSET = 255
"""Pixels from a filter's first tap to its last, along W and along H, that a copy can add."""


class StoresChunks:
    """Marks algorithms whose output the engine stores, whole 16 bytes of a pixel at a time; they are dataclasses with this field.
    Immutable.

    Args:
        into_copy: Whether the output is a copy in the workspace, where what is behind a pixel's channels is nobody's.
    """

    into_copy: bool


class Window(NamedTuple):
    """Which pixels of images the taps of a filter meet. Immutable.

    Args:
        first: Row and column that the first tap meets for the first output; negative in the padding.
        outputs: How many there are, in rows and columns.
        steps: Rows and columns from one output's first tap to the next one's.
        reach: Rows and columns from the first tap to the last.
    """

    first: tuple[int, int]
    outputs: tuple[int, int]
    steps: tuple[int, int]
    reach: tuple[int, int]

    def lower(self) -> tuple[int, int]:
        """First column and first row that the first tap meets."""
        return self.first[1], self.first[0]

    def upper(self, images: TensorDescriptor) -> tuple[int, int]:
        """Last ones that it meets, counted from the last of an image."""
        (row, column), (rows, columns), (down, along), (_, _, height, width) = *self[:3], images.shape
        return column + (columns - 1) * along - (width - 1), row + (rows - 1) * down - (height - 1)


def forward_window(problem: ConvolutionProblem) -> Window:
    """What a forward convolution's filter meets of x."""
    conv = problem.convolution
    (top, _), (left, _) = conv.padding
    (p, q), (r, s) = problem.y.shape[2:], problem.w.shape[2:]
    return Window(
        first=(-top, -left),
        outputs=(p, q),
        steps=(conv.stride[0], conv.stride[1]),
        reach=((r - 1) * conv.dilation[0], (s - 1) * conv.dilation[1]),
    )


def why_not_copied(name: str, tensor: TensorDescriptor) -> str | None:
    """None where the engine can take boxes of images or filters, else the reason."""
    if _strides(tensor) is not None:
        return None
    aligned = _aligned_items(tensor)
    return f"{name} ({tensor}) needs neighbouring channels, and strides that are multiples of {aligned} elements"


def is_copied(tensor: TensorDescriptor) -> bool:
    """Whether the engine can take boxes of images or filters."""
    return _strides(tensor) is not None


def are_copied(*tensors: TensorDescriptor) -> bool:
    """Whether the engine can take boxes of all of them, as far as is known: of signals once they are seen as images of one row."""
    return len(tensors[0].shape) != _NDIM or None not in map(_strides, tensors)


def is_stored(tensor: TensorDescriptor) -> bool:
    """Whether the engine can write images, and what is between the pixels of a slice of channels stays."""
    return _strides(tensor) is not None and tensor.shape[1] % _aligned_items(tensor) == 0


def why_not_stored(name: str, tensor: TensorDescriptor, *, into_copy: bool = False) -> str | None:
    """None where the engine can write images, and what is between the pixels of a slice of channels stays, else the reason.

    Args:
        name: Of the operand.
        tensor: The images.
        into_copy: Whether they are a copy, whose gaps are nobody's.
    """
    reason, aligned = why_not_copied(name, tensor), _aligned_items(tensor)
    if reason is None and not into_copy and tensor.shape[1] % aligned:
        reason = f"{name} has {tensor.shape[1]} channels; {aligned} are written at a time"
    return reason


def why_no_matrix(name: str, tensor: TensorDescriptor) -> str | None:
    """None where images are a matrix whose rows are pixels, else the reason."""
    if is_matrix(tensor):
        return None
    aligned = _aligned_items(tensor)
    return f"{name} ({tensor}) needs neighbouring channels, and pixels a multiple of {aligned} elements apart"


def why_no_groups(w: TensorDescriptor) -> str | None:
    """None where filters can be copied as `groups_map` says, else the reason."""
    if w.shape[0] % _GROUP:
        return f"{w.shape[0]} filters; it takes multiples of {_GROUP}"
    steps = _strides(w)
    assert steps is not None, f"{w}"
    if w.shape[2] > 1 and steps[1] != steps[0] * w.shape[3]:
        return f"w ({w}) needs taps that are evenly spaced"
    return None


def why_not_gathered(images: TensorDescriptor, window: Window) -> str | None:
    """None where the engine can gather what the taps meet, else the reason."""
    if reads_matrix(images, window):
        return None
    if max(window.steps) > LARGEST_STEP:
        return f"strides {window.steps}; at most {LARGEST_STEP}"
    if max(window.reach) > _MOST_OFFSET:
        return f"taps {max(window.reach)} pixels apart; at most {_MOST_OFFSET}"
    corners = (*window.lower(), *window.upper(images))
    if not corners_fit(corners):
        return f"the first tap begins and ends {corners} pixels from the corners of the images; at most 128"
    return None


def reads_matrix(images: TensorDescriptor, window: Window) -> bool:
    """Whether the only tap meets all pixels in turn, evenly spaced."""
    whole = window.outputs == images.shape[2:] and window.steps == (1, 1)
    return whole and window.first == window.reach == (0, 0) and is_matrix(images)


def is_matrix(tensor: TensorDescriptor) -> bool:
    """Whether pixels are evenly spaced, through rows and images."""
    return _pitch(tensor) is not None


def pixel_pitch(images: TensorDescriptor) -> int:
    """Elements from each pixel to the next of images that are a matrix."""
    pitch = _pitch(images)
    assert pitch is not None, f"{images}"
    return pitch


def images_map(images: TensorDescriptor, window: Window, channels: int, pixels: int) -> TensorMap:
    """Images, of which so many channels of so many pixels are copied at a time."""
    if reads_matrix(images, window):
        return matrix_map(images, channels, pixels)
    rows, columns = window.steps
    return _pixel_map(images, window.lower(), window.upper(images), (columns, rows), channels, pixels)


def output_map(images: TensorDescriptor, channels: int, pixels: int) -> TensorMap:
    """Images that are written, so many channels of so many pixels at a time: a matrix or runs of their pixels."""
    if is_matrix(images):
        return matrix_map(images, channels, pixels)
    return _pixel_map(images, (0, 0), (0, 0), (1, 1), channels, pixels)


def _pixel_map(
    images: TensorDescriptor,
    lower: tuple[int, int],
    upper: tuple[int, int],
    steps: tuple[int, int],
    channels: int,
    pixels: int,
) -> PixelMap:
    n, c, h, w = images.shape
    return PixelMap(
        dtype=images.dtype,
        sizes=(c, w, h, n),
        strides_bytes=_strides_bytes(images),
        lower=lower,
        upper=upper,
        steps=steps,
        channels=channels,
        pixels=pixels,
    )


def filters_map(w: TensorDescriptor, channels: int, filters: int) -> BoxMap:
    """w, of which so many channels of one tap of so many filters are copied at a time."""
    k, c, r, s = w.shape
    return BoxMap(w.dtype, (c, s, r, k), _strides_bytes(w), (channels, 1, 1, filters))


def groups_map(w: TensorDescriptor, channels: int, filters: int) -> BoxMap:
    """w, copied as by `filters_map`, but of each sixteen filters the even ones first: as pairs, filters of a pair, groups, taps."""
    k, c, r, s = w.shape
    of_tap, _, of_filter = _strides_bytes(w)
    return BoxMap(
        w.dtype,
        (c, _GROUP // 2, 2, k // _GROUP, r * s),
        (2 * of_filter, of_filter, _GROUP * of_filter, of_tap),
        (channels, _GROUP // 2, 2, filters // _GROUP, 1),
    )


def patches_map(images: TensorDescriptor, channels: int, rows: int, columns: int, count: int = 1) -> BoxMap:
    """Images, of which so many channels of so many rows and columns of some of them are copied at a time."""
    n, c, h, w = images.shape
    return BoxMap(images.dtype, (c, w, h, n), _strides_bytes(images), (channels, columns, rows, count))


def matrix_map(tensor: TensorDescriptor, channels: int, pixels: int) -> BoxMap:
    """Images as a matrix, of which so many channels of so many pixels are copied at a time."""
    pitch = _pitch(tensor)
    assert pitch is not None, f"{tensor}"
    n, c, h, w = tensor.shape
    return BoxMap(tensor.dtype, (c, n * h * w), (pitch * tensor.dtype.itemsize,), (channels, pixels))


def _aligned_items(tensor: TensorDescriptor) -> int:
    """Elements that strides are multiples of."""
    return ALIGNMENT_BYTES // tensor.dtype.itemsize


@lru_cache(maxsize=64)  # every algorithm asks that is fed by it, some of them often
def _strides(tensor: TensorDescriptor) -> tuple[int, int, int] | None:
    """Elements from one to the next along W, H and N (of filters S, R and K); None where the engine cannot take such steps.

    Along an extent of 1 no step is ever taken, and any that the engine permits is as good as what the descriptor says.
    """
    n, c, h, w = tensor.shape
    of_n, of_c, of_h, of_w = tensor.strides
    aligned, farthest = _aligned_items(tensor), FARTHEST_BYTES // tensor.dtype.itemsize
    if c > 1 and of_c != 1:
        return None
    step_w = of_w if w > 1 else -(-c // aligned) * aligned
    step_h = of_h if h > 1 else step_w * w
    step_n = of_n if n > 1 else step_h * h
    steps = (step_w, step_h, step_n)
    if step_w % aligned or step_h % aligned or step_n % aligned or not 0 < min(steps) <= max(steps) < farthest:
        return None
    return steps


def _strides_bytes(tensor: TensorDescriptor) -> tuple[int, int, int]:
    strides, itemsize = _strides(tensor), tensor.dtype.itemsize
    assert strides is not None, f"{tensor}"
    of_w, of_h, of_n = strides
    return of_w * itemsize, of_h * itemsize, of_n * itemsize


@lru_cache(maxsize=64)
def _pitch(tensor: TensorDescriptor) -> int | None:
    """Elements from each pixel to the next, through rows and images; None where there is no such number or it is not aligned."""
    strides = _strides(tensor)
    if strides is None:
        return None
    n, _, h, w = tensor.shape
    taken = [
        (step, pixels) for step, pixels, extent in zip(strides, (1, w, w * h), (w, h, n), strict=True) if extent > 1
    ]
    if not taken:
        return strides[0]
    step, pixels = taken[0]
    pitch = step // pixels
    return pitch if all(step == pitch * pixels for step, pixels in taken) else None
