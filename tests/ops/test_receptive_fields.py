"""A NaN or an infinity in one place of an operand reaches exactly the places whose sums it is a term of, by every algorithm.

Padding is zeros that are multiplied, as in PyTorch: a filter that is not finite shows in its whole plane of y, a gradient dy in
every tap of its filter. Algorithms that transform tiles (they have an `error_factor`) spread it over the tile, and say so; so do
the gradients of x by tiled GEMMs and depthwise kernels, at the border, when a weight is not finite.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from dnncore import ConvolutionDescriptor, DType, Handle, Preference
from dnncore.descriptors import TensorDescriptor
from dnncore.plan import rank
from dnncore.problems import ConvolutionProblem, Direction
from tests.conftest import CUDA_DEVICES
from tests.ops.oracle.convolution import convolve

# x, w, settings
GEOMETRIES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "same": ((2, 5, 9, 8), (6, 5, 3, 3), {"padding": 1}),
    "strided": ((2, 4, 11, 10), (5, 4, 3, 4), {"padding": (2, 1), "stride": 2}),
    "dilated-groups": ((1, 8, 12, 9), (8, 4, 3, 2), {"groups": 2, "dilation": 2, "padding": 1}),
    "depthwise": ((2, 6, 8, 9), (6, 1, 3, 3), {"groups": 6, "padding": 1}),
    "depthwise-tiles": ((2, 3, 10, 12), (3, 1, 3, 3), {"groups": 3, "padding": 1}),
}


def _problem(name: str, direction: Direction, dtype: DType) -> ConvolutionProblem:
    x, w, settings = GEOMETRIES[name]
    conv = ConvolutionDescriptor.make(**settings)
    tx, tw, ty = (TensorDescriptor.packed(shape, dtype) for shape in (x, w, conv.output_shape(x, w)))
    return ConvolutionProblem(direction, tx, tw, ty, conv)


def _reached(problem: ConvolutionProblem, operand: int, place: tuple[int, ...]) -> np.ndarray:
    """Where the output has a term with this place of an operand."""
    conv = problem.convolution
    ones = [torch.ones(d.shape, dtype=torch.float64) for d in problem.inputs]
    ones[operand] = torch.zeros_like(ones[operand])
    ones[operand][place] = 1
    if problem.direction is Direction.FORWARD:
        if operand == 1:
            reached = np.zeros(problem.y.shape, bool)
            reached[:, place[0]] = True
            return reached
        return np.asarray(convolve(ones[0], ones[1], conv).numpy() > 0)
    if problem.direction is Direction.BACKWARD_FILTER and operand == 1:
        reached = np.zeros(problem.w.shape, bool)
        reached[place[1]] = True
        return reached
    x = torch.ones(problem.x.shape, dtype=torch.float64)
    w = torch.ones(problem.w.shape, dtype=torch.float64)
    if problem.direction is Direction.BACKWARD_DATA:
        w, dy, leaf = ones[0], ones[1], x
    else:
        x, dy, leaf = ones[0], ones[1], w
    leaf.requires_grad_()
    (gradient,) = torch.autograd.grad(convolve(x, w, conv), leaf, dy)
    return np.asarray(gradient.numpy() > 0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("direction", list(Direction), ids=lambda direction: direction.value)
@pytest.mark.parametrize("name", list(GEOMETRIES))
def test_one_place_reaches_its_receptive_field(
    handle: Handle, name: str, direction: Direction, dtype: DType, value: float
) -> None:
    problem = _problem(name, direction, dtype)
    rng = np.random.default_rng(3)
    exact = [
        algorithm.name
        for algorithm in rank(problem, handle.device, Preference.PREFER_FASTEST)
        if algorithm.offer is not None and algorithm.offer.error_factor is None
    ]
    assert exact
    for operand in (0, 1):
        arrays = [rng.uniform(0.5, 1.5, d.shape).astype(dtype.numpy) for d in problem.inputs]
        place = tuple(int(rng.integers(extent)) for extent in problem.inputs[operand].shape)
        arrays[operand][place] = value
        expected = _reached(problem, operand, place)
        with (
            handle.upload(arrays[0]) as first,
            handle.upload(arrays[1]) as second,
            handle.tensor(problem.outputs[0]) as output,
        ):
            for algorithm in exact:
                if (
                    algorithm.startswith(("implicit", "depthwise"))
                    and direction is Direction.BACKWARD_DATA
                    and operand == 0
                ):
                    continue  # docs/numerics.md
                handle.run(handle.plan(problem, algorithm=algorithm), 1.0, (first, second), 0.0, (output,))
                found = ~np.isfinite(output.numpy())
                wrong = np.argwhere(found != expected)
                assert not wrong.size, (
                    f"{algorithm}: {problem.input_names[operand]}{place} shows at {wrong[:4].tolist()}"
                )


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16], ids=lambda dtype: dtype.value)
def test_one_place_of_x_reaches_its_taps_where_threads_walk_down_columns(
    handles: dict[str, Handle], dtype: DType
) -> None:
    """At the borders of strips and of the image."""
    handle = handles[CUDA_DEVICES[0]]
    x = TensorDescriptor.packed((2, 8, 5, 8), dtype, "NHWC")
    w = TensorDescriptor.packed((8, 1, 3, 3), dtype)
    problem = ConvolutionProblem(Direction.BACKWARD_FILTER, x, w, x, ConvolutionDescriptor.make(padding=1, groups=8))
    plan = handle.plan(problem, algorithm="depthwise_columns")
    rng = np.random.default_rng(3)
    arrays = [rng.uniform(0.5, 1.5, x.shape).astype(dtype.numpy) for _ in range(2)]
    for row, column in itertools.product((0, 2, 4), (0, 3, 4, 7)):
        place = (1, 5, row, column)
        with_one = arrays[0].copy()
        with_one[place] = np.inf
        with handle.tensor(x) as first, handle.tensor(x) as second, handle.tensor(w) as output:
            first.assign(with_one)
            second.assign(arrays[1])
            handle.run(plan, 1.0, (first, second), 0.0, (output,))
            found = ~np.isfinite(output.numpy().astype(np.float32))
        assert np.array_equal(found, _reached(problem, 0, place)), place
