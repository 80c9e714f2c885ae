"""Blocks of layers: layer by layer in PyTorch, with what lies between rounded as the layers would store it."""

from __future__ import annotations

import torch

from dnncore.problems import BottleneckProblem, InvertedResidualProblem
from tests.ops.oracle.answer import Tensor, Terms, answers

__all__: list[str] = []


@answers.register(BottleneckProblem)
@answers.register(InvertedResidualProblem)
def _(problem: BottleneckProblem | InvertedResidualProblem, *inputs: Tensor) -> Terms:
    """A sum that lies between two values of 16 bits may be rounded either way: by so much more may the last sums be off.

    What a layer adds that another gave counts with the terms that it is a sum of.
    """
    values, dtype = dict(zip(problem.input_names, inputs, strict=True)), getattr(torch, problem.x.dtype.value)
    length, magnitudes = 0, dict[str, Tensor]()
    for layer in problem.layers:
        found = answers(layer.problem, *(values[name] for name in layer.operands))
        assert isinstance(found, tuple)
        exact, magnitude, terms = found
        for name in magnitudes.keys() & layer.operands[2:]:
            magnitude = magnitude + magnitudes[name] - values[name].abs()
        magnitudes[layer.result] = magnitude
        values[layer.result], length = exact.to(dtype).double(), length + terms
    return exact, magnitude, length
