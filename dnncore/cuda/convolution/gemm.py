"""cuDNN's GEMM algorithm: the input's patches as columns of a matrix in the workspace, and one matrix product a batch of images.

    forward          y  = w  columns,  columns = im2col(x)
    backward-data    dx = col2im(columns),  columns = w' dy
    backward-filter  dw = dy columns', columns = im2col(x)

The columns are as many times larger than x as the filter has taps, so the batch is cut where they would outgrow the workspace, a
function of the problem alone. Rows of columns lie in the order in which w's elements do, so that the product counts them as one
dimension: any number of spatial dimensions then fits its indices. Source: arXiv 1410.0759, section 3, which starts from this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dnncore.backend import Address, Launch, Stream
from dnncore.cuda.device import CudaDevice
from dnncore.cuda.gemm import Digit, Phase, Product, SplitGemm, TiledGemm
from dnncore.cuda.im2col import Columns, gather, gather_units, scatter, scatter_units
from dnncore.cuda.launch import Unit
from dnncore.cuda.memory import aligned
from dnncore.descriptors import TensorDescriptor
from dnncore.problems import ConvolutionProblem, Direction

__all__ = ["GEMM", "GemmConvolution"]

_COLUMNS_BYTES = 256 * 1024 * 1024
"""Most that the columns of several images take together; those of one image take what they take."""


@dataclass(frozen=True, slots=True)
class _Filter:
    """The elements of one filter, [C/G, *filter], as rows of the columns. Immutable.

    Args:
        shape: Extents.
        strides: In w.
        rows: From one row to the next, a dimension: rows are numbered in the order of memory, or channels first where groups must
            stay together.
        step: Elements of w a row; None where rows are not evenly spaced.
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


def _columns(problem: ConvolutionProblem) -> Columns:
    places, rows = problem.y.shape[2:], _Filter.of(problem).rows
    row_length = math.prod(places)
    return Columns(
        convolution=problem.convolution,
        filter_shape=problem.w.shape[2:],
        output_shape=places,
        batch=problem.x.shape[1] * math.prod(problem.w.shape[2:]) * row_length,
        channel=rows[0] * row_length,
        taps=tuple(row * row_length for row in rows[1:]),
        place=1,
    )


def _product(problem: ConvolutionProblem) -> Product | str:
    """The product of a problem and its columns, which come as the operand that the direction does not name."""
    w, y, conv = problem.w, problem.y, problem.convolution
    columns, elements = _columns(problem), _Filter.of(problem)
    filters, row_length = w.shape[0] // conv.groups, columns.row_length
    group = elements.size * row_length
    steps = (columns.batch, *TensorDescriptor.packed(y.shape[2:]).strides)
    of_y = list(zip((y.shape[0], *y.shape[2:]), steps, (y.strides[0], *y.strides[2:]), strict=True))
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


_SPLIT, _WHOLE = SplitGemm("product", _product), TiledGemm("product", _product)


def _multiplier(problem: ConvolutionProblem, device: CudaDevice | None = None) -> SplitGemm | TiledGemm:
    return _SPLIT if _SPLIT.supports(problem, device) is None else _WHOLE


