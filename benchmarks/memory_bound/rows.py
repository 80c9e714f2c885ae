"""What goes along rows of logits: softmax, cross-entropy and the largest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from benchmarks.measurement import Measurement, Sized
from dnncore import DType, SoftmaxAlgorithm, SoftmaxMode, TensorDescriptor
from dnncore.problems import (
    CrossEntropyBackwardProblem,
    CrossEntropyForwardProblem,
    SoftmaxBackwardProblem,
    SoftmaxForwardProblem,
    TopKProblem,
)

__all__ = ["rows"]

_LARGEST = 5
_SHAPES = ((8192, 1000), (65536, 1000), (4096, 32000))


def _draw_labels(inputs: Sequence[torch.Tensor]) -> None:
    inputs[1].random_(0, inputs[0].shape[1])


def _loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(x, labels.long(), reduction="none")


def _kept_of_loss(arguments: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Log-softmax's result, which the forward pass keeps, and what the loss's gradient takes beside it."""
    x, labels = arguments
    ones = torch.ones(x.shape[0], dtype=x.dtype, device=x.device)
    return x.log_softmax(1), labels.long(), ones, torch.ones((), dtype=x.dtype, device=x.device)


def _loss_gradient(
    x: torch.Tensor,
    _labels: torch.Tensor,
    log_softmax: torch.Tensor,
    labels: torch.Tensor,
    ones: torch.Tensor,
    total: torch.Tensor,
) -> torch.Tensor:
    gradient = torch.ops.aten.nll_loss_backward(ones, log_softmax, labels, None, 0, -100, total)
    result: torch.Tensor = torch.ops.aten._log_softmax_backward_data(gradient, log_softmax, 1, x.dtype)
    return result


def rows(dtype: DType, sized: Sized) -> Iterator[Measurement]:
    """Rows as short as ImageNet's classes and as long as a vocabulary."""
    for whole in _SHAPES:
        shape = sized(whole)
        t = TensorDescriptor.packed(shape, dtype)
        size = f"{whole[0]}x{whole[1]}"
        settings = SoftmaxAlgorithm.ACCURATE, SoftmaxMode.CHANNEL
        yield Measurement(
            f"softmax-forward {size}", SoftmaxForwardProblem(t, t, *settings), (t, t), lambda x: x.softmax(1)
        )
        yield Measurement(
            f"softmax-backward {size}",
            SoftmaxBackwardProblem(t, t, t, *settings),
            (t, t, t),
            lambda y, dy: torch.ops.aten._softmax_backward_data(dy, y, 1, y.dtype),
        )
        labels, loss = TensorDescriptor.packed(shape[:1], DType.INT32), TensorDescriptor.packed(shape[:1], dtype)
        forward, backward = CrossEntropyForwardProblem(t, labels, loss), CrossEntropyBackwardProblem(t, labels, t)
        yield Measurement(f"cross-entropy-forward {size}", forward, (t,), _loss, prepare=_draw_labels)
        wanted = TensorDescriptor.packed((shape[0], _LARGEST), dtype)
        yield Measurement(
            f"top-{_LARGEST} {size}",
            TopKProblem(t, wanted, wanted.with_dtype(DType.INT32), 1),
            (t, wanted, wanted.with_dtype(DType.INT32)),
            lambda x: x.topk(_LARGEST, 1),
        )
        yield Measurement(
            f"cross-entropy-backward {size}", backward, (t, t), _loss_gradient, prepare=_draw_labels, kept=_kept_of_loss
        )
