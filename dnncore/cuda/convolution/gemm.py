"""cuDNN's GEMM algorithm: the input's patches as columns of a matrix in the workspace, and one matrix product per batch of images.

    forward          y  = w  columns,  columns = im2col(x)
    backward-data    dx = col2im(columns),  columns = w' dy
    backward-filter  dw = dy columns', columns = im2col(x)

The columns are as many times larger than x as the filter has taps, so the batch is cut where they would outgrow the workspace. Rows
of columns lie in the order in which w's elements do, so that the product counts them as one dimension: any number of spatial
dimensions then fits its indices. Source: arXiv 1410.0759, section 3, which starts from this.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from dnncore.backend import Offer
from dnncore.bounds import Bounded
from dnncore.cuda.calls import WORKSPACE, Calls, Place, aligned, rewired
from dnncore.cuda.gemm import Digit, Phase, Product, SplitGemm, TiledGemm
from dnncore.cuda.im2col import Columns, columns_seconds, gather, gather_units, scatter, scatter_units
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["GEMM", "GemmConvolution"]

_COLUMNS_BYTES = 256 * 1024 * 1024
"""Most that the columns of several images take together; those of one image take what they take."""

_LAUNCHES = 7
"""What a part of the batch takes beside columns and product [cautious: there are three at most, but where everything is small, what
was measured comes first]."""


@dataclass(frozen=True, slots=True)
class _Filter:
    """The elements of one filter, [C/G, *filter], as rows of the columns. Immutable.

    Args:
        shape: Extents.
        strides: In w.
        rows: From one row to the next, a dimension: rows are numbered in the order of memory, or channels first where groups must
            stay together.
        step: Elements of w per row; None where rows are not evenly spaced.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    rows: tuple[int, ...]
    step: int | None

    @classmethod
    def of(cls, problem: ConvolutionProblem) -> _Filter:
        shape, strides = problem.w.shape[1:], problem.w.strides[1:]
        order = list(reversed(range(len(shape))))
        if problem.convolution.groups == 1:
            order.sort(key=lambda axis: strides[axis])
        rows, count = [0] * len(shape), 1
        steps: list[tuple[int, int]] = []
        for axis in order:
            rows[axis] = count
            if shape[axis] > 1:
                steps.append((count, strides[axis]))
            count *= shape[axis]
        step = steps[0][1] if steps else 1
        even = all(stride == row * step for row, stride in steps)
        return cls(shape, strides, tuple(rows), step if even else None)

    @property
    def size(self) -> int:
        """How many rows there are."""
        return math.prod(self.shape)


def _columns(problem: ConvolutionProblem, elements: _Filter) -> Columns:
    places = problem.y.shape[2:]
    row_length = math.prod(places)
    return Columns(
        convolution=problem.convolution,
        filter_shape=problem.w.shape[2:],
        output_shape=places,
        batch=problem.x.shape[1] * math.prod(problem.w.shape[2:]) * row_length,
        channel=elements.rows[0] * row_length,
        taps=tuple(row * row_length for row in elements.rows[1:]),
        place=1,
    )


def _row_major(extents: tuple[int, ...]) -> list[int]:
    """Steps from one place to the next along each dimension, none of which is empty."""
    return list(accumulate(reversed(extents[1:]), operator.mul, initial=1))[::-1]


