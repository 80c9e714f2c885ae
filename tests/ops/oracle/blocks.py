"""Blocks of layers: layer by layer in PyTorch, with what lies between rounded as the layers would store it."""

from __future__ import annotations

import math

import numpy as np
import torch

from dnncore.problems import BottleneckProblem, InvertedResidualProblem
from tests.ops.oracle.answer import Tensor, Terms, answers, draw, draw_inputs

__all__: list[str] = []


@draw_inputs.register
def _(problem: BottleneckProblem, rng: np.random.Generator) -> list[np.ndarray]:
    """Filters divided by the root of a sum's length, so that every sum is of the size of biases and of what is added.

    Sums of three layers would outgrow these a thousandfold, and so would the errors allowed: nobody saw if one were left out.
    """
    found = []
    for name, descriptor in zip(problem.input_names, problem.inputs, strict=True):
        values = draw(descriptor, rng)
        is_filter = name in ("reduce", "middle", "restore", "shortcut")
        scale = math.prod(descriptor.shape[1:]) ** -0.5 if is_filter else 1.0
        found.append((values.astype(np.float64) * scale).astype(descriptor.dtype.numpy))
    return found


@answers.register(BottleneckProblem)
@answers.register(InvertedResidualProblem)
def _(problem: BottleneckProblem | InvertedResidualProblem, *inputs: Tensor) -> Terms:
    """A sum that lies between two values of 16 bits may be rounded either way: by so much more may the last sums be off.

    What a layer adds that another gave counts with the terms that it is a sum of: one kernel adds up all of these at once, and
    where they cancel, what was rounded before is more of them than of their sum.
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
