"""Functions of one tensor, element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.values import Computed, Imported
from dnncore.nn.operators import Activation, Binary, Scale, Unary

__all__ = ["RULES"]


def _plain(operator: str) -> Rule:
    """A function of ours."""

    def rule(call: Call) -> Sequence[Imported]:
        return (call.emit(Unary(operator), call.tensor(0)),)

    return rule


def _absolute(call: Call, x: Computed) -> Computed:
    return call.emit(Unary("abs"), x) if x.few.dtype.is_floating else call.emit(Binary("max", 1.0, -1.0), x, x)


def _abs(call: Call) -> Sequence[Imported]:
    return (_absolute(call, call.tensor(0)),)


def _softsign(call: Call) -> Sequence[Imported]:
    x = call.tensor(0)
    return (call.emit(Binary("div"), x, call.emit(Binary("add"), _absolute(call, x), call.scalar(x, 1.0, "one"))),)


def _mish(call: Call) -> Sequence[Imported]:
    """x tanh(softplus(x))."""
    x = call.tensor(0)
    return (call.emit(Binary("mul"), x, call.emit(Activation("tanh"), call.emit(Unary("softplus"), x))),)


def _neg(call: Call) -> Sequence[Imported]:
    return (call.emit(Scale(-1.0), call.tensor(0)),)


def _not(call: Call) -> Sequence[Imported]:
    return (call.emit(Binary("xor"), call.tensor(0), call.constant("true", np.array(True))),)


RULES: Mapping[str, Rule] = {
    "Abs": _abs,
    "Ceil": _plain("ceil"),
    "Cos": _plain("cos"),
    "Erf": _plain("erf"),
    "Exp": _plain("exp"),
    "Floor": _plain("floor"),
    "Log": _plain("log"),
    "Mish": _mish,
    "Neg": _neg,
    "Not": _not,
    "Reciprocal": _plain("reciprocal"),
    "Round": _plain("round"),
    "Sign": _plain("sign"),
    "Sin": _plain("sin"),
    "Softplus": _plain("softplus"),
    "Softsign": _softsign,
    "Sqrt": _plain("sqrt"),
}
