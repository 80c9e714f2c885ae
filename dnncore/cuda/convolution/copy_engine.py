"""A forward convolution's 16-bit channels-last tensors as the copy engine of sm_90 sees them, or why it cannot. Pure.

Filters of one tap over pixels without padding or stride make x a matrix whose rows are the pixels of y; else the engine gathers
the pixels that each tap meets. y, and z which is added to it, are always matrices: their pixels are evenly spaced, through rows
and images.
"""

from __future__ import annotations

from collections.abc import Sequence

from dnncore.cuda.tensor_map import ALIGNMENT_BYTES, LARGEST_STEP, BoxMap, PixelMap, TensorMap, corner_fits
from dnncore.descriptors import TensorDescriptor
from dnncore.problems import ConvolutionProblem

__all__ = ["filters_map", "images_map", "matrix_map", "reads_matrix", "why_no_matrix", "why_not_read"]

_ITEM_BYTES = 2
_ALIGNED_ITEMS = ALIGNMENT_BYTES // _ITEM_BYTES
_FARTHEST = 2**40 // _ITEM_BYTES
"""Elements that every stride is less than."""

_MOST_OFFSET = 255
"""Pixels from a filter's first tap to its last, along W and along H, that a copy can add."""


def why_not_read(problem: ConvolutionProblem) -> str | None:
    """None where the engine can read x and w and write y, else the reason."""
    for name, tensor in (("x", problem.x), ("w", problem.w)):
        if _strides(tensor) is None:
            return (
                f"{name} ({tensor}) needs neighbouring channels, and strides that are multiples of {_ALIGNED_ITEMS} "
                "elements"
            )
    return why_no_matrix("y", problem.y) or _why_not_gathered(problem)


def why_no_matrix(name: str, tensor: TensorDescriptor) -> str | None:
    """None where images are a matrix whose rows are pixels, else the reason."""
    if _pitch(tensor) is not None:
        return None
    return f"{name} ({tensor}) needs neighbouring channels, and pixels a multiple of {_ALIGNED_ITEMS} elements apart"


def _why_not_gathered(problem: ConvolutionProblem) -> str | None:
    conv = problem.convolution
    if reads_matrix(problem):
        return None
    if max(conv.stride) > LARGEST_STEP:
        return f"strides {conv.stride}; at most {LARGEST_STEP}"
    reach = [(taps - 1) * step for taps, step in zip(problem.w.shape[2:], conv.dilation, strict=True)]
    if max(reach) > _MOST_OFFSET:
        return f"taps {max(reach)} pixels apart; at most {_MOST_OFFSET}"
    corners = (*_lower(problem), *_upper(problem))
    if not all(map(corner_fits, corners)):
        return f"the first tap begins and ends {corners} pixels from the corners of x; at most 128"
    return None


def reads_matrix(problem: ConvolutionProblem) -> bool:
    """Whether the pixels of x are those of y, evenly spaced."""
    conv = problem.convolution
    is_plain = problem.w.shape[2:] == (1, 1) and conv.stride == (1, 1) and not any(map(any, conv.padding))
    return is_plain and _pitch(problem.x) is not None


def images_map(problem: ConvolutionProblem, channels: int, pixels: int) -> TensorMap:
    """x, of which so many channels of so many pixels are copied at a time."""
    if reads_matrix(problem):
        return matrix_map(problem.x, channels, pixels)
    x, (rows, columns) = problem.x, problem.convolution.stride
    n, c, h, w = x.shape
    of_w, of_h, of_n = _strides_bytes(x)
    return PixelMap(
        dtype=x.dtype,
        sizes=(c, w, h, n),
        strides_bytes=(of_w, of_h, of_n),
        lower=_lower(problem),
        upper=_upper(problem),
        steps=(columns, rows),
        channels=channels,
        pixels=pixels,
    )


def filters_map(w: TensorDescriptor, channels: int, filters: int) -> BoxMap:
    """w, of which so many channels of one tap of so many filters are copied at a time."""
    k, c, r, s = w.shape
    return BoxMap(w.dtype, (c, s, r, k), _strides_bytes(w), (channels, 1, 1, filters))


def matrix_map(tensor: TensorDescriptor, channels: int, pixels: int) -> BoxMap:
    """Images as a matrix, of which so many channels of so many pixels are copied at a time."""
    pitch = _pitch(tensor)
    assert pitch is not None, f"{tensor}"
    n, c, h, w = tensor.shape
    return BoxMap(tensor.dtype, (c, n * h * w), (pitch * _ITEM_BYTES,), (channels, pixels))


def _strides(tensor: TensorDescriptor) -> tuple[int, int, int] | None:
    """Elements from one to the next along W, H and N (of filters S, R and K); None where the engine cannot take such steps.

    Along an extent of 1 no step is ever taken, and any that the engine permits is as good as what the descriptor says.
    """
    n, c, h, w = tensor.shape
    of_n, of_c, of_h, of_w = tensor.strides
    if c > 1 and of_c != 1:
        return None
    step_w = of_w if w > 1 else -(-c // _ALIGNED_ITEMS) * _ALIGNED_ITEMS
    step_h = of_h if h > 1 else step_w * w
    step_n = of_n if n > 1 else step_h * h
    steps = (step_w, step_h, step_n)
    return steps if all(0 < step < _FARTHEST and step % _ALIGNED_ITEMS == 0 for step in steps) else None


def _strides_bytes(tensor: TensorDescriptor) -> tuple[int, ...]:
    strides: Sequence[int] | None = _strides(tensor)
    assert strides is not None, f"{tensor}"
    return tuple(step * _ITEM_BYTES for step in strides)


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


def _lower(problem: ConvolutionProblem) -> tuple[int, int]:
    """The first pixel of a row, and the first row, that the first tap meets."""
    rows, columns = problem.convolution.padding
    return -columns[0], -rows[0]


def _upper(problem: ConvolutionProblem) -> tuple[int, int]:
    """The last ones that it meets, counted from the last of an image."""
    rows, columns = (
        (outputs - 1) * stride - before - (extent - 1)
        for outputs, stride, (before, _), extent in zip(
            problem.y.shape[2:],
            problem.convolution.stride,
            problem.convolution.padding,
            problem.x.shape[2:],
            strict=True,
        )
    )
    return columns, rows
