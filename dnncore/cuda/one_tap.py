"""Matrix products by kernels of convolutions: a convolution by filters of one tap is a product.

Which of them depends on where the operands of c [M, N] = a [M, K] b [K, N] have their neighbours in memory:

    channels last      neighbours                  convolution
    forward            a, b along K, c along N     y  [pixels, filters]   = x  [pixels, channels]  w  [filters, channels]'
    backward-data      a along K, b, c along N     dx [pixels, channels]  = dy [pixels, filters]   w  [filters, channels]
    backward-filter    a along M, b along N        dw [filters, channels] = dy [pixels, filters]'  x  [pixels, channels]

    planes
    forward            b, c along N                y  [filters, pixels]   = w  [filters, channels] x  [channels, pixels]
    backward-filter    a, b along K                dw [filters, channels] = dy [filters, pixels]   x  [channels, pixels]'

and each of c' = b' a', too. What is not named may lie anywhere. So channels last takes, of the ways in which a, b and c can lie,

    c by rows      b along K      b along N            c by columns      b along K         b along N
    a along K      forward        backward-data        a along K         forward of c'     none
    a along M      none           backward-filter      a along M         backward-data     backward-filter
                                                                         of c'

A fully connected layer is the first of these forward, and the others are its gradients.

Offers are those of the convolutions. Their estimates are fitted to layers of nets on an H200, as convolutions [of products nothing
is measured], and rank products too: kernels and tensor maps are the same, and a step or a tile that is half empty takes as long as
a full one, in the estimates as in the kernels. So does a single row, which was measured as the last layer of a net at batch 1. What
is so small that a launch is all it takes, and sums shorter than what an instruction adds up, are left to `gemm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from dnncore.backend import Offer
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.calls import Calls, Place, rewired
from dnncore.cuda.convolution.implicit_gemm import IMPLICIT_GEMM
from dnncore.cuda.convolution.tf32_backward_filter import Tf32BackwardFilter
from dnncore.cuda.convolution.tf32_planes import Tf32Planes
from dnncore.cuda.convolution.wgmma import WgmmaConvolution
from dnncore.cuda.convolution.wgmma_backward_data import WgmmaBackwardData
from dnncore.cuda.convolution.wgmma_backward_filter import WgmmaBackwardFilter
from dnncore.cuda.tensor_map import ALIGNMENT_BYTES
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionProblem, Direction, MatmulProblem

__all__ = ["GEMM_3XTF32", "GEMM_WGMMA", "OneTapMatmul", "Way"]

_ONE_TAP = ConvolutionDescriptor.make()
_FEWEST_SUMMANDS = 16
"""What an instruction of 16 bits adds up; and of fewer what 3xTF32 leaves out counts."""

_ONE_TILE = 64
"""Rows and columns of the smallest tile of 16 bits, and summands of its step."""

_ROWS, _COLUMNS = 1, 0
"""Where neighbours are: the index in which they differ."""


@dataclass(frozen=True, slots=True)
class _Form:
    """A product as one of the convolutions. Immutable.

    Args:
        direction: Of the convolution.
        operands: a, b and c as its x, w and y.
        neighbours: Which operands must have neighbours where, so that the copy engine takes them.
        a_is_first: Whether a is the convolution's first input, and b the second; else b is.
        stores_whole: Whether the copy engine writes c, and so sixteen bytes at a time.
    """

    direction: Direction
    operands: Callable[[TensorDescriptor, TensorDescriptor, TensorDescriptor], tuple[TensorDescriptor, ...]]
    neighbours: tuple[tuple[str, int], ...]
    a_is_first: bool = False
    stores_whole: bool = False


def _pixels(matrix: TensorDescriptor) -> TensorDescriptor:
    """[N, C] as images of one pixel, or as filters of one tap."""
    return TensorDescriptor(matrix.dtype, (*matrix.shape, 1, 1), (*matrix.strides, 1, 1))


def _planes(matrix: TensorDescriptor) -> TensorDescriptor:
    """[C, pixels] as one image, whose planes have one row."""
    (planes, pixels), (pitch, step) = matrix.shape, matrix.strides
    return TensorDescriptor(matrix.dtype, (1, planes, 1, pixels), (planes * pitch, pitch, pixels, step))


_FORWARD = _Form(
    Direction.FORWARD,
    lambda a, b, c: (_pixels(a), _pixels(b.transposed()), _pixels(c)),
    (("a", _ROWS), ("b", _COLUMNS), ("c", _ROWS)),
    a_is_first=True,
    stores_whole=True,
)
_BACKWARD_DATA = _Form(
    Direction.BACKWARD_DATA,
    lambda a, b, c: (_pixels(c), _pixels(b), _pixels(a)),
    (("a", _ROWS), ("b", _ROWS), ("c", _ROWS)),
    stores_whole=True,
)
_BACKWARD_FILTER = _Form(
    Direction.BACKWARD_FILTER,
    lambda a, b, c: (_pixels(b), _pixels(c), _pixels(a.transposed())),
    (("a", _COLUMNS), ("b", _ROWS)),
)
_PLANES = _Form(
    Direction.FORWARD,
    lambda a, b, c: (_planes(b), _pixels(a), _planes(c)),
    (("b", _ROWS), ("c", _ROWS)),
)
_FILTER_OF_PLANES = _Form(
    Direction.BACKWARD_FILTER,
    lambda a, b, c: (_planes(b.transposed()), _pixels(c), _planes(a)),
    (("a", _ROWS), ("b", _COLUMNS)),
)


@dataclass(frozen=True, slots=True)
class Way:
    """How a product is computed as a convolution by filters of one tap. Immutable.

    Args:
        algorithm: What computes the convolution.
        form: Which one it is.
        is_transposed: Whether it is of b' and a', and gives c'.
    """

    algorithm: CudaAlgorithm
    form: _Form
    is_transposed: bool

    def convolution(self, product: MatmulProblem) -> ConvolutionProblem:
        """The same product of the same memory."""
        a, b, c = product.a, product.b, product.c
        if self.is_transposed:
            a, b, c = b.transposed(), a.transposed(), c.transposed()
        x, w, y = self.form.operands(a, b, c)
        return ConvolutionProblem(self.form.direction, x, w, y, _ONE_TAP)

    def places(self) -> tuple[Place, Place, Place]:
        """Where the convolution's operands are among a, b and c."""
        a_is_first = self.form.a_is_first is not self.is_transposed
        return (Place(0), Place(1), Place(2)) if a_is_first else (Place(1), Place(0), Place(2))

    def missing(self, product: MatmulProblem) -> list[str]:
        """What keeps the copy engine from the operands, a reason for each."""
        found = []
        for name, index in self.form.neighbours:
            if self.is_transposed:
                name, index = {"a": "b", "b": "a", "c": "c"}[name], 1 - index
            is_whole = name == "c" and self.form.stores_whole
            found.append(_why_not_copied(name, getattr(product, name), index, is_whole=is_whole))
        return [reason for reason in found if reason is not None]


