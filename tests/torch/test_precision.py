"""Autocast and models of 16 bits: what runs in PyTorch runs converted, in the same element types, and comes out close."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dnncore.torch as dt

Tensor = Any


def _net() -> nn.Module:
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),  # a bias before batch norm has gradient 0, and here rounding
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.GroupNorm(2, 8),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(8 * 16),
        nn.Linear(8 * 16, 5),
    )
    return net


def _batch() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(2)), torch.tensor([0, 1, 2, 3, 4, 0])


def _same_step(ours: nn.Module, theirs: nn.Module, x: Tensor, labels: Tensor, dtype: torch.dtype | None) -> None:
    criterion = dt.convert(nn.CrossEntropyLoss()).model
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        y, expected = ours(x), theirs(x)
        loss, their_loss = criterion(y, labels), F.cross_entropy(expected, labels)
    assert y.dtype is expected.dtype
    torch.testing.assert_close(y, expected, rtol=0.05, atol=0.05)
    torch.testing.assert_close(loss.float(), their_loss.float(), rtol=0.03, atol=0.03)
    loss.backward()
    their_loss.backward()
    for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert p.grad.dtype is p.dtype, name
        scale = q.grad.float().abs().max().item()
        torch.testing.assert_close(p.grad, q.grad, rtol=0.05, atol=0.05 * max(scale, 0.02), msg=name)
    for (name, p), (_, q) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        assert p.dtype is q.dtype, name
        torch.testing.assert_close(p, q, rtol=0.02, atol=0.02, msg=name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_converted_net_trains_under_autocast(dtype: torch.dtype) -> None:
    theirs = _net()
    ours = dt.convert(copy.deepcopy(theirs)).model
    _same_step(ours, theirs, *_batch(), dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_converted_net_of_16_bits_trains(dtype: torch.dtype) -> None:
    theirs = _net().to(dtype)
    before = theirs[1].running_mean.clone()
    ours = dt.convert(copy.deepcopy(theirs)).model
    x, labels = _batch()
    _same_step(ours, theirs, x.to(dtype), labels, None)
    assert ours[1].running_mean.dtype is dtype
    assert not torch.equal(ours[1].running_mean, before)
    torch.testing.assert_close(ours.eval()(x.to(dtype)), theirs.eval()(x.to(dtype)), rtol=0.05, atol=0.05)


def test_autocast_casts_products_down_and_losses_up() -> None:
    x, w = torch.randn(4, 3, 5, 5), torch.randn(2, 3, 3, 3)
    rows, matrix = torch.randn(4, 6), torch.randn(3, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert dt.convolution(x, w).dtype is torch.bfloat16
        assert dt.linear(rows, matrix).dtype is torch.bfloat16
        assert dt.linear(rows.double(), matrix.double()).dtype is torch.float64
        logits = rows.bfloat16()
        assert dt.softmax(logits, 1).dtype is torch.float32
        assert dt.log_softmax(logits, 1).dtype is torch.float32
        assert dt.cross_entropy(logits, torch.zeros(4, dtype=torch.int64)).dtype is torch.float32
    assert dt.linear(rows, matrix).dtype is torch.float32


def test_a_scaled_loss_has_a_finite_gradient() -> None:
    logits = torch.zeros(2, 3, dtype=torch.float16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = dt.cross_entropy(logits, torch.tensor([0, 2])).sum()
    (loss * 65536).backward()  # itself beyond float16; its third is not
    share = 65536 / 3
    expected = torch.tensor([[-2 * share, share, share], [share, share, -2 * share]]).half()
    torch.testing.assert_close(logits.grad, expected)


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float64], ids=str)
def test_parameters_of_a_normalisation_may_be_of_any_floating_dtype(parameters: torch.dtype) -> None:
    x = torch.randn(3, 4, 5)
    w, b = (torch.randn(4).to(parameters).requires_grad_() for _ in range(2))
    y = dt.group_norm(x, 2, w, b)
    assert y.dtype is torch.float32
    torch.testing.assert_close(y, F.group_norm(x, 2, w.float(), b.float()))
    y.sum().backward()
    assert w.grad.dtype is b.grad.dtype is parameters
