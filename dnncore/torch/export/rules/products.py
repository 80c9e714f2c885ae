"""Fully connected layers, matrix products and attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dnncore.errors import NotSupportedError
from dnncore.nn.graph import Value
from dnncore.nn.operators import Binary, InnerProduct, MatrixProduct, Reshape, Softmax, Transpose
from dnncore.torch.export.call import Call, Operand
from dnncore.torch.export.rules.shapes import fixed, reshaped

__all__ = ["RULES"]

_aten = torch.ops.aten


def _linear(call: Call, x: Value, weight: Value, bias: Value | None) -> str:
    """Rows of x [..., C] times weight [K, C]."""
    if len(x.shape) == 2:
        return call.add(InnerProduct(), x, weight, bias)
    rows = call.add(Reshape((-1, fixed(weight.shape[1], "the weight"))), x, part="rows")
    return reshaped(call, call.add(InnerProduct(), rows, weight, bias), call.shape)


def _product(call: Call, x: Value, other: Value | None = None, mat2: Value | None = None) -> str:
    """Of matrices; leading dimensions are broadcast."""
    right = mat2 if other is None else other
    assert right is not None
    return call.add(MatrixProduct(), x, right)


def _added_product(call: Call, x: Value, beta: float, alpha: float, **matrices: Value) -> str:
    """beta x + alpha a b."""
    a, b = matrices.values()
    y = call.add(MatrixProduct(float(alpha)), a, b, part="product")
    return call.add(Binary("add", 1.0, float(beta)), y, x)


def _attention(
    call: Call,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> str:
    """softmax(scale query key' + mask) value, over the last two dimensions."""
    if enable_gqa or dropout_p:
        raise NotSupportedError(f"enable_gqa {enable_gqa}, dropout_p {dropout_p}")
    length = fixed(query.shape[-1], "the length of a row")
    factor = 1 / math.sqrt(length) if scale is None else scale
    ndim = len(key.shape)
    transposed = call.add(Transpose((*range(ndim - 2), ndim - 1, ndim - 2)), key, part="key")
    scores = call.add(MatrixProduct(factor), query, transposed, part="scores")
    mask: Operand = attn_mask
    if is_causal:
        rows, columns = (fixed(each.shape[-2], "the number of rows") for each in (query, key))
        above = np.triu(np.full((rows, columns), -np.inf, np.float32), 1)
        mask = call.constant("mask", above)
    if mask is not None:
        scores = call.add(Binary("add"), scores, mask, part="masked")
    weights = call.add(Softmax(ndim - 1), scores, part="weights")
    return call.add(MatrixProduct(), weights, value)


RULES: dict[Any, Callable[..., str]] = {
    _aten.addmm.default: _added_product,
    _aten.baddbmm.default: _added_product,
    _aten.bmm.default: _product,
    _aten.linear.default: _linear,
    _aten.matmul.default: _product,
    _aten.mm.default: _product,
    _aten.scaled_dot_product_attention.default: _attention,
}
"""By operator."""
