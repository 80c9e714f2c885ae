"""Softmax and its logarithm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.values import Imported
from dnncore.nn.operators import Softmax

__all__ = ["RULES"]


def _softmax(log: bool) -> Rule:
    """Along one dimension since opset 13; before, over all dimensions from one on together."""

    def rule(call: Call) -> Sequence[Imported]:
        x = call.tensor(0)
        if not x.ndim:
            x = call.reshape(x, (1, 1), (1, 1))
            return (call.reshape(call.emit(Softmax(1, log), x), (), ()),)
        axis = call.axis(call.attributes.integer("axis", -1 if call.version >= 13 else 1), x.ndim)
        behind = [math.prod(shape[axis + 1 :]) for shape in x.shapes]
        if x.ndim == 1 or (call.version < 13 and behind != [1, 1]):
            few, many = ((math.prod(shape[:axis]), math.prod(shape[axis:])) for shape in x.shapes)
            return (call.reshape_like(call.emit(Softmax(1, log), call.reshape(x, few, many)), x),)
        return (call.emit(Softmax(axis, log), x),)

    return rule


RULES: Mapping[str, Rule] = {"LogSoftmax": _softmax(log=True), "Softmax": _softmax(log=False)}