def _product(problem: ConvolutionProblem, elements: _Filter, columns: Columns, images: int) -> Product | str:
    """The product of so many images and their columns, which come as the operand that the direction does not name."""
    w, y, conv = problem.w, problem.y, problem.convolution
    filters, row_length = w.shape[0] // conv.groups, columns.row_length
    group = elements.size * row_length
    steps = (columns.batch, *_row_major(y.shape[2:]))
    of_y = list(zip((images, *y.shape[2:]), steps, (y.strides[0], *y.strides[2:]), strict=True))
    if problem.direction is Direction.BACKWARD_DATA:
        if elements.step is None:
            return f"w ({w}) does not have its taps evenly spaced, as rows of a matrix need them"
        phase = Phase.of(
            [Digit(extent, stride, step) for extent, step, stride in of_y], [Digit(filters, y.strides[1], w.strides[0])]
        )
        return Product(
            dtype=w.dtype, rows=elements.size, a_row_stride=elements.step, c_row_stride=row_length, groups=conv.groups,
            a_group_stride=filters * w.strides[0], b_group_stride=filters * y.strides[1], c_group_stride=group,
            bounds=(), phases=(phase,), inputs=("a", "b"),
        )  # fmt: skip
    of_w = [
        Digit(extent, row * row_length, stride)
        for extent, row, stride in zip(elements.shape, elements.rows, elements.strides, strict=True)
    ]
    along_y = [Digit(*each) for each in of_y]
    if problem.direction is Direction.FORWARD:
        return Product(
            dtype=w.dtype, rows=filters, a_row_stride=w.strides[0], c_row_stride=y.strides[1], groups=conv.groups,
            a_group_stride=filters * w.strides[0], b_group_stride=group, c_group_stride=filters * y.strides[1],
            bounds=(), phases=(Phase.of(along_y, of_w),), inputs=("a", "b"),
        )  # fmt: skip
    return Product(
        dtype=w.dtype, rows=filters, a_row_stride=y.strides[1], c_row_stride=w.strides[0], groups=conv.groups,
        a_group_stride=filters * y.strides[1], b_group_stride=group, c_group_stride=filters * w.strides[0],
        bounds=(), phases=(Phase.of(of_w, along_y),), inputs=("a", "b"),
    )  # fmt: skip


def _itself(product: Product | str) -> Product | str:
    return product


_SPLIT, _WHOLE = SplitGemm("product", _itself), TiledGemm("product", _itself)


def _multiplication(product: Product | str, figures: DeviceFigures) -> Offer | str:
    """Of the product, its sums cut where that is worth it."""
    split = _SPLIT.offer(product, figures)
    return _WHOLE.offer(product, figures) if isinstance(split, str) else split


