"""Elements as another dtype: ONNX cuts off what does not fit, where devices round and saturate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dnncore.dtypes import DType
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.tensors import dtype_of
from dnncore.importers.onnx.values import Computed, Imported, Known
from dnncore.nn.operators import Binary, Cast, Unary

__all__ = ["RULES", "as_dtype"]

_BYTE = 256
"""How many numbers one of 8 bits has: what it is counted modulo."""


def as_dtype(call: Call, x: Computed, wanted: DType) -> Computed:
    """x as another dtype: of numbers with fractions the whole part, of whole numbers as many of the lowest bits as there are.

    Floating-point numbers out of range, of which ONNX says nothing, saturate.
    """
    dtype = x.few.dtype
    if dtype is wanted:
        return x
    if dtype.is_floating and not (wanted.is_floating or wanted is DType.BOOL):
        x = _truncated(call, x)
    elif wanted in (DType.UINT8, DType.INT8) and dtype is not DType.BOOL:
        x = _lowest_bits(call, as_dtype(call, x, DType.INT32), signed=wanted is DType.INT8)
    return call.emit(Cast(wanted.value), x)


def _truncated(call: Call, x: Computed) -> Computed:
    """Floating-point numbers without their fractions."""
    whole = call.emit(Unary("floor"), call.emit(Unary("abs"), x))
    return call.emit(Binary("mul"), call.emit(Unary("sign"), x), whole)


def _lowest_bits(call: Call, x: Computed, *, signed: bool) -> Computed:
    """The int32 that the lowest 8 bits of an int32 are."""
    size = call.scalar(x, _BYTE, "size")
    if not signed:
        return call.emit(Binary("mod"), x, size)
    half = call.scalar(x, _BYTE // 2, "half")
    return call.emit(Binary("sub"), call.emit(Binary("mod"), call.emit(Binary("add"), x, half), size), half)


def _as(call: Call, dtype: np.dtype) -> Sequence[Imported]:
    call.attributes.integer("saturate", 1)  # of types that no device has
    call.attributes.text("round_mode", "up")
    return (as_dtype(call, call.tensor(0), DType.of(dtype)),)


def _cast(call: Call) -> Sequence[Imported]:
    return _as(call, dtype_of(call.attributes.integer("to", 0)))


def _cast_like(call: Call) -> Sequence[Imported]:
    x, like = call.operand(0), call.operand(1)
    dtype = like.few.dtype if isinstance(like, Known) else like.few.dtype.numpy
    if isinstance(x, Known) and x.is_fixed:  # of the other one nothing but its dtype matters
        call.claim(x.few.shape, dtype.itemsize)
        found = x.fixed.astype(dtype)
        return (Known(call.outputs[0], found, found),)
    return _as(call, dtype)


RULES: Mapping[str, Rule] = {"Cast": _cast, "CastLike": _cast_like}
