"""Inverted residuals: layer by layer in PyTorch, with what lies between rounded as the layers would store it."""

from __future__ import annotations

import torch

from dnncore.problems import InvertedResidualProblem
from tests.ops.oracle.answer import Tensor, Terms, answers

__all__: list[str] = []


@answers.register
def _(problem: InvertedResidualProblem, *inputs: Tensor) -> Terms:
    """A sum that lies between two values of 16 bits may be rounded either way: by so much more may the last sums be off."""
    given = dict(zip(problem.input_names, inputs, strict=True))
    value, dtype = given["x"], getattr(torch, problem.x.dtype.value)
    names = ("depthwise", "project") if problem.expand is None else ("expand", "depthwise", "project")
    length = 0
    for name, layer in zip(names, problem.layers, strict=True):
        others = [given[f"{name}_bias"]] if f"{name}_bias" in given else []
        found = answers(layer, value, given[name], *others, *([given["x"]] if layer.z is not None else []))
        assert isinstance(found, tuple)
        exact, magnitude, terms = found
        value, length = exact.to(dtype).double(), length + terms
    return exact, magnitude, length
