"""The fully connected layer and the matrix product."""

from __future__ import annotations

from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.formats import with_leading
from dnncore.functional.operands import Operand, compute
from dnncore.functional.operation import Draft, Operation, Step, remembered
from dnncore.problems import AddProblem, FusedConvolutionProblem, MatmulProblem
from dnncore.tensor import Tensor

__all__ = ["linear", "matmul"]


@remembered
def _linear(x: TensorDescriptor, w: TensorDescriptor, bias: TensorDescriptor | None) -> Operation:
    """(x, w, bias) -> y: with a bias in one launch, or after one that writes it first, whichever is faster."""
    if w.ndim != 2:
        raise BadParamError(f"weight has shape {w.shape}; [K, C] is needed")
    if not x.ndim:
        raise BadParamError("input has shape (); [..., C] is needed")
    y = TensorDescriptor.packed((*x.shape[:-1], w.shape[0]), x.dtype)
    draft = Draft(3, y)
    (result,) = draft.results
    place, a = draft.matrix(0, x)
    _, c = draft.matrix(result, y)
    product = MatmulProblem(a, w.transposed(), c)
    if bias is None:
        return draft.operation((Step(product, (place, 1, result)),))
    if bias.shape != w.shape[:1]:
        raise BadParamError(f"bias has shape {bias.shape} but weight {w.shape} needs {w.shape[:1]}")
    row = with_leading(bias, 2)
    two_launches = (Step(AddProblem(row, c), (2, result)), Step(product, (place, 1, result), beta=1.0))
    images, filters, planes, along = (_with_a_place(matrix) for matrix in (a, w, c, row))
    fused = FusedConvolutionProblem(images, filters, planes, _POINTWISE, bias=along)
    return draft.operation(two_launches, (Step(fused, (place, 1, 2, result)),))


_POINTWISE = ConvolutionDescriptor.make(1)


def _with_a_place(matrix: TensorDescriptor) -> TensorDescriptor:
    """[M, C] as [M, C, 1]: a product with a bias in one launch is a convolution of single places."""
    return TensorDescriptor(matrix.dtype, (*matrix.shape, 1), (*matrix.strides, 1))


def linear(input: Operand, weight: Operand, bias: Operand | None = None) -> Tensor:
    """y [..., K] = x [..., C] times the transpose of w [K, C], plus bias [K]."""
    return compute(_linear, (), input, weight, bias, optional=1)[0]


@remembered
def _matmul(x: TensorDescriptor, other: TensorDescriptor) -> Operation:
    if other.ndim > 2:
        raise BadParamError(
            f"other has shape {other.shape}; products with more than one matrix are not supported: call matmul for each"
        )
    if not (x.ndim and other.ndim):
        raise BadParamError(f"input has shape {x.shape} and other {other.shape}; each needs a dimension")
    kept = other.shape[1:]
    b = other if kept else TensorDescriptor(other.dtype, (*other.shape, 1), (*other.strides, 1))
    y = TensorDescriptor.packed((*x.shape[:-1], *kept), x.dtype)
    draft = Draft(2, y)
    place, a = draft.matrix(0, x)
    c = TensorDescriptor.packed((a.shape[0], b.shape[1]), x.dtype)
    draft.step(MatmulProblem(a, b, c), place, 1, *draft.results)
    return draft.operation()


def matmul(input: Operand, other: Operand) -> Tensor:
    """The product of x [..., K] with one matrix [K, N], [..., N], or with one vector [K], [...]; no dimensions of two vectors.

    Args:
        input: [..., K]: a vector, a matrix or a stack of these.
        other: [K, N] or [K].
    """
    return compute(_matmul, (), input, other)[0]
