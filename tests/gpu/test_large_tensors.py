"""Every algorithm on tensors of more than 2^31 elements, with PyTorch as the oracle, image by image or in smaller parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from dnncore import RELU, ConvolutionDescriptor, DType, Handle, Preference, TensorDescriptor
from dnncore.descriptors import PoolingDescriptor, PoolingMode, SoftmaxAlgorithm, SoftmaxMode
from dnncore.plan import rank
from dnncore.problems import (
    ActivationForwardProblem,
    AddProblem,
    ConvolutionProblem,
    Direction,
    LayerNormForwardProblem,
    PoolingBackwardProblem,
    PoolingForwardProblem,
    Problem,
    SoftmaxForwardProblem,
    SumProblem,
)

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.xdist_group("large"),
]  # one after the other

Tensor = Any
Case = tuple[Problem, Sequence[Tensor], Tensor]
Function = torch.nn.functional

_IMAGES = (2, 70, 4096, 4096)
_ROWS = (2_293_760, 1024)
_FREE_BYTES = 60 << 30
"""Five tensors of 4.4 GiB, PyTorch's scratch and up to 19.7 GiB of workspace, which `gemm` takes for the columns of one image."""


@pytest.fixture(autouse=True)
def _room() -> Iterator[None]:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < _FREE_BYTES:
        pytest.fail(f"{free >> 30} GiB are free; this needs {_FREE_BYTES >> 30}")
    yield
    torch.cuda.empty_cache()


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float16, device="cuda")


def _described(tensor: Tensor) -> TensorDescriptor:
    dtype = DType.of(str(tensor.dtype).removeprefix("torch."))
    return TensorDescriptor(dtype, tuple(tensor.shape), tensor.stride())


def _by_image(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    return torch.cat([function(*(tensor[n : n + 1] for tensor in tensors)) for n in range(tensors[0].shape[0])])


def _in_parts(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    return torch.cat([function(part) for part in tensor.tensor_split(8)])


def activation() -> Case:
    x = _noise(*_IMAGES)
    return ActivationForwardProblem(_described(x), _described(x), RELU), [x], torch.relu(x)


def transform() -> Case:
    x = _noise(*_IMAGES)
    expected = x.contiguous(memory_format=torch.channels_last)
    return AddProblem(_described(x), _described(expected)), [x], expected


def bias_gradient() -> Case:
    dy = _noise(*_IMAGES)
    expected = sum(image.sum((1, 2), dtype=torch.float32) for image in dy).half().reshape(1, -1, 1, 1)
    return SumProblem(_described(dy), _described(expected)), [dy], expected


def _pooling() -> PoolingDescriptor:
    return PoolingDescriptor.make(PoolingMode.MAX, 2, stride=2)


def pooling() -> Case:
    x = _noise(*_IMAGES)
    expected = _by_image(lambda image: Function.max_pool2d(image, 2), x)
    return PoolingForwardProblem(_described(x), _described(expected), _pooling()), [x], expected


def pooling_backward() -> Case:
    x, dy = _noise(*_IMAGES), _noise(2, 70, 2048, 2048)
    y = _by_image(lambda image: Function.max_pool2d(image, 2), x)

    def gradient(image: Tensor, dy: Tensor) -> Tensor:
        _, places = Function.max_pool2d(image, 2, return_indices=True)
        return Function.max_unpool2d(dy, places, 2)

    expected = _by_image(gradient, x, dy)
    of_x, of_y = _described(x), _described(dy)
    return PoolingBackwardProblem(of_y, of_y, of_x, of_x, _pooling()), [y, dy, x], expected


def softmax() -> Case:
    x = _noise(*_ROWS)
    of_x = _described(x)
    problem = SoftmaxForwardProblem(of_x, of_x, SoftmaxAlgorithm.ACCURATE, SoftmaxMode.CHANNEL)
    return problem, [x], _in_parts(lambda part: part.softmax(1), x)


def layer_norm() -> Case:
    x = _noise(*_ROWS)
    of_x, statistics = _described(x), TensorDescriptor.packed((_ROWS[0], 1))
    problem = LayerNormForwardProblem(of_x, of_x, statistics, 1, 1e-5, statistics)
    return problem, [x], _in_parts(lambda part: Function.layer_norm(part, _ROWS[1:]), x)


def convolution(direction: Direction, groups: int) -> Case:
    filters = 70 if groups > 1 else 2
    x, w, dy = _noise(*_IMAGES), _noise(filters, 70 // groups, 3, 3), _noise(2, filters, *_IMAGES[2:])
    conv = ConvolutionDescriptor.make(padding=1, groups=groups)
    problem = ConvolutionProblem(direction, _described(x), _described(w), _described(dy), conv)
    if direction is Direction.FORWARD:
        return problem, [x, w], _by_image(lambda image: Function.conv2d(image, w, padding=1, groups=groups), x)

    def gradient(image: Tensor, dy: Tensor) -> Tensor:
        mask = [direction is Direction.BACKWARD_DATA, direction is Direction.BACKWARD_FILTER, False]
        geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], groups, mask)
        dx, dw, _ = torch.ops.aten.convolution_backward(dy, image, w, None, *geometry)
        return dx if mask[0] else dw[None].float()

    if direction is Direction.BACKWARD_DATA:
        return problem, [w, dy], _by_image(gradient, x, dy)
    return problem, [x, dy], _by_image(gradient, x, dy).sum(0).half()


CASES: dict[str, Callable[[], Case]] = {
    "activation": activation,
    "transform": transform,
    "bias-gradient": bias_gradient,
    "pooling": pooling,
    "pooling-backward": pooling_backward,
    "softmax": softmax,
    "layer-norm": layer_norm,
} | {
    f"{name}-{direction.value}": lambda direction=direction, groups=groups: convolution(direction, groups)
    for direction in Direction
    for name, groups in (("convolution", 1), ("depthwise", 70))
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_more_than_2_to_the_31_elements(case: Callable[[], Case]) -> None:
    torch.manual_seed(1)
    problem, inputs, expected = case()
    assert max(tensor.size for tensor in (*problem.inputs, *problem.outputs)) > 2**31
    outputs = [
        torch.empty_strided(output.shape, output.strides, dtype=getattr(torch, output.dtype.value), device="cuda")
        for output in problem.outputs
    ]
    tried = []
    with Handle("cuda:0", stream=0) as handle:
        for algorithm in rank(problem, handle.device, Preference.PREFER_FASTEST):
            if algorithm.status is not None:
                continue
            outputs[0].fill_(float("nan"))
            plan = handle.plan(problem, algorithm=algorithm.name)
            handle.launch(plan, 1.0, [t.data_ptr() for t in inputs], 0.0, [t.data_ptr() for t in outputs])
            tried.append(algorithm.name)
            for ours, theirs in zip(outputs[0].tensor_split(64, -2), expected.tensor_split(64, -2), strict=True):
                apart = (ours.float() - theirs.float()).abs().amax() if ours.numel() else torch.zeros(())
                bound = 1e-2 * float(theirs.float().abs().amax()) if theirs.numel() else 0.0
                assert float(apart) <= bound, f"{algorithm.name}: {float(apart)} apart of {bound}"
    assert tried
