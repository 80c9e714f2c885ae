"""What all Winograd algorithms make of a convolution: one correlation with a 3x3 filter, in tiles, for all three directions.

    forward          y  = x correlated with w
    backward-data    dx = dy correlated with w rotated, padded by 2 - padding; filters and channels change places
    backward-filter  the tiles are those of the forward convolution

Pure: nothing knows of a device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dnncore.cuda.gemm import BLEND_AND_EPILOGUE
from dnncore.cuda.params import ADDRESS, DIVISOR, FLOATING, SMALL_DIVISOR, divisor, record, small_divisor, struct
from dnncore.descriptors import ConvolutionMode, TensorDescriptor
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["FIELDS", "PARAMS", "Correlation", "correlation_or_reason", "is_transformed", "least_points"]

_TAPS = 3
_MIN_GROUP_ROWS = 4
"""Fewest output channels of a group, as for the implicit GEMM: with fewer, nearly all of every tile hangs over the edge."""

_INDEX_LIMIT = 2**31 - 2**12
"""Tiles and places count in 32 bits; a kernel looks a tile or a block of tiles past the end."""

PARAMS = struct(
    *BLEND_AND_EPILOGUE,
    ("input", ADDRESS),
    ("filter", ADDRESS),
    ("output", ADDRESS),
    ("input_points", ADDRESS),
    ("filter_points", ADDRESS),
    ("output_points", ADDRESS),
    ("input_strides", "<i8", 4),
    ("filter_strides", "<i8", 4),
    ("output_strides", "<i8", 4),
    ("filter_offset", "<i8"),
    ("filter_group_stride", "<i8"),
    ("tiles", DIVISOR),
    ("channels", DIVISOR),
    ("filters", DIVISOR),
    ("tile_columns", SMALL_DIVISOR),
    ("tile_rows", SMALL_DIVISOR),
    ("filter_blocks", SMALL_DIVISOR),
    ("tile_blocks", SMALL_DIVISOR),
    ("groups", "<i4"),
    ("input_rows", "<i4"),
    ("input_columns", "<i4"),
    ("output_rows", "<i4"),
    ("output_columns", "<i4"),
    ("top", "<i4"),
    ("left", "<i4"),
    ("tap_step", "<i4"),
    ("dense_rows", "<i4"),
    ("pairs", "<i4"),
    ("unused", "<i4"),
)
"""`dnncore::winograd::Params`."""

FIELDS = {
    Direction.FORWARD: ("input", "filter", "output"),
    Direction.BACKWARD_DATA: ("filter", "input", "output"),
    Direction.BACKWARD_FILTER: ("input", "output", "filter"),
}
"""Fields of PARAMS that take the addresses of a problem's operands, in its order."""


def _count(value: int) -> tuple[int, int, int]:
    """A DIVISOR that keeps an extent of 0: there is then no index to divide."""
    _, magic, shift = divisor(value)
    return value, magic, shift


def is_transformed(kind: ConvolutionKind) -> bool:
    """Whether transforms are made for a kind of convolution, some numbers being few enough."""
    taken = (kind.taps, kind.stride, kind.dilation) == ((_TAPS, _TAPS), (1, 1), (1, 1))
    return taken and kind.dtypes[0] in FLOATING


def _why_not(problem: ConvolutionProblem) -> str | None:
    """None when a convolution is one that the transforms are made for, else the reason why not."""
    conv, taps = problem.convolution, problem.w.shape[2:]
    if problem.x.dtype not in FLOATING:
        return f"it is for floating-point tensors, these are {problem.x.dtype.value}"
    if taps != (_TAPS, _TAPS) or conv.stride != (1, 1) or conv.dilation != (1, 1):
        return f"filter {taps}, stride {conv.stride}, dilation {conv.dilation}; needs (3, 3), (1, 1) and (1, 1)"
    rows = problem.w.shape[1] if problem.direction is Direction.BACKWARD_DATA else problem.w.shape[0] // conv.groups
    if conv.groups > 1 and rows < _MIN_GROUP_ROWS:
        return f"each of its {conv.groups} groups has {rows} rows; tiles need at least {_MIN_GROUP_ROWS}"
    padding = max(before for before, _ in conv.padding)
    places = problem.x.shape[0] * max(math.prod(problem.x.shape[2:]), math.prod(problem.y.shape[2:]))
    numbers = (*problem.x.shape[1:], *problem.y.shape[1:], padding, places)
    if max(numbers) > _INDEX_LIMIT - padding:
        return (
            f"x {problem.x.shape}, y {problem.y.shape}, padding {conv.padding}; at most {_INDEX_LIMIT} along each index"
        )
    return None


