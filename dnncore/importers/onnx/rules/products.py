"""Matrix products and the fully connected layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dnncore.errors import BadParamError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.values import Computed, Imported, Known
from dnncore.nn.graph import Role
from dnncore.nn.operators import Binary, InnerProduct, MatrixProduct, Transpose

__all__ = ["RULES"]


def _gemm(call: Call) -> Sequence[Imported]:
    """alpha A' B' + beta C. Where B is constant it is a fully connected layer, whose weight takes alpha and the transposition."""
    attributes = call.attributes
    attributes.integer("broadcast", 0)  # before opset 7, of C, which says itself whether it is
    alpha, beta = attributes.real("alpha", 1.0), attributes.real("beta", 1.0)
    a, b = call.tensor(0), call.operand(1)
    if attributes.integer("transA", 0):
        a = call.emit(Transpose((1, 0)), a)
    if isinstance(b, Known):
        y, rest = _inner_product(call, a, b, alpha, beta, bool(attributes.integer("transB", 0)))
        if not rest:
            return (y,)
    else:
        b = call.emit(Transpose((1, 0)), b) if attributes.integer("transB", 0) else b
        y = call.emit(MatrixProduct(alpha), a, b)
    if call.has(2) and beta != 0:
        y = call.emit(Binary("add", 1.0, beta), y, call.tensor(2, Role.TRAINABLE))
    return (y,)


def _inner_product(
    call: Call, x: Computed, b: Known, alpha: float, beta: float, transposed: bool
) -> tuple[Computed, bool]:
    """x times a constant, plus C where it is one number for each column; and whether C is left to be added."""
    matrix = b.fixed
    if matrix.ndim != 2:
        raise BadParamError(f"B {list(matrix.shape)} must have 2 dimensions")
    if transposed and alpha == 1:
        weight = call.tensor(1, Role.TRAINABLE)
    else:
        turned = matrix if transposed else matrix.T
        weight = call.constant("weight", np.ascontiguousarray(turned * np.asarray(alpha, matrix.dtype)), Role.TRAINABLE)
    columns = weight.few.shape[0]
    c = call.operand(2) if call.has(2) and beta != 0 else None
    if not isinstance(c, Known) or c.fixed.shape not in ((columns,), (1, columns), (1,), ()):
        return call.emit(InnerProduct(), x, weight), c is not None
    if c.fixed.shape == (columns,) and beta == 1:
        bias = call.tensor(2, Role.TRAINABLE)
    else:
        row = np.broadcast_to(c.fixed.reshape(-1) * np.asarray(beta, c.fixed.dtype), (columns,))
        bias = call.constant("bias", np.ascontiguousarray(row), Role.TRAINABLE)
    return call.emit(InnerProduct(), x, weight, bias), False


def _matmul(call: Call) -> Sequence[Imported]:
    a, b = call.operand(0), call.operand(1)
    if isinstance(a, Computed) and a.ndim >= 2 and isinstance(b, Known) and b.fixed.ndim == 2:
        weight = call.constant("weight", np.ascontiguousarray(b.fixed.T), Role.TRAINABLE)
        few, many = ((int(np.prod(shape[:-1])), shape[-1]) for shape in a.shapes)
        y = call.emit(InnerProduct(), call.reshape(a, few, many), weight)
        columns = weight.few.shape[0]
        return (call.reshape(y, (*a.few.shape[:-1], columns), (*a.many.shape[:-1], columns)),)
    left, right = (call.tensor(index, Role.TRAINABLE) for index in (0, 1))
    row, column = left.ndim == 1, right.ndim == 1
    if row:
        left = call.reshape(left, *((1, *shape) for shape in left.shapes))
    if column:
        right = call.reshape(right, *((*shape, 1) for shape in right.shapes))
    y = call.emit(MatrixProduct(), left, right)

    def shape(of: tuple[int, ...]) -> tuple[int, ...]:
        return (*of[:-2], *(() if row else of[-2:-1]), *(() if column else of[-1:]))

    return (call.reshape(y, shape(y.few.shape), shape(y.many.shape)),)


RULES: Mapping[str, Rule] = {"Gemm": _gemm, "MatMul": _matmul}