def _images_at_a_time(problem: ConvolutionProblem) -> int:
    images, an_image = problem.x.shape[0], _columns(problem).batch * problem.x.dtype.itemsize
    return max(min(images, _COLUMNS_BYTES // max(an_image, 1)), 1)


def _of_images(problem: ConvolutionProblem, images: int) -> ConvolutionProblem:
    x, y = (tensor.with_shape((images, *tensor.shape[1:])) for tensor in (problem.x, problem.y))
    return replace(problem, x=x, y=y)


def _parts(problem: ConvolutionProblem) -> list[tuple[int, ConvolutionProblem]]:
    """The first image of each part and the problem of that part; all but the last are equal."""
    images, most = problem.x.shape[0], _images_at_a_time(problem)
    whole, rest = _of_images(problem, min(most, images)), images % most
    last = _of_images(problem, rest) if rest else whole
    return [(first, last if first + most > images else whole) for first in range(0, images, most)]


@dataclass(frozen=True, slots=True)
class GemmConvolution:
    """im2col or col2im through the workspace, and matrix products. Immutable."""

    name: str = "gemm"
    deterministic: bool = True
    math: str = "dtype"

    def supports(self, problem: ConvolutionProblem, device: CudaDevice) -> str | None:
        """None when it can solve the problem, else the reason why not."""
        if not problem.x.dtype.is_floating:
            return f"x is {problem.x.dtype.value}; a floating-point type is needed"
        if not (problem.x.size and problem.w.size and problem.y.size):
            return "a tensor is empty"
        parts = dict.fromkeys(part for _, part in _parts(problem))
        cut_sum = problem.direction is Direction.BACKWARD_FILTER and _images_at_a_time(problem) < problem.x.shape[0]
        if cut_sum and problem.x.dtype is not problem.x.dtype.compute:
            return (
                f"the columns of all images take more than {_COLUMNS_BYTES} B, and sums of fewer would be rounded to "
                f"{problem.x.dtype.value} in between"
            )
        return next(
            (why for part in parts if (why := _multiplier(part, device).supports(part, device)) is not None), None
        )

    def workspace_bytes(self, problem: ConvolutionProblem) -> int:
        """Bytes of the columns that there are at a time, and of what their product needs."""
        if not (problem.x.size and problem.w.size and problem.y.size):
            return 0
        parts = dict.fromkeys(part for _, part in _parts(problem))
        return _columns_bytes(problem) + max(_multiplier(part).workspace_bytes(part) for part in parts)

    def units(self) -> tuple[Unit, ...]:
        """Every unit that `prepare` can ask for."""
        return (*gather_units(), *scatter_units(), *_SPLIT.units(), *_WHOLE.units())

    def prepare(self, problem: ConvolutionProblem, device: CudaDevice) -> Launch:
        """Prepare the two launches of each part; equal parts share them."""
        parts = _parts(problem)
        launches = {part: _launches(part, device) for part in dict.fromkeys(part for _, part in parts)}
        columns_bytes, itemsize = _columns_bytes(problem), problem.x.dtype.itemsize
        x_step, y_step = problem.x.strides[0] * itemsize, problem.y.strides[0] * itemsize
        direction = problem.direction

        def launch(
            stream: Stream,
            alpha: float,
            inputs: Sequence[Address],
            beta: float,
            outputs: Sequence[Address],
            workspace: Address | None,
        ) -> None:
            columns, (output,) = workspace, outputs
            assert columns is not None
            rest = columns + columns_bytes
            for first, part in parts:
                patches, product = launches[part]
                if direction is Direction.FORWARD:
                    x, w = inputs
                    patches(stream, 1.0, (x + first * x_step,), 0.0, (columns,), None)
                    product(stream, alpha, (w, columns), beta, (output + first * y_step,), rest)
                elif direction is Direction.BACKWARD_DATA:
                    w, dy = inputs
                    product(stream, 1.0, (w, dy + first * y_step), 0.0, (columns,), rest)
                    patches(stream, alpha, (columns,), beta, (output + first * x_step,), None)
                else:
                    x, dy = inputs
                    patches(stream, 1.0, (x + first * x_step,), 0.0, (columns,), None)
                    product(stream, alpha, (dy + first * y_step, columns), 1.0 if first else beta, (output,), rest)

        return launch


def _columns_bytes(problem: ConvolutionProblem) -> int:
    return aligned(_images_at_a_time(problem) * _columns(problem).batch * problem.x.dtype.itemsize)


def _launches(part: ConvolutionProblem, device: CudaDevice) -> tuple[Launch, Launch]:
    """(between x and the columns, the product)."""
    patches = scatter if part.direction is Direction.BACKWARD_DATA else gather
    return patches(device, part.x, _columns(part)), _multiplier(part, device).prepare(part, device)


GEMM = GemmConvolution()
