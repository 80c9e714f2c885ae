"""Winograd's minimal filtering with a workspace: F(4x4, 3x3), 2.25 multiplications per output in place of 9, and F(2x2, 3x3), 4.

Transforms write both operands' 36 or 16 points to the workspace, the tiled GEMM multiplies them as so many independent products (a
group each), and a last transform gives the outputs. The workspace holds the compute type. Tiles have 6 x 6 or 4 x 4 inputs: a NaN
or an infinity spreads to all outputs of its tiles, and rounding errors are relative to what is in the tile (`winograd_error`).

F(2x2) has a quarter of the error of F(4x4), and four times the tensors for a workspace instead of 2.25. Choose it by name for a
gradient of the filter, which the fused kernel does not have, or for many channels and filters, where errors matter more than time.
On an H200 it takes 1.2 to 1.5 times as long, and less only where there are few tiles: a single image of 14 x 14.

    forward, backward-data   output points [k, t] = sum over c  filter points [c, k] * input points [c, t]
    backward-filter          filter points [k, c] = sum over t  output points [k, t] * input points [c, t]

Source: A. Lavin, S. Gray, "Fast algorithms for convolutional neural networks", arXiv 1509.09308; the filter's gradient is the
adjoint of their algorithm.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial

from dnncore.backend import Offer
from dnncore.bounds import BoundedTwice, Selective
from dnncore.cuda.calls import WORKSPACE, Calls, FieldPath, Place, aligned, blocks_for, kernel_call, rewired
from dnncore.cuda.convolution.locality import strided_seconds
from dnncore.cuda.convolution.winograd_error import F2, F4, Filtering
from dnncore.cuda.convolution.winograd_geometry import (
    FIELDS,
    PARAMS,
    Correlation,
    correlation_or_reason,
    is_transformed,
    least_points,
)
from dnncore.cuda.gemm import Digit, Phase, Product, SplitGemm, TiledGemm
from dnncore.cuda.params import FLOATING, c_type, generate_together
from dnncore.cuda.unit import Unit
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionKind, ConvolutionProblem, Direction

__all__ = ["WINOGRAD_NONFUSED", "WINOGRAD_NONFUSED_2X2", "NonfusedWinograd"]

_THREADS = 128

_MOST_BYTES = 2**29
"""Of workspace for transformed inputs and outputs [not measured]: the batch is taken in as few parts as that allows."""

# Of the estimate, fitted to 479 problems of benchmarks/layers.py and of nets in fp32 on an H200, by both tiles: 72 % are met within
# 15 %, 91 % within 25 % [fp64: the same shares]. What the launches take, in times from one kernel to the next; the rate of memory;
# that of products. Gradients of filters of three channels, which fill little of a tile of products, take three times what it says.
_LAUNCHES = 4.8
_OF_MEMORY_RATE = 0.37
_OF_RATE = 0.65

_TILED = TiledGemm("tiled", lambda product: product)
_SPLIT = SplitGemm("split", lambda product: product)


@dataclass(frozen=True, slots=True)
class _Steps:
    """The transforms of a direction by name, and the operands of its product. Immutable.

    Args:
        first: Once, before everything else.
        before: Before the product of every part of the batch.
        after: After it.
        last: Once, at the end; then the parts' products are added up.
        operands: A, B and C of the product.
    """

    first: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    last: tuple[str, ...]
    operands: tuple[str, str, str]


_CORRELATION = _Steps(
    first=("transform_filter",),
    before=("transform_input",),
    after=("transform_output",),
    last=(),
    operands=("filter_points", "input_points", "output_points"),
)
_STEPS = {
    Direction.FORWARD: _CORRELATION,
    Direction.BACKWARD_DATA: _CORRELATION,
    Direction.BACKWARD_FILTER: _Steps(
        first=(),
        before=("transform_input", "transform_output_gradient"),
        after=(),
        last=("transform_filter_gradient",),
        operands=("output_points", "input_points", "filter_points"),
    ),
}
_TRANSFORMS = {
    "transform_filter": "filter",
    "transform_input": "input",
    "transform_output": "output",
    "transform_output_gradient": "output",
    "transform_filter_gradient": "filter",
}
"""Every transform, and of which operand it makes or reads the points."""


@cache
def _units(filtering: Filtering, dtype: DType) -> dict[str, Unit]:
    """The transforms of a dtype, by name."""
    element, tile = c_type(dtype), f"F{filtering.outputs}"
    size = "" if filtering is F4 else f"{filtering.outputs}x{filtering.outputs}_"
    entries = {name: f"convolution_winograd_{size}{name}_{element}" for name in _TRANSFORMS}
    units = generate_together(
        header="dnncore/convolution/winograd_nonfused.cuh",
        functions={entry: f"winograd::{name}<{element}, winograd::{tile}>" for name, entry in entries.items()},
        struct_name="winograd::Params",
        dtype=PARAMS,
        threads=_THREADS,
    )
    return {name: units[entry] for name, entry in entries.items()}


@dataclass(frozen=True, slots=True)
class _Points:
    """The transformed operands: how many elements each has per point, and their product. Immutable."""

    points: int
    dtype: DType
    groups: int
    channels: int
    filters: int
    tiles: int

    @classmethod
    def of(cls, correlation: Correlation, filtering: Filtering, images: int) -> _Points:
        """Those of so many images."""
        return cls(
            filtering.tile_points,
            correlation.input.dtype.compute,
            correlation.groups,
            correlation.channels,
            correlation.filters,
            images * math.prod(correlation.tile_grid(filtering.outputs)),
        )

    def count(self, operand: str) -> int:
        """Elements per point of "input", "filter" or "output"."""
        if operand == "filter":
            return self.groups * self.channels * self.filters
        return self.groups * self.tiles * (self.channels if operand == "input" else self.filters)

    def nbytes(self, operand: str) -> int:
        """Bytes of all its points, up to where something aligned can follow."""
        return aligned(self.points * self.count(operand) * self.dtype.itemsize)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all three."""
        return self.nbytes("input") + self.nbytes("filter") + self.nbytes("output")

    def offsets(self) -> dict[str, int]:
        """Bytes from the workspace's start to each operand's points."""
        of_input, of_filter = self.nbytes("input"), self.nbytes("filter")
        return {"input_points": 0, "filter_points": of_input, "output_points": of_input + of_filter}

    def product(self, direction: Direction) -> Product:
        """The products, those of a point's groups next to each other."""
        channels, filters, tiles = self.channels, self.filters, self.tiles
        if direction is Direction.BACKWARD_FILTER:
            return Product(
                dtype=self.dtype, rows=filters, a_row_stride=tiles, c_row_stride=channels, groups=self.points * self.groups,
                a_group_stride=filters * tiles, b_group_stride=channels * tiles, c_group_stride=filters * channels,
                bounds=(), phases=(Phase.of([Digit(channels, tiles, 1)], [Digit(tiles, 1, 1)]),), inputs=("a", "b"),
            )  # fmt: skip
        return Product(
            dtype=self.dtype, rows=filters, a_row_stride=1, c_row_stride=tiles, groups=self.points * self.groups,
            a_group_stride=channels * filters, b_group_stride=channels * tiles, c_group_stride=filters * tiles,
            bounds=(), phases=(Phase.of([Digit(tiles, 1, 1)], [Digit(channels, tiles, filters)]),), inputs=("a", "b"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Part:
    """Some images of the batch. Immutable.

    Args:
        correlation: Of these images.
        points: Likewise.
        gemm: Their products, by the tiled GEMM, its reduction cut into parts where that is worth it.
    """

    correlation: Correlation
    points: _Points
    gemm: Offer

    @classmethod
    def of(cls, whole: _Batch, images: int, figures: DeviceFigures) -> _Part | str:
        """The first ones of the batch, or the reason why their products cannot be computed."""
        points = _Points.of(whole.correlation, whole.filtering, images)
        product = points.product(whole.direction)
        gemm = _SPLIT.offer(product, figures)
        if isinstance(gemm, str):
            gemm = _TILED.offer(product, figures)
        return gemm if isinstance(gemm, str) else cls(whole.correlation.part(images), points, gemm)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A problem whose images are taken in parts about equally large. Immutable."""

    direction: Direction
    filtering: Filtering
    correlation: Correlation

    @property
    def images(self) -> int:
        """How many there are."""
        return self.correlation.output.shape[0]

    def part_sizes(self) -> tuple[int, ...]:
        """Images of each part: the same but in the last one, which may have fewer."""
        one = _Points.of(self.correlation, self.filtering, 1)
        most = max(_MOST_BYTES // max(one.nbytes("input") + one.nbytes("output"), 1), 1)
        size = max(-(-self.images // max(-(-self.images // most), 1)), 1)
        whole, rest = divmod(self.images, size)
        return (*(size,) * whole, *(rest,) * (rest > 0)) or (0,)

    def seconds(self, figures: DeviceFigures) -> float:
        """Estimated time: the launches, what goes through the workspace, and the products."""
        points = _Points.of(self.correlation, self.filtering, self.images)
        tensors = self.correlation.input, self.correlation.output
        nbytes = points.workspace_bytes + sum(tensor.size * tensor.dtype.itemsize for tensor in tensors) / 2
        memory = nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE)
        memory += sum(strided_seconds(tensor, figures) for tensor in tensors)
        multiplications = points.points * points.groups * points.channels * points.filters * points.tiles
        rate = figures.products_per_second(Maths.of(points.dtype)) * _OF_RATE
        return figures.launch_seconds * _LAUNCHES + memory + multiplications / rate


def _prepare(batch: _Batch, sizes: tuple[int, ...], parts: Mapping[int, _Part], figures: DeviceFigures) -> Calls:
    """Transforms and products of each part, `parts` by their number of images."""
    steps, filtering = _STEPS[batch.direction], batch.filtering
    units = _units(filtering, batch.correlation.input.dtype)
    params = {size: part.correlation.params(filtering.outputs) for size, part in parts.items()}
    products = {size: part.gemm.prepare() for size, part in parts.items()}
    points = {name: Place(WORKSPACE, offset) for name, offset in parts[sizes[0]].points.offsets().items()}
    end = Place(WORKSPACE, parts[sizes[0]].points.workspace_bytes)
    tensors = {"input": batch.correlation.input, "output": batch.correlation.output}

    def transforms(names: tuple[str, ...], size: int, start: int) -> Calls:
        """One thread per place in the workspace."""
        first_image = {name: start * tensor.strides[0] * tensor.dtype.itemsize for name, tensor in tensors.items()}
        places: dict[FieldPath, Place] = dict(points.items())
        for operand, name in enumerate(FIELDS[batch.direction]):
            places[name] = Place(operand, first_image.get(name, 0))
        return tuple(
            call
            for name in names
            for call in kernel_call(
                units[name],
                blocks_for(figures, parts[size].points.count(_TRANSFORMS[name]), _THREADS),
                _THREADS,
                params[size],
                places,
            )
        )

    starts = tuple(itertools.accumulate(sizes[:-1], initial=0))
    calls = transforms(steps.first, sizes[0], 0)
    for start, size in zip(starts, sizes, strict=True):
        adds = bool(steps.last) and start > 0
        operands = [points[name] for name in steps.operands]
        calls += transforms(steps.before, size, start)
        calls += rewired(products[size], operands, end, alpha=1.0, beta=float(adds))
        calls += transforms(steps.after, size, start)
    return calls + transforms(steps.last, sizes[-1], starts[-1])


@dataclass(frozen=True)
class NonfusedWinograd(BoundedTwice, Selective):
    """3x3 filters, stride 1, all three directions; a workspace that is bounded in batches. Immutable.

    Args:
        filtering: F2 or F4: about 4 or 2.25 times each tensor in the workspace.
    """

    name: str
    filtering: Filtering

    @cached_property
    def _error_factor(self) -> float:
        return max(self.filtering.forward_factor(), self.filtering.filter_gradient_factor())

    def suits(self, kind: ConvolutionKind) -> bool:
        """Filters of 3 x 3 without strides."""
        return is_transformed(kind)

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """The workspace holds the three transformed operands, and the product's parts where its reduction is cut."""
        correlation = correlation_or_reason(problem)
        if isinstance(correlation, str):
            return correlation
        batch = _Batch(problem.direction, self.filtering, correlation)
        sizes, parts = batch.part_sizes(), {}
        for size in dict.fromkeys((sizes[0], sizes[-1])):
            part = _Part.of(batch, size, figures)
            if isinstance(part, str):
                return part
            parts[size] = part
        return Offer(
            batch.seconds(figures),
            partial(_prepare, batch, sizes, parts, figures),
            parts[sizes[0]].points.workspace_bytes + max(part.gemm.workspace_bytes for part in parts.values()),
            math="dtype winograd",
            error_factor=self._error_factor,
        )

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What the points of images take on their way through memory, and the products."""
        points = least_points(problem, self.filtering.outputs)
        if points == math.inf:
            return points
        x, y, filters, dtype = problem.x, problem.y, problem.w.shape[0], problem.x.dtype
        nbytes = points * (x.shape[1] + filters) * dtype.compute.itemsize + (x.size + y.size) * dtype.itemsize / 2
        multiplications = points * x.shape[1] * filters / problem.convolution.groups
        rate = figures.products_per_second(Maths.of(dtype.compute)) * _OF_RATE
        memory = nbytes / (figures.bytes_per_second * _OF_MEMORY_RATE)
        return figures.launch_seconds * _LAUNCHES + (memory + multiplications / rate) * (1 - 1e-9)

    def closer_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """All that it takes: the estimate does not ask how the products are computed."""
        correlation = correlation_or_reason(problem)
        if isinstance(correlation, str):
            return math.inf
        return _Batch(problem.direction, self.filtering, correlation).seconds(figures)

    def units(self) -> tuple[Unit, ...]:
        """The transforms; the products' units are the tiled GEMM's."""
        return tuple(unit for dtype in FLOATING for unit in _units(self.filtering, dtype).values())


WINOGRAD_NONFUSED = NonfusedWinograd("winograd_nonfused", F4)
WINOGRAD_NONFUSED_2X2 = NonfusedWinograd("winograd_nonfused_2x2", F2)
