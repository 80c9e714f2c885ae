"""Blocks of layers one after the other, what lies between rounded as the layers would store it: in float32 with their bits."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from dnncore.descriptors import TensorDescriptor
from dnncore.figures import Maths
from dnncore.problems.layers import Layer
from dnncore.reference.fused_convolution import able, whole
from dnncore.reference.launch import Array, ReferenceAlgorithm

__all__ = ["ALGORITHMS"]


class _Block(Protocol):
    @property
    def x(self) -> TensorDescriptor: ...

    @property
    def input_names(self) -> tuple[str, ...]: ...

    @property
    def layers(self) -> tuple[Layer, ...]: ...


def _layer_by_layer(maths: Maths, problem: _Block, *arrays: Array) -> Array:
    values = dict(zip(problem.input_names, arrays, strict=True))
    dtype, layers = problem.x.dtype.numpy, problem.layers
    for layer in layers[:-1]:
        found = whole(maths, layer.problem, *(values[name] for name in layer.operands))
        values[layer.result] = found.astype(dtype).astype(values["x"].dtype)
    return whole(maths, layers[-1].problem, *(values[name] for name in layers[-1].operands))


def _unsupported(maths: Maths, problem: _Block) -> str | None:
    return None if all(able(maths, layer.problem) for layer in problem.layers) else "a tensor is empty"


def _temporaries(problem: _Block) -> int:
    return sum(layer.problem.y.size for layer in problem.layers[:-1])


ALGORITHMS = tuple(
    ReferenceAlgorithm(name, partial(_layer_by_layer, maths), partial(_unsupported, maths), _temporaries, maths)
    for name, maths in (("layers_fp32", Maths.FP32), ("layers", Maths.FP64))
)
"""Of every block."""
