"""Planes of float32, of which threads lay out chunks of pixels for the matrix units and round them to 16 bits on the way. Pure.

The copy engine brings what a rectangle of outputs meets of each plane, with zeros around the image; the picture is in
`convolution/image_planes.cuh`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dnncore.cuda.convolution.image_rows import PLACE_OUTPUTS, why_not_neighbours
from dnncore.cuda.params import record, struct
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES, FARTHEST_BYTES, BoxMap
from dnncore.descriptors import TensorDescriptor
from dnncore.problems import ConvolutionProblem

__all__ = ["IMAGE_PLANES", "PlaneWindow", "planes_clocks", "why_no_planes"]

IMAGE_PLANES = struct(
    *((name, "<i4") for name in ("window_bytes", "plane", "row", "column_step", "first", "columns_before"))
)
"""`wgmma::ImagePlanes`."""

_VALUE_BYTES = 4
_ALIGNED = ALIGNMENT_BYTES // _VALUE_BYTES
"""Values: where a copy may begin in a row, and how far rows are apart."""

_MOST_OF_BOX = 256
"""Along each dimension."""

_BANKS_BY_TURNS = 8, 16
"""Values that a row has beyond a multiple of so many: then four rows begin in different quarters of the 32 banks."""
_SMALL_STRIDE = 2
"""Up to which eight neighbouring outputs meet no more than half of the banks, so that it matters where a row begins."""

# Of a multiprocessor that lays out one rectangle, as in image_rows.py: clocks, and clocks for 32 outputs' chunks [assumed: eight
# reads of shared memory in 16 clocks, a chunk's store in four, and as long again until everything is there].
_LAYING_OUT_CLOCKS, _CHUNK_CLOCKS = 219, 44


@dataclass(frozen=True, slots=True)
class PlaneWindow:
    """What 8 neighbouring outputs of some rows meet of an image, as it lies in shared memory. Immutable.

    Args:
        channels: Planes.
        rows: Of each.
        columns: From a row to the next.
        column_step: From an output to the one beside it.
        columns_before: Of the padding, that it begins with at the left: whole 16 bytes.
        first: Column that the first tap of the first output meets.
    """

    channels: int
    rows: int
    columns: int
    column_step: int
    columns_before: int
    first: int

    @classmethod
    def of(cls, problem: ConvolutionProblem, rows: int) -> PlaneWindow:
        """For so many rows of x."""
        conv, taps = problem.convolution, problem.w.shape[3]
        padding, step = conv.padding[1][0], conv.stride[1]
        before = -(-padding // _ALIGNED) * _ALIGNED
        first = before - padding
        needed = first + (PLACE_OUTPUTS - 1) * step + taps
        columns = -(-needed // _ALIGNED) * _ALIGNED
        if step <= _SMALL_STRIDE:
            beyond, multiple = _BANKS_BY_TURNS
            columns = -(-max(needed - beyond, 0) // multiple) * multiple + beyond
        return cls(problem.w.shape[1], rows, columns, step, before, first)

    @property
    def nbytes(self) -> int:
        """Of all planes."""
        return self.channels * self.rows * self.columns * _VALUE_BYTES

    def params(self) -> np.ndarray:
        """The struct IMAGE_PLANES."""
        return record(
            IMAGE_PLANES,
            window_bytes=self.nbytes,
            plane=self.rows * self.columns,
            row=self.columns,
            column_step=self.column_step,
            first=self.first,
            columns_before=self.columns_before,
        )

    def map(self, x: TensorDescriptor) -> BoxMap | None:
        """x, of which windows are copied; None where the copy engine cannot take it."""
        n, channels, height, width = x.shape
        of_row = x.strides[2] if height > 1 else -(-width // _ALIGNED) * _ALIGNED
        of_plane = x.strides[1] if channels > 1 else of_row * height
        of_image = x.strides[0] if n > 1 else of_plane * channels
        steps = of_row, of_plane, of_image
        takes = all(0 < step * _VALUE_BYTES < FARTHEST_BYTES and step % _ALIGNED == 0 for step in steps)
        if not takes or (width > 1 and x.strides[3] != 1) or max(self.rows, self.columns) > _MOST_OF_BOX:
            return None
        return BoxMap(
            x.dtype,
            (width, height, channels, n),
            tuple(step * _VALUE_BYTES for step in steps),
            (self.columns, self.rows, channels, 1),
            swizzles=False,
        )


def why_no_planes(problem: ConvolutionProblem, x: TensorDescriptor, window: PlaneWindow) -> str | None:
    """None where the copy engine brings windows of x, which is what is read, else the reason."""
    reason = why_not_neighbours(problem)
    if reason is None and window.map(x) is None:
        reason = (
            f"x ({x}) needs neighbouring columns, rows, planes and images a multiple of {_ALIGNED} values apart, and windows "
            f"of at most {_MOST_OF_BOX} rows and columns, not {window.rows} and {window.columns}"
        )
    return reason


def planes_clocks(chunks: float) -> float:
    """Of a multiprocessor that lays out so many chunks, those of a rectangle of outputs."""
    return _LAYING_OUT_CLOCKS + chunks / 32 * _CHUNK_CLOCKS
