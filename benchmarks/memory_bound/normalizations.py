"""Batch, layer, RMS, group and local response normalisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.measurement import LARGE, SMALL, Measurement, Sized
from dnncore import DType, TensorDescriptor
from dnncore.descriptors import BatchNormMode, Layout, LRNDescriptor
from dnncore.problems import (
    BatchNormBackwardProblem,
    BatchNormForwardProblem,
    BatchNormInferenceProblem,
    GroupNormBackwardProblem,
    GroupNormForwardProblem,
    LayerNormBackwardProblem,
    LayerNormForwardProblem,
    LRNBackwardProblem,
    LRNForwardProblem,
)

__all__ = ["normalizations"]

_EPSILON = 1e-5
_GROUPS = 32
_SPATIAL = BatchNormMode.SPATIAL
Prepare = Callable[[Sequence[torch.Tensor]], None]


def _statistics(x: int, mean: int, inv_std: int, axes: tuple[int, ...]) -> Prepare:
    """Write what a forward pass would have saved; x, mean and inv_std are places among the inputs."""

    def prepare(inputs: Sequence[torch.Tensor]) -> None:
        values = inputs[x].to(inputs[mean].dtype)
        variance, average = torch.var_mean(values, axes, correction=0, keepdim=True)
        inputs[mean].copy_(average.reshape(inputs[mean].shape))
        inputs[inv_std].copy_((variance + _EPSILON).rsqrt().reshape(inputs[inv_std].shape))

    return prepare


def _positive_variance(inputs: Sequence[torch.Tensor]) -> None:
    inputs[4].abs_().add_(0.5)


def _batch_norm(dtype: DType, whole: tuple[int, ...], layout: Layout, sized: Sized) -> Iterator[Measurement]:
    shape = sized(whole)
    x = TensorDescriptor.packed(shape, dtype, layout)
    p = TensorDescriptor.packed((1, shape[1], 1, 1), dtype.compute)
    size, norm = f"{layout.value} {whole[2]}", torch.nn.functional.batch_norm
    yield Measurement(
        f"batch-norm-inference {size}",
        BatchNormInferenceProblem(x, p, p, p, p, x, _SPATIAL, _EPSILON),
        (x, x),
        lambda x, w, b, m, v: norm(x, m.flatten(), v.flatten(), w.flatten(), b.flatten(), eps=_EPSILON),
        prepare=_positive_variance,
    )
    yield Measurement(
        f"batch-norm-forward {size}",
        BatchNormForwardProblem(x, p, p, x, p, p, _SPATIAL, _EPSILON),
        (x, x),
        lambda x, w, b: norm(x, None, None, w.flatten(), b.flatten(), training=True, eps=_EPSILON),
    )
    yield Measurement(
        f"batch-norm-backward {size}",
        BatchNormBackwardProblem(x, x, p, p, p, x, p, p, _SPATIAL),
        (x, x, x),
        lambda x, dy, w, m, s: torch.ops.aten.native_batch_norm_backward(
            dy, x, w.flatten(), None, None, m.flatten(), s.flatten(), True, _EPSILON, [True] * 3
        ),
        prepare=_statistics(0, 3, 4, (0, 2, 3)),
    )


def _group_norm(dtype: DType, whole: tuple[int, ...], layout: Layout, sized: Sized) -> Iterator[Measurement]:
    shape = sized(whole)
    x = TensorDescriptor.packed(shape, dtype, layout)
    p = TensorDescriptor.packed((1, shape[1], 1, 1), dtype.compute)
    s = TensorDescriptor.packed((shape[0], _GROUPS, 1, 1), dtype.compute)
    size, norm = f"{layout.value} {whole[2]}", torch.nn.functional.group_norm

    def backward(x: Any, dy: Any, w: Any, m: Any, v: Any) -> Any:
        """PyTorch's autograd makes both contiguous too."""
        x, dy = x.contiguous(), dy.contiguous()
        n, c, extent = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
        kept = (t.flatten(1).to(x.dtype) for t in (m, v))
        arguments = (w.flatten().to(x.dtype), n, c, extent, _GROUPS, [True] * 3)
        return torch.ops.aten.native_group_norm_backward(dy, x, *kept, *arguments)

    def prepare(inputs: Sequence[torch.Tensor]) -> None:
        grouped = [inputs[0].reshape(shape[0], _GROUPS, -1), *inputs[1:]]
        _statistics(0, 3, 4, (2,))(grouped)

    yield Measurement(
        f"group-norm-forward {size}",
        GroupNormForwardProblem(x, x, s, s, _GROUPS, _EPSILON, p, p),
        (x, x),
        lambda x, w, b: norm(x, _GROUPS, w.flatten().to(x.dtype), b.flatten().to(x.dtype), _EPSILON),
    )
    yield Measurement(
        f"group-norm-backward {size}",
        GroupNormBackwardProblem(x, x, s, s, x, _GROUPS, p, p, p),
        (x, x, x),
        backward,
        prepare=prepare,
    )


