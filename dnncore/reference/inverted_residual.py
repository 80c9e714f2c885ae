"""An inverted residual layer by layer, what lies between rounded as the layers would store it: in float32 with the layers' bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from dnncore.figures import Maths
from dnncore.problems import FusedConvolutionProblem, InvertedResidualProblem
from dnncore.reference.fused_convolution import ALGORITHMS as FUSED
from dnncore.reference.launch import Array, ReferenceAlgorithm

__all__ = ["ALGORITHMS"]


def _layer(maths: Maths, problem: FusedConvolutionProblem, *arrays: Array) -> Array:
    """By the first algorithm that supports it, as a whole."""
    algorithm = next(one for one in FUSED if one.maths is maths and one.unsupported(problem) is None)
    found = algorithm.compute(problem, *arrays)
    if not isinstance(found, Iterator):
        assert isinstance(found, np.ndarray)
        return found
    batch, channels, *extents = problem.y.shape
    # Channels-last, as the layers' results lie: in which order a product is summed depends on how its operands lie.
    whole = np.moveaxis(np.empty((batch, *extents, channels), arrays[0].dtype), -1, 1)
    for index, value in found:
        assert isinstance(value, np.ndarray)
        whole[index] = value
    return whole


def _layer_by_layer(maths: Maths, problem: InvertedResidualProblem, *arrays: Array) -> Array:
    given = dict(zip(problem.input_names, arrays, strict=True))
    value = x = given["x"]
    layers = problem.layers
    names = ("expand", "depthwise", "project")[-len(layers) :]
    for name, layer in zip(names, layers, strict=True):
        bias = [given[f"{name}_bias"]] if layer.bias is not None else []
        residual = [x] if layer.z is not None else []
        value = _layer(maths, layer, value, given[name], *bias, *residual)
        if name != "project":
            value = value.astype(problem.x.dtype.numpy).astype(x.dtype)
    return value


def _temporaries(problem: InvertedResidualProblem) -> int:
    return problem.expanded.size + problem.filtered.size


ALGORITHMS = tuple(
    ReferenceAlgorithm(name, partial(_layer_by_layer, maths), temporaries=_temporaries, maths=maths)
    for name, maths in (("layers_fp32", Maths.FP32), ("layers", Maths.FP64))
)
