"""An inverted residual, layer by layer in float64, with what lies between rounded as the layers would store it."""

from __future__ import annotations

import numpy as np

from dnncore.problems import InvertedResidualProblem
from dnncore.reference.fused_convolution import ALGORITHMS as FUSED
from dnncore.reference.launch import Array, ReferenceAlgorithm

__all__ = ["ALGORITHMS"]

_EXACT = FUSED[-1]


def _composed(problem: InvertedResidualProblem, *arrays: Array) -> Array:
    given = dict(zip(problem.input_names, arrays, strict=True))
    value = x = given["x"]
    *before, last = problem.layers
    names = ("depthwise",) if problem.expand is None else ("expand", "depthwise")
    for name, layer in zip((*names, "project"), (*before, last), strict=True):
        bias = [given[f"{name}_bias"]] if f"{name}_bias" in given else []
        residual = [x] if layer.z is not None else []
        found = _EXACT.compute(layer, value, given[name], *bias, *residual)
        assert isinstance(found, np.ndarray)
        value = found if layer is last else found.astype(problem.x.dtype.numpy).astype(found.dtype)
    return value


ALGORITHMS = (
    ReferenceAlgorithm(
        "composed", _composed, temporaries=lambda problem: problem.expanded.size + problem.filtered.size
    ),
)