def _why_not_copied(name: str, matrix: TensorDescriptor, index: int, *, is_whole: bool) -> str | None:
    """None where the copy engine takes neighbours that differ in an index, and writes them whole where it must, else the reason."""
    aligned = ALIGNMENT_BYTES // matrix.dtype.itemsize
    length, step = matrix.shape[index], matrix.strides[index]
    lines, pitch = matrix.shape[1 - index], matrix.strides[1 - index]
    are_neighbours = length == 1 or step == 1
    are_aligned = lines == 1 or (pitch > 0 and pitch % aligned == 0)
    if are_neighbours and are_aligned and not (is_whole and length % aligned):
        return None
    line = "row" if index == _ROWS else "column"
    whole = f", and a multiple of {aligned} elements in each" if is_whole else ""
    return (
        f"{name} ({matrix}) needs neighbours along its {line}s, {line}s a multiple of {aligned} elements apart{whole}"
    )


@dataclass(frozen=True)
class OneTapMatmul:
    """A product as one of several convolutions, the one that takes least by estimate. Immutable.

    Args:
        name: See `backend.Algorithm`.
        dtypes: That it is for.
        ways: Which convolutions.
    """

    name: str
    dtypes: tuple[DType, ...]
    ways: tuple[Way, ...]

    def units(self) -> tuple[Unit, ...]:
        """Every unit that its calls can name: those of the convolutions, and of what computes where an operand begins anywhere."""
        found = (
            unit for way in self.ways for algorithm in (way.algorithm, IMPLICIT_GEMM) for unit in algorithm.units()
        )
        return tuple(dict.fromkeys(found))

    def offer(self, problem: MatmulProblem, figures: DeviceFigures) -> Offer | str:
        """What the fastest of the ways takes; or the reason why there is none."""
        if problem.a.dtype not in self.dtypes:
            return f"a is {problem.a.dtype.value}; it takes {', '.join(dtype.value for dtype in self.dtypes)}"
        summands = problem.a.shape[1]
        if summands < _FEWEST_SUMMANDS:
            return f"sums of {summands} products; at least {_FEWEST_SUMMANDS}"
        rows, columns = problem.c.shape
        if max(rows, columns, summands) <= _ONE_TILE:
            return f"{rows} x {columns} sums of {summands} products take no longer than a launch, and others need no tensor maps"
        missing = [(way, way.missing(problem)) for way in self.ways]
        suiting = [way for way, reasons in missing if not reasons]
        if not suiting:
            fewest = min(len(reasons) for _, reasons in missing)
            return "; or ".join(
                dict.fromkeys(" and ".join(reasons) for _, reasons in missing if len(reasons) == fewest)
            )
        made = [(way, way.algorithm.offer(way.convolution(problem), figures)) for way in suiting]
        offers = [(way, offer) for way, offer in made if isinstance(offer, Offer)]
        if not offers:
            return "; or ".join(dict.fromkeys(str(reason) for _, reason in made))
        way, offer = min(offers, key=lambda pair: pair[1].seconds)
        return replace(offer, prepare=partial(_calls, way, offer))


