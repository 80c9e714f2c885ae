"""The matrix product, and the fully connected layer in its terms."""

from __future__ import annotations

from functools import lru_cache

from dnncore.descriptors import TensorDescriptor
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.problems import MatmulProblem
from dnncore.tensor import Tensor

__all__ = ["inner_product_backward_data", "inner_product_backward_weights", "inner_product_forward", "matmul"]


def matmul(handle: Handle, alpha: float, a: Tensor, b: Tensor, beta: float, c: Tensor) -> None:
    """c [M, N] = a [M, K] times b [K, N]."""
    handle.execute(MatmulProblem, (a.descriptor, b.descriptor, c.descriptor), alpha, (a, b), beta, (c,))


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.view(_transposed_matrix(tensor.descriptor))


def _as_matrix(tensor: Tensor) -> Tensor:
    """[N, ...] as [N, everything else]; the tensor must be row-major where it has more than two dimensions."""
    return tensor if tensor.descriptor.ndim == 2 else tensor.view(_matrix(tensor.descriptor))


_MOST_DESCRIPTORS = 1024
"""That are remembered: a call seen before describes nothing."""


@lru_cache(_MOST_DESCRIPTORS)
def _transposed_matrix(descriptor: TensorDescriptor) -> TensorDescriptor:
    return descriptor.transposed()


@lru_cache(_MOST_DESCRIPTORS)
def _matrix(descriptor: TensorDescriptor) -> TensorDescriptor:
    if not descriptor.is_row_major:
        raise BadParamError(f"{descriptor} has more than 2 dimensions and is not row-major; transform it first")
    columns = TensorDescriptor.packed(descriptor.shape[1:], descriptor.dtype).size
    return TensorDescriptor.packed((descriptor.shape[0], columns), descriptor.dtype)


def inner_product_forward(handle: Handle, alpha: float, x: Tensor, w: Tensor, beta: float, y: Tensor) -> None:
    """y [N, K] = x [N, ...] (seen as [N, C]) times the transpose of w [K, C]."""
    matmul(handle, alpha, _as_matrix(x), _transposed(w), beta, y)


def inner_product_backward_data(handle: Handle, alpha: float, w: Tensor, dy: Tensor, beta: float, dx: Tensor) -> None:
    """dx [N, ...] (seen as [N, C]) = dy [N, K] times w [K, C]."""
    matmul(handle, alpha, dy, w, beta, _as_matrix(dx))


def inner_product_backward_weights(
    handle: Handle, alpha: float, x: Tensor, dy: Tensor, beta: float, dw: Tensor
) -> None:
    """dw [K, C] = the transpose of dy [N, K] times x [N, ...] (seen as [N, C])."""
    matmul(handle, alpha, _transposed(dy), _as_matrix(x), beta, dw)
