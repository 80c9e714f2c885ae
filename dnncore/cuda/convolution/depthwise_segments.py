"""Small planes in shared memory, whose rows threads take in segments: what the depthwise kernels of planes have in common."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import ConvolutionProblem

__all__ = ["FORMS", "MAX_THREADS", "Segments", "in_pairs", "least_seconds_of_taps", "why_no_planes"]

FORMS = tuple(itertools.product((DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32), (5, 7)))
"""Element type and filter of each kernel."""

MAX_THREADS = 256
_SEGMENT = 14
"""kSegment in depthwise_segments.cuh."""

_BANK_BYTES = 4
_MAX_COUNT = 2**31


@dataclass(frozen=True, slots=True)
class Segments:
    """How rows of what is read, with the zeros around them, and of what is walked over are cut. Immutable.

    Args:
        source: What is read at many places.
        output: What is written, or walked over.
        filter: Taps along either axis.
        before: Rows, and columns, of zeros in front of the source.
    """

    source: TensorDescriptor
    output: TensorDescriptor
    filter: int
    before: tuple[int, int]

    @property
    def wide(self) -> int:
        """Columns of a segment, even."""
        columns = self.output.shape[3]
        segments = -(-columns // _SEGMENT)
        return -(-columns // segments // 2) * 2

    @property
    def source_segments(self) -> int:
        """Of a row."""
        return -(-self.source.shape[3] // self.wide)

    @property
    def output_segments(self) -> int:
        """Of a row."""
        return -(-self.output.shape[3] // self.wide)

    @property
    def pitch(self) -> int:
        """Elements from row to row in shared memory: what a row's last segment reaches, in an odd number of words."""
        reach = (self.output_segments - 1) * self.wide + _SEGMENT + self.filter - 1
        words = -(-max(reach, self.before[1] + self.source.shape[3]) // self.word)
        return (words | 1) * self.word

    @property
    def word(self) -> int:
        """Elements of a bank."""
        return max(_BANK_BYTES // self.source.dtype.itemsize, 1)

    @property
    def rows(self) -> int:
        """Of a plane in shared memory."""
        return max(self.output.shape[2] + self.filter - 1, self.before[0] + self.source.shape[2])

    @property
    def plane(self) -> int:
        """Elements of a plane in shared memory."""
        return self.rows * self.pitch


def in_pairs(*tensors: TensorDescriptor) -> bool:
    """Whether pairs of neighbouring columns are never apart, given addresses that are multiples of theirs."""
    return all(
        tensor.shape[3] % 2 == 0 and not any(tensor.strides[axis] % 2 for axis in range(3) if tensor.shape[axis] > 1)
        for tensor in tensors
    )


def least_seconds_of_taps(problem: ConvolutionProblem, figures: DeviceFigures) -> float:
    """What no kernel of FORMS is below: the launch, and all products or the bytes of both images; infinite where there is none."""
    w, y = problem.w, problem.y
    if w.shape[1] != 1 or (w.dtype, w.shape[2]) not in FORMS:
        return math.inf
    products = y.size * math.prod(w.shape[2:]) / figures.products_per_second(Maths.FP32)
    return figures.launch_seconds + max(products, (problem.x.nbytes + y.nbytes) / figures.bytes_per_second)


def why_no_planes(problem: ConvolutionProblem) -> str | None:
    """None where the kernels can solve it, given room, else the reason why not."""
    x, w, y, conv = problem.x, problem.w, problem.y, problem.convolution
    if conv.spatial_ndim != 2 or w.shape[1] != 1 or w.shape[0] != x.shape[1]:
        return f"w is {w.shape}; one filter for each channel and two spatial dimensions are needed"
    if (x.dtype, w.shape[2]) not in FORMS or w.shape[2] != w.shape[3]:
        return f"filters are {w.shape[2]} x {w.shape[3]} in {x.dtype.value}; it has kernels of 5 x 5 and 7 x 7, not in float64"
    if conv.stride != (1, 1) or conv.dilation != (1, 1):
        return f"stride {conv.stride}, dilation {conv.dilation}; both must be 1"
    if not x.size or not y.size:
        return "there are no products"
    for name, tensor in (("x", x), ("y", y)):
        if tensor.strides[3] != 1:
            return f"columns of {name} are {tensor.strides[3]} elements apart"
        if (
            max(map(abs, tensor.strides)) * math.prod(tensor.shape) >= _MAX_COUNT**2
            or tensor.shape[0] >= _MAX_COUNT // 2
        ):
            return f"{name} spans too much for its coordinates"
    return None