def _calls(way: Way, offer: Offer) -> Calls:
    return rewired(offer.prepare(), way.places())


def _ways(*forms: tuple[CudaAlgorithm, _Form]) -> Iterator[Way]:
    """Each of the forms, of a product and of the transposed one."""
    for algorithm, form in forms:
        yield Way(algorithm, form, is_transposed=False)
        yield Way(algorithm, form, is_transposed=True)


GEMM_WGMMA = OneTapMatmul(
    "gemm_wgmma",
    (DType.FLOAT16, DType.BFLOAT16),
    tuple(
        _ways(
            (WgmmaConvolution("implicit_gemm_wgmma", IMPLICIT_GEMM), _FORWARD),
            (WgmmaBackwardData("implicit_gemm_wgmma", IMPLICIT_GEMM), _BACKWARD_DATA),
            (WgmmaBackwardFilter("implicit_gemm_wgmma", IMPLICIT_GEMM), _BACKWARD_FILTER),
        )
    ),
)
"""Of 16 bits, by `wgmma`: sums are in fp32, and are rounded once."""

_FILTERS = Tf32BackwardFilter("implicit_gemm_3xtf32", 3, IMPLICIT_GEMM)

GEMM_3XTF32 = OneTapMatmul(
    "gemm_3xtf32",
    (DType.FLOAT32,),
    tuple(
        _ways(
            (Tf32Planes("implicit_gemm_3xtf32", IMPLICIT_GEMM), _PLANES),
            (_FILTERS, _FILTER_OF_PLANES),
            (_FILTERS, _BACKWARD_FILTER),
        )
    ),
)
"""Of float32 and as precise, by three products of tf32 for each (docs/numerics.md has the limits)."""
