"""What goes along rows of logits: softmax and cross-entropy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from benchmarks.memory_bound.measurement import Measurement
from dnncore import DType, SoftmaxAlgorithm, SoftmaxMode, TensorDescriptor
from dnncore.problems import (
    CrossEntropyBackwardProblem,
    CrossEntropyForwardProblem,
    SoftmaxBackwardProblem,
    SoftmaxForwardProblem,
)

__all__ = ["rows"]

_SHAPES = ((8192, 1000), (65536, 1000), (4096, 32000))


def _draw_labels(inputs: Sequence[torch.Tensor]) -> None:
    inputs[1].random_(0, inputs[0].shape[1])


def _loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(x, labels.long(), reduction="none")


class _LossGradient:
    """Theirs begins with log-softmax's result, kept by the forward pass: made once, outside what is timed."""

    def __init__(self) -> None:
        self._log_softmax: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self._log_softmax is None:
            self._log_softmax = x.log_softmax(1)
            self._labels = labels.long()
            self._ones = torch.ones(x.shape[0], dtype=x.dtype, device=x.device)
            self._total = torch.ones((), dtype=x.dtype, device=x.device)
        gradient = torch.ops.aten.nll_loss_backward(
            self._ones, self._log_softmax, self._labels, None, 0, -100, self._total
        )
        result: torch.Tensor = torch.ops.aten._log_softmax_backward_data(gradient, self._log_softmax, 1, x.dtype)
        return result


def rows(dtype: DType) -> Iterator[Measurement]:
    """Rows as short as ImageNet's classes and as long as a vocabulary."""
    for shape in _SHAPES:
        t = TensorDescriptor.packed(shape, dtype)
        size = f"{shape[0]}x{shape[1]}"
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
        yield Measurement(f"cross-entropy-backward {size}", backward, (t, t), _LossGradient(), prepare=_draw_labels)
