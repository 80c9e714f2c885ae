"""Problems with names, for the tables of algorithms.

A kind of problem is its class, and its direction where it has one. The cases of the tests count too, so a new kind of problem is in
the tables as soon as it has cases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.layers import LAYERS, LayerGeometry
from dnncore import RELU, Layout, PoolingDescriptor, PoolingMode, SoftmaxAlgorithm, SoftmaxMode, TensorDescriptor
from dnncore import problems as p
from dnncore.descriptors import BatchNormMode, LRNDescriptor, ReduceOperator
from dnncore.dtypes import DType
from dnncore.problems import Direction, Problem
from tests.cases import CASES, Case

__all__ = ["EXAMPLES", "TESTED", "kind"]

Named = Iterator[tuple[str, Problem]]

ANNOUNCEMENT = LayerGeometry("announcement of 2014", 128, 96, 221, 256, 7, 2, 0)
IMAGES = TensorDescriptor.packed((64, 64, 112, 112))
SIZE = "64 x 64 x 112 x 112"


def kind(problem: Problem) -> str:
    """A heading: "Convolution, backward data", "LRN forward".

    Filter gradients in a wider type than the operands' have algorithms of their own.
    """
    words = re.findall(
        r"[A-Z]{2,}(?![a-z])|[A-Z][a-z]*(?:2[A-Z][a-z]*)?", type(problem).__name__.removesuffix("Problem")
    )
    name = " ".join([words[0], *map(str.lower, words[1:])])
    direction = getattr(problem, "direction", None)
    if not isinstance(direction, Direction):
        return name
    heading = f"{name}, {direction.value.replace('_', ' ')}"
    is_wide = direction is Direction.BACKWARD_FILTER and problem.outputs[0].dtype is not problem.inputs[0].dtype
    return f"{heading} in {problem.outputs[0].dtype.value}" if is_wide else heading


def _convolutions() -> Named:
    for layer in (ANNOUNCEMENT, *LAYERS):
        for direction in Direction:
            yield layer.name, layer.problem(direction)
        narrow = layer.problem(Direction.BACKWARD_FILTER, DType.FLOAT16)
        yield layer.name, replace(narrow, w=narrow.w.with_dtype(DType.FLOAT32))
        plain = layer.problem(Direction.FORWARD)
        bias = TensorDescriptor.packed((1, layer.k, 1, 1))
        fused = p.FusedConvolutionProblem(plain.x, plain.w, plain.y, plain.convolution, bias=bias, activation=RELU)
        yield layer.name, fused


def _of_images() -> Named:
    x, channels = IMAGES, TensorDescriptor.packed((1, 64, 1, 1))
    yield SIZE, p.ActivationForwardProblem(x, x, RELU)
    yield SIZE, p.ActivationBackwardProblem(x, x, x, x, RELU)
    yield f"bias of {SIZE}", p.AddProblem(channels, x)
    yield f"NCHW to NHWC, {SIZE}", p.AddProblem(x, TensorDescriptor.packed(x.shape, layout=Layout.NHWC))
    yield f"{SIZE} to itself", p.AddProblem(x, x)
    yield f"bias gradient of {SIZE}", p.SumProblem(x, channels)
    yield f"channels of {SIZE}", p.ReduceProblem(x, channels, ReduceOperator.MAX)
    pooling = PoolingDescriptor.make(PoolingMode.MAX, 3, stride=2, padding=1)
    y = TensorDescriptor.packed(pooling.output_shape(x.shape))
    yield f"3 x 3, stride 2, of {SIZE}", p.PoolingForwardProblem(x, y, pooling)
    yield f"3 x 3, stride 2, of {SIZE}", p.PoolingBackwardProblem(y, y, x, x, pooling)


def _of_rows() -> Named:
    t, accurate = TensorDescriptor.packed, (SoftmaxAlgorithm.ACCURATE, SoftmaxMode.INSTANCE)
    for x in (t((64, 10)), t((128, 1000)), t((4096, 50000))):
        size = f"{x.shape[0]} x {x.shape[1]}"
        yield size, p.SoftmaxForwardProblem(x, x, *accurate)
        yield size, p.SoftmaxBackwardProblem(x, x, x, *accurate)
        yield f"rows of {size}", p.SumProblem(x, t((x.shape[0], 1)))
        yield f"columns of {size}", p.SumProblem(x, t((1, x.shape[1])))
        yield f"rows of {size}", p.ReduceProblem(x, t((x.shape[0], 1)), ReduceOperator.MAX)
    for m, k, n in ((1024, 1024, 1024), (64, 25088, 4096)):
        yield f"{m} x {k} x {n}", p.MatmulProblem(t((m, k)), t((k, n)), t((m, n)))


def _normalizations() -> Named:
    x, t = IMAGES, TensorDescriptor.packed
    c, groups, rows, lrn = t((1, 64, 1, 1)), t((64, 8, 1, 1)), t((64, 1, 1, 1)), LRNDescriptor.make()
    places, mode = t((1, *x.shape[1:])), BatchNormMode.SPATIAL
    yield SIZE, p.LRNForwardProblem(x, x, lrn)
    yield SIZE, p.LRNBackwardProblem(x, x, x, x, lrn)
    yield SIZE, p.BatchNormInferenceProblem(x, c, c, c, c, x, mode, 1e-5)
    yield SIZE, p.BatchNormForwardProblem(x, c, c, x, c, c, mode, 1e-5)
    yield SIZE, p.BatchNormBackwardProblem(x, x, c, c, c, x, c, c, mode)
    yield SIZE, p.LayerNormForwardProblem(x, x, rows, 1, 1e-5, rows, places, places)
    yield SIZE, p.LayerNormBackwardProblem(x, x, rows, x, 1, rows, places, places, places)
    yield f"8 groups of {SIZE}", p.GroupNormForwardProblem(x, x, groups, groups, 8, 1e-5, c, c)
    yield f"8 groups of {SIZE}", p.GroupNormBackwardProblem(x, x, groups, groups, x, 8, c, c, c)


def _tested() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in CASES:
        found.setdefault(kind(case.problem), []).append(case)
    return found


TESTED = _tested()
"""The tests' cases, by kind."""


def _examples() -> dict[str, list[tuple[str, Problem]]]:
    found: dict[str, list[tuple[str, Problem]]] = {}
    for name, problem in (*_convolutions(), *_of_images(), *_of_rows(), *_normalizations()):
        found.setdefault(kind(problem), []).append((name, problem))
    for heading, cases in TESTED.items():  # the largest of a kind stands in where there is no example
        if heading not in found:
            largest = max(cases, key=lambda case: sum(t.nbytes for t in (*case.problem.inputs, *case.problem.outputs)))
            found[heading] = [(f"the tests' {largest.name}", largest.problem)]
    return found


EXAMPLES = _examples()
"""Problems with names, by kind."""