@dataclass(frozen=True, slots=True)
class _Parts:
    """The batch in parts whose columns the workspace holds, all but the last of them equal. Immutable.

    Args:
        images: In all.
        most: In a part.
        image_bytes: Of an image's columns.
    """

    images: int
    most: int
    image_bytes: int

    @classmethod
    def of(cls, problem: ConvolutionProblem) -> _Parts:
        rows = problem.x.shape[1] * math.prod(problem.w.shape[2:])
        images, image_bytes = problem.x.shape[0], rows * math.prod(problem.y.shape[2:]) * problem.x.dtype.itemsize
        return cls(images, max(min(images, _COLUMNS_BYTES // image_bytes), 1), image_bytes)

    @property
    def columns_bytes(self) -> int:
        """Bytes of the columns that there are at a time, up to where something aligned can follow."""
        return aligned(self.most * self.image_bytes)

    def sizes(self) -> dict[int, int]:
        """How many parts there are of so many images."""
        whole, rest = divmod(self.images, self.most)
        return {self.most: whole, rest: 1} if rest else {self.most: whole}

    def seconds(self, images: int, figures: DeviceFigures) -> float:
        """Estimated time of a part of so many images without its product."""
        nbytes = images * self.image_bytes  # written once and read once; x is small beside them
        return _LAUNCHES * figures.launch_seconds + columns_seconds(nbytes, nbytes, figures)

    def each(self) -> list[tuple[int, int]]:
        """The first image of each part and how many it has."""
        return [(first, min(self.most, self.images - first)) for first in range(0, self.images, self.most)]


@dataclass(frozen=True, slots=True)
class GemmConvolution(Bounded):
    """im2col or col2im through the workspace, and matrix products. Immutable."""

    name: str = "gemm"

    def units(self) -> tuple[Unit, ...]:
        """Every unit that its calls can name."""
        return (*gather_units(), *scatter_units(), *_SPLIT.units(), *_WHOLE.units())

    def least_seconds(self, problem: ConvolutionProblem, figures: DeviceFigures) -> float:
        """What the columns take."""
        if not problem.x.dtype.is_floating or _is_empty(problem):
            return math.inf
        parts = _Parts.of(problem)
        return sum(count * parts.seconds(images, figures) for images, count in parts.sizes().items())

    def offer(self, problem: ConvolutionProblem, figures: DeviceFigures) -> Offer | str:
        """What columns and products take, or the reason why it cannot solve the problem."""
        if not problem.x.dtype.is_floating:
            return f"x is {problem.x.dtype.value}; a floating-point type is needed"
        if _is_empty(problem):
            return "a tensor is empty"
        elements = _Filter.of(problem)
        columns = _columns(problem, elements)
        parts = _Parts.of(problem)
        cut_sum = problem.direction is Direction.BACKWARD_FILTER and parts.most < parts.images
        if cut_sum and problem.x.dtype is not problem.x.dtype.compute:
            return (
                f"the columns of all images take more than {_COLUMNS_BYTES} B, and sums of fewer would be rounded to "
                f"{problem.x.dtype.value} in between"
            )
        products: dict[int, Offer] = {}
        seconds = 0.0
        for images, count in parts.sizes().items():
            product = _multiplication(_product(problem, elements, columns, images), figures)
            if isinstance(product, str):
                return product
            products[images] = product
            seconds += count * (parts.seconds(images, figures) + product.seconds)
        workspace = parts.columns_bytes + max(product.workspace_bytes for product in products.values())
        return Offer(seconds, partial(_calls, problem, columns, parts, products, figures), workspace)


def _is_empty(problem: ConvolutionProblem) -> bool:
    return not (problem.x.size and problem.w.size and problem.y.size)


def _calls(
    problem: ConvolutionProblem,
    columns: Columns,
    parts: _Parts,
    products: Mapping[int, Offer],
    figures: DeviceFigures,
) -> Calls:
    """Columns and product of each part; equal parts share what they are made of."""
    x, direction, backward = problem.x, problem.direction, problem.direction is Direction.BACKWARD_DATA
    patches: dict[int, Calls] = {}
    multiply: dict[int, Calls] = {}
    for images, product in products.items():
        patches[images] = (scatter if backward else gather)(x.with_shape((images, *x.shape[1:])), columns, figures)
        multiply[images] = product.prepare()
    x_step, y_step = (tensor.strides[0] * tensor.dtype.itemsize for tensor in (x, problem.y))
    of_columns, rest = Place(WORKSPACE), Place(WORKSPACE, parts.columns_bytes)
    first_input, second_input, output = Place(0), Place(1), Place(2)
    calls: list[Calls] = []
    for first, images in parts.each():
        x_at, y_at = first * x_step, first * y_step
        if direction is Direction.FORWARD:
            calls += [
                rewired(patches[images], (first_input.plus(x_at), of_columns), alpha=1.0, beta=0.0),
                rewired(multiply[images], (second_input, of_columns, output.plus(y_at)), rest),
            ]
        elif backward:
            operands = first_input, second_input.plus(y_at), of_columns
            calls += [
                rewired(multiply[images], operands, rest, alpha=1.0, beta=0.0),
                rewired(patches[images], (of_columns, output.plus(x_at))),
            ]
        else:
            operands = second_input.plus(y_at), of_columns, output
            calls += [
                rewired(patches[images], (first_input.plus(x_at), of_columns), alpha=1.0, beta=0.0),
                rewired(multiply[images], operands, rest, beta=1.0 if first else None),
            ]
    return tuple(call for each in calls for call in each)


GEMM = GemmConvolution()
