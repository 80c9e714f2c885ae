"""nn.CrossEntropyLoss on our kernels against PyTorch's, values and gradients, in fp64 on the reference backend."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import dnncore.torch as dt
from dnncore.descriptors import CrossEntropyDescriptor
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


@pytest.mark.parametrize("label", [-1, CLASSES])
@pytest.mark.parametrize("make", [nn.CrossEntropyLoss, lambda: dt.convert(nn.CrossEntropyLoss()).model])
def test_labels_that_are_no_classes_are_refused_as_pytorch_does(make: Any, label: int) -> None:
    with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
        make()(_random(3, CLASSES), torch.tensor([0, label, -100]))


@pytest.mark.parametrize("classes", [200, 256, 300])
@pytest.mark.parametrize("weighted", [False, True])
def test_labels_of_8_bits_are_compared_with_more_classes_than_they_hold(classes: int, weighted: bool) -> None:
    x, target = _random(3, classes), torch.tensor([0, 156, 199])  # 156 is -100, which is ignored, in 8 bits
    weight = torch.linspace(0.5, 2, classes, dtype=torch.float64) if weighted else None
    loss = nn.CrossEntropyLoss(weight)
    torch.testing.assert_close(dt.convert(copy.deepcopy(loss)).model(x, target.to(torch.uint8)), loss(x, target))


def test_labels_of_another_shape_are_refused() -> None:
    with pytest.raises(BadParamError, match=r"\(2, 4, 3\) but logits \(2, 5, 3, 4\) need \(2, 3, 4\)"):
        dt.cross_entropy(_random(2, CLASSES, 3, 4), torch.zeros(2, 4, 3, dtype=torch.int64))


WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.5, 1.0], dtype=torch.float64)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("ignore_index", [-100, 2])
@pytest.mark.parametrize("places", [(), (2, 3)], ids=str)
def test_weighted_labels(reduction: str, smoothing: float, ignore_index: int, places: tuple[int, ...]) -> None:
    loss = nn.CrossEntropyLoss(WEIGHT, ignore_index=ignore_index, reduction=reduction, label_smoothing=smoothing)
    target = torch.randint(CLASSES, (7, *places), generator=torch.Generator().manual_seed(1))
    target[0], target[1] = 2, ignore_index
    _compare(loss, _random(7, CLASSES, *places), target)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("places", [(), (3,)], ids=str)
def test_probabilities_and_their_gradients(
    reduction: str, smoothing: float, weight: Tensor | None, places: tuple[int, ...]
) -> None:
    loss = nn.CrossEntropyLoss(weight, reduction=reduction, label_smoothing=smoothing)
    x = _random(4, CLASSES, *places)
    _compare(loss, x, x.roll(1).softmax(1))
    ours = dt.convert(copy.deepcopy(loss)).model
    given = [(x.clone().requires_grad_(), x.roll(1).softmax(1).requires_grad_()) for _ in range(2)]
    for a, b in zip(
        *(torch.autograd.grad(module(*g).sum(), g) for module, g in zip((ours, loss), given, strict=True)), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_probabilities_pass_gradcheck(weight: Tensor | None) -> None:
    x = _random(3, CLASSES, 2)
    inputs = [x.requires_grad_(), x.detach().roll(1).softmax(1).requires_grad_()]
    settings = CrossEntropyDescriptor(0.1)
    assert torch.autograd.gradcheck(lambda x, p: dt.cross_entropy(x, p, settings, weight), inputs)


def test_one_weighted_row() -> None:
    _compare(nn.CrossEntropyLoss(WEIGHT), _random(CLASSES), torch.tensor(3))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("label", [1, 2], ids=["ignored", "without-weight"])
def test_a_mean_over_no_weight_is_not_a_number(smoothing: float, label: int) -> None:
    loss = nn.CrossEntropyLoss(WEIGHT, ignore_index=1, label_smoothing=smoothing)
    _compare(loss, _random(3, CLASSES), torch.full((3,), label))


def test_weighted_labels_that_are_no_classes_count_nothing() -> None:
    x, labels = _random(4, CLASSES), torch.tensor([3, -1, CLASSES, 0])
    loss = dt.cross_entropy(x, labels, weight=WEIGHT)
    expected = nn.functional.cross_entropy(x, labels.clamp(0, CLASSES - 1), WEIGHT, reduction="none")
    torch.testing.assert_close(loss, expected * torch.tensor([1, 0, 0, 1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weighted_losses_of_16_bits(dtype: torch.dtype) -> None:
    x, target = _random(6, CLASSES).to(dtype), torch.tensor([0, 1, 2, 3, 4, 0])
    loss = dt.convert(nn.CrossEntropyLoss(WEIGHT.to(dtype), label_smoothing=0.1)).model(x, target)
    assert loss.dtype is dtype
    expected = nn.functional.cross_entropy(x.double(), target, WEIGHT, label_smoothing=0.1)
    torch.testing.assert_close(loss.double(), expected, rtol=2e-2, atol=0)
    with torch.autocast("cpu", dtype=dtype):
        assert dt.cross_entropy(x, target, weight=WEIGHT).dtype is torch.float32


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(BadParamError, match=r"weight has shape \(3,\) but logits \(2, 5\) have 5 classes"):
        dt.cross_entropy(_random(2, CLASSES), torch.zeros(2, dtype=torch.int64), weight=torch.ones(3))


@pytest.mark.parametrize("layout", ["transposed", "sliced", "channels_last"])
def test_logits_and_labels_of_any_strides(layout: str) -> None:
    x = _random(6, CLASSES, 4, 8)
    target = torch.randint(CLASSES, (6, 4, 8), generator=torch.Generator().manual_seed(1))
    if layout == "transposed":
        x, target = x.transpose(0, 2), target.transpose(0, 1)
    elif layout == "sliced":
        x, target = x[::2, :, :, ::2], target[::2, :, ::2]
    else:
        x = x.to(memory_format=torch.channels_last)
    _compare(nn.CrossEntropyLoss(reduction="none"), x, target)
    _compare(nn.CrossEntropyLoss(), x, x.roll(1).softmax(1))
