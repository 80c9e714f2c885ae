"""Autocast and models of 16 bits: what runs in PyTorch runs converted, in the same element types, and comes out close."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import dnncore.torch as dt
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.program import WiredStep

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


FORMATS = (torch.contiguous_format, torch.channels_last)


def _same(found: Tensor, expected: Tensor) -> None:
    """Of one dtype, and as close as one rounding of each leaves them."""
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found, expected, rtol=2 * torch.finfo(found.dtype).eps, atol=2e-3)


@pytest.mark.parametrize("track", [True, False], ids=["eval", "train"])
@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("channels", [16, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_batch_norm_of_16_bits_is_that_of_its_values(
    dtype: torch.dtype, channels: int, form: torch.memory_format, track: bool
) -> None:
    """PyTorch's of the same values in float32, rounded at the end."""
    torch.manual_seed(4)
    theirs = nn.BatchNorm2d(channels)
    for tensor in (theirs.weight, theirs.bias, theirs.running_mean, theirs.running_var):
        tensor.data.uniform_(0.5, 1.5)
    theirs = theirs.to(dtype).float().train(not track)
    ours = dt.convert(copy.deepcopy(theirs).to(dtype)).model
    x = torch.randn(4, channels, 6, 5).to(dtype).to(memory_format=form).requires_grad_()
    wide = x.detach().float().requires_grad_()
    dy = torch.randn(x.shape).to(dtype)
    y, expected = ours(x), theirs(wide)
    _same(y, expected.to(dtype))
    y.backward(dy)
    expected.backward(dy.float())
    for found, right in ((x, wide), (ours.weight, theirs.weight), (ours.bias, theirs.bias)):
        _same(found.grad, right.grad.to(dtype))
    _same(ours.running_mean, theirs.running_mean.to(dtype))
    _same(ours.running_var, theirs.running_var.to(dtype))


MIXED = {
    "statistics-of-float32": (torch.float16, torch.float16, torch.float32),
    "weight-of-float32": (torch.float32, torch.float16, torch.float16),
    "bias-of-float32": (torch.float16, torch.float32, torch.float16),
    "all-of-float32": (torch.float32, torch.float32, torch.float32),
    "of-bfloat16-and-float64": (torch.bfloat16, torch.float64, torch.bfloat16),
}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("of_x", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dtypes", MIXED.values(), ids=MIXED)
def test_each_parameter_of_batch_norm_may_have_a_dtype_of_its_own(
    dtypes: tuple[torch.dtype, ...], of_x: torch.dtype, training: bool
) -> None:
    torch.manual_seed(5)
    of_weight, of_bias, of_statistics = dtypes
    x = torch.randn(6, 4, 3).to(of_x).requires_grad_()
    w, b = (torch.rand(4).to(dtype).requires_grad_() for dtype in (of_weight, of_bias))
    statistics = [torch.rand(4).to(of_statistics) for _ in range(2)]
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, w, b)]
    theirs = [statistic.double() for statistic in statistics]
    y = dt.batch_norm(x, statistics[0], statistics[1], w, b, training)
    expected = F.batch_norm(wide[0], theirs[0], theirs[1], wide[1], wide[2], training)
    _same(y, expected.to(of_x))
    y.sum().backward()
    expected.sum().backward()
    for found, right in zip((x, w, b), wide, strict=True):
        torch.testing.assert_close(found.grad.double(), right.grad, rtol=1e-2, atol=5e-3)
        assert found.grad.dtype is found.dtype
    for found, right in zip(statistics, theirs, strict=True):
        _same(found, right.to(of_statistics))


class _Conversions(TorchDispatchMode):
    """Collects those of PyTorch's own operations that copy elements, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if "copy" in name:
            self.found.append(name)
        return func(*args, **kwargs or {})


@pytest.mark.usefixtures("nothing_seen")
@pytest.mark.parametrize("parameters", [torch.float16, torch.float32], ids=["half", "autocast"])
@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm2d(8).eval(), nn.BatchNorm2d(8), nn.LayerNorm(6), nn.GroupNorm(2, 8)],
    ids=["batch-norm-eval", "batch-norm-train", "layer-norm", "group-norm"],
)
def test_a_normalisation_of_16_bits_is_one_operation(
    layer: nn.Module, parameters: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No parameter is converted, neither where all is of 16 bits nor where autocast leaves parameters in float32."""
    ours = dt.convert(copy.deepcopy(layer).to(parameters)).model
    launches: list[object] = []
    wire = Handle.wire

    def counting(self: Handle, steps: Sequence[WiredStep], *others: Any) -> Callable[[Sequence[Any]], None]:
        enqueue = wire(self, steps, *others)

        def count(addresses: Sequence[Any]) -> None:
            launches.extend(steps)
            enqueue(addresses)

        return count

    monkeypatch.setattr(Handle, "wire", counting)
    x = torch.randn(4, 8, 6, 6).half()
    with torch.no_grad(), _Conversions() as conversions:
        ours(x)
    assert len(launches) == 1
    assert conversions.found == []
    y = ours(x.requires_grad_())
    assert len(launches) == 2
    if ours.training:
        with _Conversions() as conversions:
            y.backward(torch.ones_like(x))
        assert len(launches) == 3
        assert conversions.found == []


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Conv2d(4, 6, 3), (2, 4, 5, 5)), (nn.Linear(4, 6), (3, 4))], ids=["convolution", "linear"]
)
def test_products_cast_their_parameters_themselves_under_autocast(layer: nn.Module, shape: tuple[int, ...]) -> None:
    theirs = copy.deepcopy(layer)
    ours = dt.convert(copy.deepcopy(layer)).model
    x = torch.randn(shape).half()
    with torch.autocast("cpu", torch.float16):
        expected = theirs(x)
    with _Conversions() as conversions:
        with torch.autocast("cpu", torch.float16):
            y = ours(x)
        y.backward(torch.ones_like(y))
    expected.backward(torch.ones_like(expected))
    assert conversions.found == []
    _same(y, expected)
    for found, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found.grad, right.grad, rtol=0.01, atol=0.01)
        assert found.grad.dtype is torch.float32


@pytest.mark.parametrize("casts", [False, True], ids=["plain", "autocast"])
def test_operands_that_autocast_leaves_apart_are_refused(casts: bool) -> None:
    x, w = torch.randn(2, 3, 4, 4).half(), torch.randn(2, 3, 3, 3)
    with torch.autocast("cpu", torch.float16, enabled=casts), pytest.raises(BadParamError, match=r"float64|float32"):
        dt.convolution(x, w.double() if casts else w)


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float64], ids=str)
def test_parameters_of_a_normalisation_may_be_of_any_floating_dtype(parameters: torch.dtype) -> None:
    x = torch.randn(3, 4, 5)
    w, b = (torch.randn(4).to(parameters).requires_grad_() for _ in range(2))
    y = dt.group_norm(x, 2, w, b)
    assert y.dtype is torch.float32
    torch.testing.assert_close(y, F.group_norm(x, 2, w.float(), b.float()))
    y.sum().backward()
    assert w.grad.dtype is b.grad.dtype is parameters
