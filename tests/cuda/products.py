"""Products of convolutions and matrices for the tests of the GEMM core, which are of Python alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnncore.backend import Algorithm, Offer
from dnncore.cuda.convolution.product import convolution_product
from dnncore.cuda.gemm.index_space import Digit, Product
from dnncore.descriptors import ConvolutionDescriptor, Layout, TensorDescriptor
from dnncore.figures import H200
from dnncore.problems import ConvolutionProblem, Direction, MatmulProblem, Problem

__all__ = [
    "GEOMETRIES",
    "Shape",
    "matmul_of",
    "offered",
    "offsets_of",
    "problem_of",
    "product_of",
    "refused",
]

Shape = tuple[int, ...]


def offered(algorithm: Algorithm, problem: Problem) -> Offer:
    """What an algorithm offers for an H200."""
    offer = algorithm.offer(problem, H200)
    assert isinstance(offer, Offer), offer
    return offer


def refused(algorithm: Algorithm, problem: Problem) -> str:
    """The reason that an algorithm gives instead."""
    reason = algorithm.offer(problem, H200)
    assert isinstance(reason, str), reason
    return reason


def problem_of(
    direction: Direction,
    x: Shape,
    w: Shape,
    conv: ConvolutionDescriptor,
    dtype: str = "float32",
    layout: Layout | str = "NCHW",
) -> ConvolutionProblem:
    y = conv.output_shape(x, w)
    tensors = [TensorDescriptor.packed(shape, dtype, layout) for shape in (x, w, y)]
    return ConvolutionProblem(direction, tensors[0], tensors[1], tensors[2], conv)


def product_of(
    direction: Direction, x: Shape, w: Shape, conv: ConvolutionDescriptor, layout: Layout | str = "NCHW"
) -> Product:
    product = convolution_product(problem_of(direction, x, w, conv, layout=layout))
    assert isinstance(product, Product), product
    return product


def matmul_of(m: int, n: int, k: int) -> MatmulProblem:
    return MatmulProblem(
        TensorDescriptor.packed((m, k)), TensorDescriptor.packed((k, n)), TensorDescriptor.packed((m, n))
    )


def offsets_of(digits: tuple[Digit, ...], count: int, stride: str) -> np.ndarray:
    numbers, total = np.arange(count), np.zeros(count, int)
    for digit in digits:
        total += numbers % digit.extent * getattr(digit, stride)
        numbers //= digit.extent
    return total


GEOMETRIES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "padded": ((2, 3, 7, 9), (5, 3, 3, 3), {"padding": 1}),
    "1x1": ((2, 5, 4, 6), (4, 5, 1, 1), {}),
    "strided": ((1, 4, 9, 7), (6, 4, 3, 2), {"padding": [(1, 0), (2, 1)], "stride": 2}),
    "grouped, dilated": ((2, 8, 6, 5), (8, 4, 3, 3), {"groups": 2, "padding": 2, "dilation": 2}),
    "rotated": ((1, 3, 11, 13), (4, 3, 5, 3), {"stride": [3, 2], "padding": [(2, 4), (0, 1)], "mode": "convolution"}),
    "1-d, stride and dilation share a factor": (
        (3, 4, 17),
        (5, 4, 4),
        {"padding": [(3, 1)], "stride": 4, "dilation": 2},
    ),
    "3-d": ((1, 2, 5, 6, 4), (3, 2, 3, 2, 3), {"padding": [1, 0, 1], "stride": [1, 2, 1], "mode": "convolution"}),
    "stride beyond the input": ((1, 2, 4, 9), (3, 2, 2, 2), {"stride": [6, 3], "padding": 1}),
    "padding wider than the input": ((2, 3, 2, 2), (4, 3, 3, 3), {"padding": [(3, 2), (2, 4)]}),
    "empty batch": ((0, 2, 5, 5), (3, 2, 2, 2), {}),
    "no channels": ((2, 0, 5, 5), (3, 0, 2, 2), {}),
}
