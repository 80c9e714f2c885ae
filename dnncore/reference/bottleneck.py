"""A bottleneck layer by layer, what lies between rounded as the layers would store it: in float32 with the layers' bits."""

from __future__ import annotations

from functools import partial

from dnncore.figures import Maths
from dnncore.problems import BottleneckProblem
from dnncore.reference.fused_convolution import able, whole
from dnncore.reference.launch import Array, ReferenceAlgorithm

__all__ = ["ALGORITHMS"]


def _layer_by_layer(maths: Maths, problem: BottleneckProblem, *arrays: Array) -> Array:
    given = dict(zip(problem.input_names, arrays, strict=True))
    value = x = given["x"]
    for name, layer in zip(("reduce", "middle", "restore"), problem.layers, strict=True):
        bias = [given[f"{name}_bias"]] if layer.bias is not None else []
        added = [given.get("z", x)] if layer.z is not None else []
        value = whole(maths, layer, value, given[name], *bias, *added)
        if name != "restore":
            value = value.astype(problem.x.dtype.numpy).astype(x.dtype)
    return value


def _unsupported(maths: Maths, problem: BottleneckProblem) -> str | None:
    return None if all(able(maths, layer) for layer in problem.layers) else "a tensor is empty"


def _temporaries(problem: BottleneckProblem) -> int:
    return problem.reduced.size + problem.filtered.size


ALGORITHMS = tuple(
    ReferenceAlgorithm(name, partial(_layer_by_layer, maths), partial(_unsupported, maths), _temporaries, maths)
    for name, maths in (("layers_fp32", Maths.FP32), ("layers", Maths.FP64))
)