@dataclass(frozen=True, slots=True)
class Correlation:
    """A convolution that `_why_not` does not refuse, by the roles that its tensors have in the kernels. Immutable.

    Args:
        input: What is looked at through the filter: x, or dy in backward-data.
        output: y, or dx in backward-data.
        groups: Independent correlations.
        channels: Channels of the input, in a group.
        filters: Channels of the output, in a group.
        filter_strides: Elements of w per filter, channel, row and column.
        filter_offset: Elements of w to the first tap.
        filter_group_stride: Elements of w per group.
        padding: Rows above the input and columns left of it; negative where the outputs begin inside.
    """

    input: TensorDescriptor
    output: TensorDescriptor
    groups: int
    channels: int
    filters: int
    filter_strides: tuple[int, ...]
    filter_offset: int
    filter_group_stride: int
    padding: tuple[int, int]

    @classmethod
    def of(cls, problem: ConvolutionProblem) -> Correlation:
        """Find the roles."""
        x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
        (top, _), (left, _) = conv.padding
        backward = problem.direction is Direction.BACKWARD_DATA
        rotated = (conv.mode is ConvolutionMode.CONVOLUTION) != backward
        k, c, *taps = w.strides
        outer = (c, k) if backward else (k, c)
        per_group = (w.shape[0] // conv.groups, w.shape[1])
        return cls(
            input=y if backward else x,
            output=x if backward else y,
            groups=conv.groups,
            channels=per_group[0 if backward else 1],
            filters=per_group[1 if backward else 0],
            filter_strides=(*outer, *(-stride for stride in taps)) if rotated else (*outer, *taps),
            filter_offset=(_TAPS - 1) * sum(taps) if rotated else 0,
            filter_group_stride=per_group[0] * k,
            padding=(_TAPS - 1 - top, _TAPS - 1 - left) if backward else (top, left),
        )

    def tile_grid(self, outputs: int) -> tuple[int, int]:
        """Rows and columns of tiles of outputs x outputs in an image."""
        rows, columns = (-(-extent // outputs) for extent in self.output.shape[2:])
        return rows, columns

    def tiles(self, outputs: int) -> int:
        """Tiles of all images."""
        return self.output.shape[0] * math.prod(self.tile_grid(outputs))

    def part(self, images: int) -> Correlation:
        """The same with the first images only."""
        if images == self.output.shape[0]:
            return self

        def first(tensor: TensorDescriptor) -> TensorDescriptor:
            return replace(tensor, shape=(images, *tensor.shape[1:]))

        return replace(self, input=first(self.input), output=first(self.output))

    @property
    def _tap_step(self) -> int:
        """1 or -1 where that is the distance between a filter's nine taps, else 0."""
        rows, columns = self.filter_strides[2:]
        return columns if abs(columns) == 1 and rows == _TAPS * columns else 0

    @property
    def _pairs(self) -> bool:
        """Whether outputs 2 i and 2 i + 1 of every row are contiguous and begin at an even element."""
        dimensions = zip(self.output.strides[:3], self.output.shape[:3], strict=True)
        return self.output.strides[3] == 1 and all(stride % 2 == 0 or extent == 1 for stride, extent in dimensions)

    def params(self, outputs: int) -> np.ndarray:
        """Fill in PARAMS for tiles of outputs x outputs, all but the addresses, the blending and the kernel's own blocks."""
        rows, columns = self.tile_grid(outputs)
        return record(
            PARAMS,
            input_strides=self.input.strides,
            filter_strides=self.filter_strides,
            output_strides=self.output.strides,
            filter_offset=self.filter_offset,
            filter_group_stride=self.filter_group_stride,
            tiles=_count(self.tiles(outputs)),
            channels=_count(self.channels),
            filters=_count(self.filters),
            tile_columns=small_divisor(columns),
            tile_rows=small_divisor(rows),
            groups=self.groups,
            input_rows=self.input.shape[2],
            input_columns=self.input.shape[3],
            output_rows=self.output.shape[2],
            output_columns=self.output.shape[3],
            top=self.padding[0],
            left=self.padding[1],
            tap_step=self._tap_step,
            dense_rows=self.input.strides[3] == 1,
            pairs=self._pairs,
        )


@lru_cache(maxsize=8)
def correlation_or_reason(problem: ConvolutionProblem) -> Correlation | str:
    """What the transforms make of a convolution, or the reason why they are not made for it; once for all algorithms that ask."""
    return _why_not(problem) or Correlation.of(problem)


def least_points(problem: ConvolutionProblem, outputs: int) -> float:
    """Points of tiles of outputs x outputs, without what hangs over the edges; infinitely many where it has no such tiles."""
    conv = problem.convolution
    if problem.w.shape[2:] != (_TAPS, _TAPS) or conv.stride != (1, 1) or conv.dilation != (1, 1):
        return math.inf
    output = problem.x if problem.direction is Direction.BACKWARD_DATA else problem.y
    places = output.shape[0] * output.shape[2] * output.shape[3]
    return places * ((outputs + _TAPS - 1) / outputs) ** 2 * (1 - 1e-9)  # for what rounding adds