def _layer_norm(dtype: DType, whole: tuple[int, ...], sized: Sized) -> Iterator[Measurement]:
    shape = sized(whole)
    x, p = TensorDescriptor.packed(shape, dtype), TensorDescriptor.packed((1, shape[1]), dtype.compute)
    s = TensorDescriptor.packed((shape[0], 1), dtype.compute)
    size, functions = f"{whole[0]}x{whole[1]}", torch.nn.functional

    def parameter(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return w.flatten().to(x.dtype)

    yield Measurement(
        f"layer-norm-forward {size}",
        LayerNormForwardProblem(x, x, s, 1, _EPSILON, s, p, p),
        (x, x),
        lambda x, w, b: functions.layer_norm(x, shape[1:], parameter(w, x), parameter(b, x), _EPSILON),
    )
    yield Measurement(
        f"layer-norm-backward {size}",
        LayerNormBackwardProblem(x, x, s, x, 1, s, p, p, p),
        (x, x, x),
        lambda x, dy, w, m, s: torch.ops.aten.native_layer_norm_backward(
            dy, x, shape[1:], m, s, parameter(w, x), parameter(w, x), [True] * 3
        ),
        prepare=_statistics(0, 3, 4, (1,)),
    )
    yield Measurement(
        f"rms-norm-forward {size}",
        LayerNormForwardProblem(x, x, s, 1, _EPSILON, None, p),
        (x, x),
        lambda x, w: functions.rms_norm(x, shape[1:], parameter(w, x), _EPSILON),
    )


def normalizations(dtype: DType, sized: Sized) -> Iterator[Measurement]:
    """Images large and small, and rows as wide as transformers have them."""
    for shape in (LARGE, SMALL):
        for layout in (Layout.NCHW, Layout.NHWC):
            yield from _batch_norm(dtype, shape, layout, sized)
            yield from _group_norm(dtype, shape, layout, sized)
            yield from _local_response(dtype, shape, layout, sized)
    for rows in ((65536, 1024), (16384, 4096), (256, 1024)):
        yield from _layer_norm(dtype, rows, sized)


def _local_response(dtype: DType, whole: tuple[int, ...], layout: Layout, sized: Sized) -> Iterator[Measurement]:
    x, size = TensorDescriptor.packed(sized(whole), dtype, layout), f"{layout.name} {whole[2]}"
    lrn = LRNDescriptor()
    yield Measurement(f"lrn-forward {size}", LRNForwardProblem(x, x, lrn), (x, x), _lrn)
    yield Measurement(
        f"lrn-backward {size}",
        LRNBackwardProblem(x, x, x, x, lrn),
        (x, x, x),
        _lrn_gradient,
        prepare=_lrn_result,
    )


def _lrn(x: torch.Tensor) -> torch.Tensor:
    lrn = LRNDescriptor()
    return torch.nn.functional.local_response_norm(x, lrn.n, lrn.alpha, lrn.beta, lrn.k)


def _lrn_result(inputs: Sequence[torch.Tensor]) -> None:
    inputs[0].copy_(_lrn(inputs[2].float()))  # for PyTorch's CPU build, which has none in float16


def _lrn_gradient(_y: torch.Tensor, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """PyTorch has no operation for it alone: forward and backward by its autograd."""
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(_lrn(x), x, dy)
    return gradient
