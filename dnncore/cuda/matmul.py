"""Matrix product: kernels of convolutions for the copy engine and matrix units of sm_90, the tiled kernels with plain operands, and
a direct one that takes what does not fit them."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.backend import Offer
from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.convolution.direct import DIRECT
from dnncore.cuda.gemm import Digit, Phase, Product, SplitGemm, TiledGemm
from dnncore.cuda.one_tap import GEMM_3XTF32, GEMM_WGMMA
from dnncore.cuda.unit import Unit
from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.figures import DeviceFigures
from dnncore.problems import ConvolutionProblem, Direction, MatmulProblem

__all__ = ["ALGORITHMS", "matmul_product"]


def matmul_product(problem: MatmulProblem) -> Product:
    """Describe a matrix product in the tiled kernels' terms."""
    a, b, c = problem.a, problem.b, problem.c
    return Product(
        dtype=a.dtype, rows=a.shape[0], a_row_stride=a.strides[0], c_row_stride=c.strides[0], groups=1,
        a_group_stride=0, b_group_stride=0, c_group_stride=0, bounds=(), inputs=("a", "b"),
        phases=(
            Phase.of([Digit(b.shape[1], b.strides[1], c.strides[1])], [Digit(b.shape[0], b.strides[0], a.strides[1])]),
        ),
    )  # fmt: skip


def _as_convolution(problem: MatmulProblem) -> ConvolutionProblem:
    """c = a b as a 1-d convolution over one place: a's rows are the batch, b's columns the filters."""

    def with_place(matrix: TensorDescriptor) -> TensorDescriptor:
        return TensorDescriptor(matrix.dtype, (*matrix.shape, 1), (*matrix.strides, 1))

    return ConvolutionProblem(
        Direction.FORWARD,
        with_place(problem.a),
        with_place(problem.b.transposed()),
        with_place(problem.c),
        ConvolutionDescriptor.make(1),
    )


@dataclass(frozen=True)
class DirectMatmul:
    """One thread per element of c, in double precision. Immutable."""

    name: str = "direct"

    def units(self) -> tuple[Unit, ...]:
        """Every unit that its calls can name."""
        return DIRECT.units()

    def offer(self, problem: MatmulProblem, figures: DeviceFigures) -> Offer:
        """What the convolution takes that computes the same; its operands are numbered alike."""
        return DIRECT.offer(_as_convolution(problem), figures)


ALGORITHMS: tuple[CudaAlgorithm, ...] = (
    GEMM_WGMMA,
    GEMM_3XTF32,
    SplitGemm("gemm_split_k", matmul_product),
    TiledGemm("gemm", matmul_product, yields=True),
    DirectMatmul(),
)
"""Of equal estimates the first is taken; the last supports everything that is legal."""
