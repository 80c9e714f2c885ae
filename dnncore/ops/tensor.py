"""Adding, transforming and summing tensors."""

from __future__ import annotations

from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.problems import AddProblem, SumProblem
from dnncore.tensor import Tensor

__all__ = ["add", "sum_to", "transform"]


def add(handle: Handle, alpha: float, a: Tensor, beta: float, c: Tensor) -> None:
    """c = alpha * a + beta * c; each extent of a is that of c or 1, as a bias [1, K, 1, 1] is."""
    handle.run(handle.plan(AddProblem(a.descriptor, c.descriptor)), alpha, (a,), beta, (c,))


def transform(handle: Handle, alpha: float, x: Tensor, beta: float, y: Tensor) -> None:
    """y = alpha * x + beta * y for equal shapes: a copy from one layout to another."""
    if x.shape != y.shape:
        raise BadParamError(f"x has shape {x.shape} but y has {y.shape}")
    add(handle, alpha, x, beta, y)


def sum_to(handle: Handle, alpha: float, x: Tensor, beta: float, y: Tensor) -> None:
    """y = x summed over the dimensions in which y has extent 1."""
    handle.run(handle.plan(SumProblem(x.descriptor, y.descriptor)), alpha, (x,), beta, (y,))
