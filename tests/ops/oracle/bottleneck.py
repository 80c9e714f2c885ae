"""Bottlenecks: layer by layer in PyTorch, with what lies between rounded as the layers would store it."""

from __future__ import annotations

import torch

from dnncore.problems import BottleneckProblem
from tests.ops.oracle.answer import Tensor, Terms, answers

__all__: list[str] = []


@answers.register
def _(problem: BottleneckProblem, *inputs: Tensor) -> Terms:
    """A sum that lies between two values of 16 bits may be rounded either way: by so much more may the last sums be off."""
    given = dict(zip(problem.input_names, inputs, strict=True))
    value, dtype = given["x"], getattr(torch, problem.x.dtype.value)
    length = 0
    for name, layer in zip(("reduce", "middle", "restore"), problem.layers, strict=True):
        bias = [given[f"{name}_bias"]] if layer.bias is not None else []
        added = [given.get("z", given["x"])] if layer.z is not None else []
        found = answers(layer, value, given[name], *bias, *added)
        assert isinstance(found, tuple)
        exact, magnitude, terms = found
        value, length = exact.to(dtype).double(), length + terms
    return exact, magnitude, length
