"""Winograd's minimal filtering with a workspace: F(4x4, 3x3), 2.25 multiplications an output in place of 9, and F(2x2, 3x3), 4.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.convolution.locality import strided_seconds
from dnncore.cuda.convolution.winograd_error import F2, F4, Filtering
from dnncore.cuda.convolution.winograd_geometry import FIELDS, PARAMS, Correlation, why_not_winograd
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.gemm import Digit, Phase, Product, SplitGemm, TiledGemm
from dnncore.cuda.launch import Kernel, Unit, blocks_for
from dnncore.cuda.memory import aligned
from dnncore.cuda.params import FLOATING, c_type, generate_together
from dnncore.cuda.stream import CudaStream
from dnncore.dtypes import DType
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["WINOGRAD_NONFUSED", "WINOGRAD_NONFUSED_2X2", "NonfusedWinograd"]

_THREADS = 128

_MOST_BYTES = 2**29
"""Of workspace for transformed inputs and outputs [not measured]: the batch is taken in as few parts as that allows."""

# Of `seconds`, fitted to 24 layers and directions of benchmarks/layers.py in fp32 by F(4x4) on an H200, which it meets within 18 %
# and F(2x2) on 21, which is up to 30 % faster where images are small [fp64: half the rate].
_LAUNCHES_SECONDS = 54e-6
_BYTES_PER_SECOND = 2.1e12
_RATE = {DType.FLOAT32: 20.6e12, DType.FLOAT64: 10.3e12}

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

    def has(self, name: str) -> bool:
        """Whether a transform is one of them."""
        return name in (*self.first, *self.before, *self.after, *self.last)


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
    """The transformed operands: how many elements each has, a point, and their product. Immutable."""

    points: int
    dtype: DType
    groups: int
    channels: int
    filters: int
    tiles: int

    @classmethod
    def of(cls, correlation: Correlation, filtering: Filtering) -> _Points:
        return cls(
            filtering.tile_points,
            correlation.input.dtype.compute,
            correlation.groups,
            correlation.channels,
            correlation.filters,
            correlation.tiles(filtering.outputs),
        )

    def count(self, operand: str) -> int:
        """Elements a point of "input", "filter" or "output"."""
        return (
            self.groups
            * {
                "input": self.channels * self.tiles,
                "filter": self.channels * self.filters,
                "output": self.filters * self.tiles,
            }[operand]
        )

    def nbytes(self, operand: str) -> int:
        """Bytes of all its points, up to where something aligned can follow."""
        return aligned(self.points * self.count(operand) * self.dtype.itemsize)

    def offsets(self) -> dict[str, int]:
        """Bytes from the workspace's start to each operand's points, and to their end ("end")."""
        operands = ("input", "filter", "output")
        names = (*(f"{operand}_points" for operand in operands), "end")
        return dict(zip(names, itertools.accumulate(map(self.nbytes, operands), initial=0), strict=True))

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


def _gemm(product: Product) -> TiledGemm | SplitGemm:
    """The tiled GEMM, its reduction cut into parts where that is worth it."""
    return _TILED if _SPLIT.supports(product, None) is not None else _SPLIT


def _parts(correlation: Correlation, filtering: Filtering) -> list[tuple[int, Correlation]]:
    """The batch in parts about equally large, each with the number of its first image."""
    images = correlation.output.shape[0]
    one = _Points.of(correlation.part(1), filtering)
    most = max(_MOST_BYTES // max(one.nbytes("input") + one.nbytes("output"), 1), 1)
    size = max(-(-images // max(-(-images // most), 1)), 1)
    starts = range(0, images, size) if images else (0,)
    return [(start, correlation.part(min(size, images - start))) for start in starts]


@dataclass(frozen=True)
class NonfusedWinograd:
    """3x3 filters, stride 1, all three directions; a workspace that is bounded in batches. Immutable.

    Args:
        filtering: F2 or F4: about 4 or 2.25 times each tensor in the workspace.
    """

    name: str
    filtering: Filtering
    deterministic: bool = True
    math: str = "dtype winograd"

    @cached_property
    def error_factor(self) -> float:
        """Tolerances are this many times wider, and relative to the largest magnitude of each output plane."""
        return max(self.filtering.forward_factor(), self.filtering.filter_gradient_factor())

    def supports(self, problem: ConvolutionProblem, device: Any) -> str | None:
        """None when it can solve the problem, else the reason why not."""
        reason = why_not_winograd(problem)
        if reason is not None:
            return reason
        (_, largest), *_ = _parts(Correlation.of(problem), self.filtering)
        return _TILED.supports(_Points.of(largest, self.filtering).product(problem.direction), device)

    def workspace_bytes(self, problem: ConvolutionProblem) -> int:
        """Bytes of the three transformed operands, and of the product's parts where its reduction is cut."""
        if why_not_winograd(problem) is not None:
            return 0
        parts = [_Points.of(part, self.filtering) for _, part in _parts(Correlation.of(problem), self.filtering)]
        products = [points.product(problem.direction) for points in (parts[0], parts[-1])]
        return parts[0].offsets()["end"] + max(_gemm(product).workspace_bytes(product) for product in products)

    def seconds(self, problem: ConvolutionProblem) -> float:
        """Estimated time on an H200: the launches, what goes through the workspace, and the products."""
        if why_not_winograd(problem) is not None:
            return math.inf
        points = _Points.of(Correlation.of(problem), self.filtering)
        nbytes = sum(map(points.nbytes, ("input", "filter", "output"))) + (problem.x.nbytes + problem.y.nbytes) / 2
        memory = nbytes / _BYTES_PER_SECOND + strided_seconds(problem.x) + strided_seconds(problem.y)
        multiplications = points.points * points.groups * points.channels * points.filters * points.tiles
        return _LAUNCHES_SECONDS + memory + multiplications / _RATE[points.dtype]

    def units(self) -> tuple[Unit, ...]:
        """The transforms; the products' units are the tiled GEMM's."""
        return tuple(unit for dtype in FLOATING for unit in _units(self.filtering, dtype).values())

    def prepare(self, problem: ConvolutionProblem, device: CudaDevice) -> Launch:
        """Fill in the parameters of the transforms and prepare the product, for each part of the batch."""
        steps, correlation = _STEPS[problem.direction], Correlation.of(problem)
        parts = _parts(correlation, self.filtering)
        offsets = _Points.of(parts[0][1], self.filtering).offsets()
        units = _units(self.filtering, problem.x.dtype)
        kernels = {name: device.kernel(unit) for name, unit in units.items() if steps.has(name)}
        prepared = [_Part.of(start, part, self.filtering, problem.direction, device) for start, part in parts]
        input_fields, output_fields = FIELDS[problem.direction]

        def launch(
            stream: Stream,
            alpha: float,
            inputs: Sequence[Address],
            beta: float,
            outputs: Sequence[Address],
            workspace: Address | None,
        ) -> None:
            assert isinstance(stream, CudaStream)
            base = int(workspace or 0)
            points = {name: base + offset for name, offset in offsets.items()}
            addresses = dict(zip((*input_fields, *output_fields), (*inputs, *outputs), strict=True))
            for part in prepared:
                part.fill(addresses, points, alpha, beta)
                if part is prepared[0]:
                    part.run(stream, kernels, steps.first)
                part.run(stream, kernels, steps.before)
                adds = bool(steps.last) and part is not prepared[0]
                a, b, c = (points[name] for name in steps.operands)
                part.multiply(stream, 1.0, (a, b), float(adds), (c,), points["end"])
                part.run(stream, kernels, steps.after)
            prepared[-1].run(stream, kernels, steps.last)

        return launch


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the batch, ready to run. Owned by its launch.

    Args:
        params: The transforms' parameters.
        first_image: Bytes from the address of each tensor that has images to the first one of the part.
        counts: Threads of each transform.
        multiply: The product.
    """

    params: np.ndarray
    first_image: dict[str, int]
    counts: dict[str, int]
    multiply: Launch

    @classmethod
    def of(cls, start: int, part: Correlation, filtering: Filtering, direction: Direction, device: CudaDevice) -> _Part:
        points = _Points.of(part, filtering)
        product = points.product(direction)
        tensors = {"input": part.input, "output": part.output}
        return cls(
            part.params(filtering.outputs),
            {name: start * tensor.strides[0] * tensor.dtype.itemsize for name, tensor in tensors.items()},
            {name: points.count(operand) for name, operand in _TRANSFORMS.items()},
            _gemm(product).prepare(product, device),
        )

    def fill(self, addresses: Mapping[str, int], points: Mapping[str, int], alpha: float, beta: float) -> None:
        """Fill in addresses and blending factors."""
        for name, address in addresses.items():
            self.params[name] = address + self.first_image.get(name, 0)
        for name in ("input_points", "filter_points", "output_points"):
            self.params[name] = points[name]
        self.params["alpha"], self.params["beta"] = alpha, beta

    def run(self, stream: CudaStream, kernels: Mapping[str, Kernel], names: Sequence[str]) -> None:
        """Launch transforms, one thread a place in the workspace, but those that have nothing to do."""
        for name in names:
            if self.counts[name]:
                blocks = blocks_for(self.counts[name], _THREADS)
                kernels[name].launch(stream, (blocks, 1, 1), (_THREADS, 1, 1), self.params)


WINOGRAD_NONFUSED = NonfusedWinograd("winograd_nonfused", F4)
WINOGRAD_NONFUSED_2X2 = NonfusedWinograd("winograd_nonfused_2x2", F2)
