"""nn.CrossEntropyLoss on our kernels against PyTorch's, values and gradients, in fp64 on the reference backend."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import dnncore.torch as dt
from dnncore.errors import BadParamError

Tensor = Any

CLASSES = 5


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def _compare(loss: nn.Module, x: Tensor, target: Tensor) -> None:
    ours = copy.deepcopy(loss)
    assert dt.convert(ours).converted == ("",)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = ours(a, target), loss(b, target)
    torch.testing.assert_close(y, expected, equal_nan=True)
    seed = torch.linspace(0.5, 2, y.numel(), dtype=torch.float64).reshape(y.shape)
    y.backward(seed)
    expected.backward(seed)
    torch.testing.assert_close(a.grad, b.grad, equal_nan=True)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("ignore_index", [-100, 2])
@pytest.mark.parametrize("places", [(), (2, 3)], ids=str)
def test_labels(reduction: str, smoothing: float, ignore_index: int, places: tuple[int, ...]) -> None:
    loss = nn.CrossEntropyLoss(ignore_index=ignore_index, reduction=reduction, label_smoothing=smoothing)
    target = torch.randint(CLASSES, (7, *places), generator=torch.Generator().manual_seed(1))
    target[0], target[1] = 2, ignore_index
    _compare(loss, _random(7, CLASSES, *places), target)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("places", [(), (3,)], ids=str)
def test_probabilities(reduction: str, smoothing: float, places: tuple[int, ...]) -> None:
    loss = nn.CrossEntropyLoss(reduction=reduction, label_smoothing=smoothing)
    x = _random(4, CLASSES, *places)
    target = x.roll(1).softmax(1)
    _compare(loss, x, target)


def test_one_row() -> None:
    _compare(nn.CrossEntropyLoss(), _random(CLASSES), torch.tensor(3))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_mean_over_ignored_rows_alone_is_not_a_number_but_has_gradient_0(smoothing: float) -> None:
    _compare(
        nn.CrossEntropyLoss(ignore_index=1, label_smoothing=smoothing), _random(3, CLASSES), torch.tensor([1, 1, 1])
    )


@pytest.mark.parametrize("soft", [False, True])
def test_a_mean_over_more_rows_than_float16_counts(soft: bool) -> None:
    x = torch.zeros(70000, 3, dtype=torch.float16, requires_grad=True)
    target = torch.full((70000, 3), 1 / 3).half() if soft else torch.zeros(70000, dtype=torch.int64)
    loss = dt.convert(nn.CrossEntropyLoss()).model(x, target)
    assert loss.dtype is torch.float16
    torch.testing.assert_close(loss.float(), torch.tensor(3.0).log(), rtol=2e-3, atol=0)


def test_labels_of_another_shape_are_refused() -> None:
    with pytest.raises(BadParamError, match=r"\(2, 4, 3\) but logits \(2, 5, 3, 4\) need \(2, 3, 4\)"):
        dt.cross_entropy(_random(2, CLASSES, 3, 4), torch.zeros(2, 4, 3, dtype=torch.int64))


def test_labels_that_need_a_gradient_are_refused() -> None:
    x = _random(2, CLASSES)
    with pytest.raises(BadParamError, match="detach"):
        dt.cross_entropy(x, x.softmax(1).requires_grad_())
