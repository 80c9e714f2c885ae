"""Softmax and its logarithm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from dnncore.nn.graph import Value
from dnncore.nn.operators import Softmax
from dnncore.torch.export.call import Call
from dnncore.torch.export.rules.shapes import axis_of

__all__ = ["RULES"]

_aten = torch.ops.aten


def _softmax(log: bool, call: Call, x: Value, dim: int, **_how: Any) -> str:
    return call.add(Softmax(axis_of(dim, x), log), x)


RULES: dict[Any, Callable[..., str]] = {
    _aten._log_softmax.default: partial(_softmax, True),
    _aten._softmax.default: partial(_softmax, False),
    _aten.log_softmax.int: partial(_softmax, True),
    _aten.softmax.int: partial(_softmax, False),
}
"""By operator."""
