"""An optimizer's step on the parameters of ResNet-50: many tensors, most of them small."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.measurement import Measurement, Operations, Sized
from dnncore import DType, Handle, Tensor, TensorDescriptor
from dnncore.nn.graph import Role
from dnncore.nn.zoo import resnet50
from dnncore.train.config import OptimizerConfig
from dnncore.train.optimizers import OPTIMIZERS

__all__ = ["optimizers"]

_LR = 0.01
_CONFIGS = {
    "sgd-momentum": OptimizerConfig(kind="sgd", lr=_LR, momentum=0.9, weight_decay=0.0),
    "adam": OptimizerConfig(kind="adam", lr=_LR, momentum=0.9, weight_decay=0.0),
}
_PASSES = {"sgd-momentum": 5, "adam": 7}
"""Of all parameters through memory at least: gradient, weight and state are read, and the last two written."""


def _ours(config: OptimizerConfig) -> Callable[[Handle, Sequence[Tensor]], Callable[[], None]]:
    def prepare(handle: Handle, tensors: Sequence[Tensor]) -> Callable[[], None]:
        half = len(tensors) // 2
        gradients, weights = (
            {str(place): one for place, one in enumerate(part)} for part in (tensors[:half], tensors[half:])
        )
        optimizer = OPTIMIZERS[config.kind](handle, weights, config)
        return lambda: optimizer.update(gradients, config.lr, 1)

    return prepare


def _torch_optimizer(config: OptimizerConfig) -> Callable[[Sequence[torch.Tensor]], tuple[Any, ...]]:
    def kept(arguments: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        half = len(arguments) // 2
        parameters = [torch.nn.Parameter(one) for one in arguments[half:]]
        for parameter, gradient in zip(parameters, arguments[:half], strict=True):
            parameter.grad = gradient.clone()  # ours may write its own
        if config.kind == "sgd":
            return (torch.optim.SGD(parameters, config.lr, momentum=config.momentum, fused=True),)
        on_gpu = parameters[0].is_cuda  # where a graph can be captured of a step only if its number is there too
        betas = config.momentum, config.momentum2
        epsilon = config.epsilon / math.sqrt(
            1 - config.momentum2
        )  # ours is added before the root is corrected: in the first step
        return (torch.optim.Adam(parameters, config.lr, betas, epsilon, fused=True, capturable=on_gpu),)

    return kept


def _step(*arguments: Any) -> torch.Tensor:
    optimizer = arguments[-1]
    optimizer.step()
    result: torch.Tensor = optimizer.param_groups[0]["params"][0].detach()
    return result


def optimizers(dtype: DType, sized: Sized) -> Iterator[Measurement]:
    """In float32 alone, as weights are kept."""
    if dtype is not DType.FLOAT32:
        return
    trained = [constant for constant in resnet50().constants if constant.role is Role.TRAINABLE]
    sizes = [math.prod(constant.shape) for constant in trained]
    if sized((1, sizes[0])) != (1, sizes[0]):  # a dry run
        sizes = [sized((1, size))[1] for size in sizes[:4]]
    tensors = tuple(TensorDescriptor.packed((size,), dtype) for size in sizes)
    for name, config in _CONFIGS.items():
        yield Measurement(
            f"{name} resnet50",
            Operations(tensors, tensors, _ours(config)),
            tensors * _PASSES[name],
            _step,
            kept=_torch_optimizer(config),
        )
