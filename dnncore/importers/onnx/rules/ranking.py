"""The largest and the smallest elements, and where they are: indices are int32 in a net, int64 in ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dnncore.dtypes import DType
from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.values import Computed, Imported
from dnncore.nn.operators import ArgMax, Binary, Cast, Reduce, Scale, TopK, Where

__all__ = ["RULES"]

_MAX_PLACES = 1 << 24
"""Whole numbers that float32 has, in which places are compared."""


def _arg_extreme(sign: int) -> Rule:
    """The index of the largest of sign times x."""

    def rule(call: Call) -> Sequence[Imported]:
        x, attributes = _signed(call, call.tensor(0), sign), call.attributes
        axis = call.axis(attributes.integer("axis", 0), x.ndim)
        index = (_last_index if attributes.integer("select_last_index", 0) else _first_index)(call, x, axis)
        if attributes.integer("keepdims", 1):
            return (index,)
        return (call.reshape(index, *((*shape[:axis], *shape[axis + 1 :]) for shape in index.shapes)),)

    return rule


def _signed(call: Call, x: Computed, sign: int) -> Computed:
    return x if sign == 1 else call.emit(Scale(float(sign)), x)


def _first_index(call: Call, x: Computed, axis: int) -> Computed:
    return call.emit_all(ArgMax(axis), x)[1]


def _last_index(call: Call, x: Computed, axis: int) -> Computed:
    """The largest index of an element that is the largest."""
    count = x.extent(axis)
    if count > _MAX_PLACES:
        raise NotSupportedError(f"select_last_index among {count} elements; {_MAX_PLACES} are supported")
    call.claim((count,), 4)
    places = np.arange(count, dtype=np.float32).reshape(-1, *(1,) * (x.ndim - axis - 1))
    is_largest = call.emit(Binary("equal"), x, call.emit(Reduce("max", (axis,)), x))
    nowhere = call.constant("nowhere", np.array(-1, np.float32))
    found = call.emit(Where(), is_largest, call.constant("places", places), nowhere)
    return call.emit(Cast(DType.INT32.value), call.emit(Reduce("max", (axis,)), found))


def _top_k(call: Call) -> Sequence[Imported]:
    """Sorted whether that is asked for or not."""
    attributes = call.attributes
    attributes.integer("sorted", 1)
    sign = 1 if attributes.integer("largest", 1) else -1
    wanted = (attributes.integer("k", 0),) if call.version < 10 else call.integers(1, "k")
    if wanted is None or len(wanted) != 1:
        raise BadParamError(f"k {wanted} must be one number")
    x = call.tensor(0)
    operator = TopK(wanted[0], call.axis(attributes.integer("axis", -1), x.ndim))
    values, indices = call.emit_all(operator, _signed(call, x, sign))
    return _signed(call, values, sign), indices


RULES: Mapping[str, Rule] = {"ArgMax": _arg_extreme(1), "ArgMin": _arg_extreme(-1), "TopK": _top_k}
