"""`convert(model, fuse=True)`: what is fused trains as it did, and what must not be fused is left, with the reason."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import dnncore.torch as dt
from dnncore.torch.functions import batch_norm, chain, convolution, linear

Tensor = Any
f = nn.functional


class Block(nn.Module):
    """As torchvision's ResNet has it: one ReLU for all, a sum in place, a projection beside."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.project = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.project(x)
        return self.relu(out)


class Sums(nn.Module):
    """Sums the other way round, functions and methods in place of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.bn2, self.bn3 = (nn.BatchNorm2d(8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = f.relu(torch.add(x, self.bn1(x)))
        x = (self.bn2(x) + x).relu()
        return torch.relu(self.bn3(x))


class Activated(nn.Module):
    """As AlexNet and VGG have it, and functions and methods in place of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (nn.Conv2d(8, 8, 3, padding=1, bias=bias) for bias in (True, False, True))
        self.linear1, self.linear2 = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv1(x))
        x = f.relu(self.conv2(x), inplace=True)
        x = self.conv3(x).relu_()
        x = self.relu(self.linear1(x.transpose(1, 3)))
        return torch.relu(self.linear2(x)).transpose(1, 3)


class ReadElsewhere(nn.Module):
    """Whose layers' results are read by others too, or get something added before the ReLU, which these do not take."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.linear = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        y = y.relu() + y
        y = f.relu(self.conv2(y) + x)
        return self.linear(y.mT).mT.relu()


class ReadTwice(nn.Module):
    """Whose batch normalisations' results are read by others too, or are written over something else."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.bn2, self.bn3, self.relu = *(nn.BatchNorm2d(8) for _ in range(3)), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(x)
        y = y + self.relu(y)
        z = y + self.bn2(y)
        z, y = z * z.relu(), self.bn3(y)
        z += y
        return f.relu(z)


def _net(*blocks: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def _losses(net: nn.Module, dtype: torch.dtype = torch.float64, **autocast: Any) -> Tensor:
    """Of 20 steps."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, 8, 8, generator=generator).to(dtype, memory_format=torch.channels_last)
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, **autocast):
            loss = f.cross_entropy(net(x).to(dtype), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "blocks": (lambda: _net(Block(), Block()), ("1", "3.bn1", "3.bn2", "4.bn1", "4.bn2")),
    "sums": (lambda: _net(Sums()), ("1", "3.bn1", "3.bn2", "3.bn3")),
    "read-twice": (lambda: _net(ReadTwice()), ("1",)),
    "activated": (
        lambda: _net(Activated()),
        ("1", "3.conv1", "3.conv2", "3.conv3", "3.linear1", "3.linear2"),
    ),
    "read-elsewhere": (lambda: _net(ReadElsewhere()), ("1",)),
}


@pytest.mark.parametrize("name", NETS)
def test_a_fused_net_trains_as_before_and_is_evaluated_as_before(name: str) -> None:
    make, expected = NETS[name]
    theirs = make().double()
    plain, fused = copy.deepcopy(theirs), copy.deepcopy(theirs)
    dt.convert(plain, fuse=False)
    conversion = dt.convert(fused, fuse=True)
    assert sorted(conversion.fused) == sorted(expected)
    assert not conversion.left
    assert not dt.convert(fused).left
    assert list(fused.state_dict()) == list(theirs.state_dict())
    assert isinstance(fused[3], type(theirs[3]))
    assert inspect.signature(fused[3].forward) == inspect.signature(theirs[3].forward)
    found = _losses(fused, enabled=False)
    torch.testing.assert_close(found, _losses(plain, enabled=False), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found, _losses(theirs, enabled=False), rtol=1e-9, atol=1e-12)
    assert found[-1] < found[0]
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(fused.eval()(x), theirs.eval()(x))
    for name, value in fused.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[name], msg=name)


@pytest.mark.parametrize("block", [Block, Activated])
def test_a_fused_net_trains_under_autocast(block: type[nn.Module]) -> None:
    """Nearer to float32 than bfloat16 is, twenty steps on."""
    exact, fused = _net(block()), dt.convert(_net(block()), fuse=True).model
    expected, found = _losses(exact, torch.float32, enabled=False), _losses(fused, torch.float32, enabled=True)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02)


def _calls(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many batch normalisations of a step are fused."""
    counted: list[Tensor] = []

    def count(x: Tensor, *others: Any) -> Tensor:
        counted.append(x)
        return dt.batch_norm_relu(x, *others)

    with monkeypatch.context() as patch, _chains(patch) as linked:
        patch.setattr("dnncore.torch.modules.normalization.batch_norm_relu", count)
        net(torch.randn(2, 3, 8, 8))
    return len(counted) + sum(kind is batch_norm.LINK and activation is not None for kind, *_, activation in linked)


@contextmanager
def _chains(patch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """Settings of layers that are one operation with others."""
    linked: list[tuple[Any, ...]] = []

    class Counted:
        @staticmethod
        def apply(call: Any, *tensors: Tensor) -> Tensor:
            linked.extend(call[0][-1])
            return chain.Chain.apply(call, *tensors)

    patch.setattr("dnncore.torch.chains.Chain", Counted)
    yield linked


def test_fused_in_training_alone_and_where_the_batch_has_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    net = dt.convert(_net(Block()), fuse=True).model
    assert _calls(net, monkeypatch) == 3
    net[1].eval()
    assert _calls(net, monkeypatch) == 2
    net.eval()
    assert _calls(net, monkeypatch) == 0


def _relus(net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many convolutions and linear layers of a step take the ReLU behind them."""
    counted: list[Tensor] = []

    def convolved(*given: Any) -> Tensor:
        counted.extend(given[:1] if given[-1] is True else ())
        return dt.convolution(*given)

    def multiplied(x: Tensor, w: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
        counted.extend([x] if relu else ())
        return dt.linear(x, w, bias, relu)

    with monkeypatch.context() as patch, _chains(patch) as linked:
        patch.setattr("dnncore.torch.modules.convolution.convolution", convolved)
        patch.setattr("dnncore.torch.modules.classifier.linear", multiplied)
        net(torch.randn(2, 3, 8, 8))
    return len(counted) + sum(kind in (convolution.LINK, linear.LINK) and relu is True for kind, *_, relu in linked)


def test_convolutions_and_linear_layers_are_fused_in_evaluation_too(monkeypatch: pytest.MonkeyPatch) -> None:
    net = dt.convert(_net(Activated()), fuse=True).model
    for other in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert _relus(other.train(), monkeypatch) == 5
        assert _relus(other.eval(), monkeypatch) == 5
    hooked = net[3].conv1.register_forward_hook(lambda *_: None)
    assert _relus(net, monkeypatch) == 4
    hooked.remove()
    net[3].conv2, net[3].relu = nn.Conv2d(8, 8, 3, padding=1), nn.Tanh()
    assert _relus(net, monkeypatch) == 2
    assert _calls(net, monkeypatch) == 0


def _nodes(y: Tensor) -> set[str]:
    """Kinds of the nodes that autograd has for a result."""
    found, waiting = set(), [y.grad_fn]
    while waiting:
        node = waiting.pop()
        found.add(type(node).__name__)
        waiting += [each for each, _ in node.next_functions if each is not None]
    return found


def test_a_layer_with_its_relu_is_one_node_of_autograds_graph() -> None:
    nets = [dt.convert(_net(Activated()), fuse=fuse).model for fuse in (False, True)]
    plain, fused = (_nodes(net(torch.randn(2, 3, 8, 8))) for net in nets)
    assert plain - fused == {"ReluBackward0", "_BatchNormTrainingBackward", "_ConvolutionBackward"}
    assert fused - plain == {"ChainBackward"}


class _Heads(Activated):
    """That is another in training than in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else f.relu(self.conv1(x))


class _BranchesInEvaluation(Activated):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training or x.sum() > 0 else x


def test_a_forward_that_depends_on_the_mode_is_read_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = _net(_Heads())
    net = dt.convert(copy.deepcopy(theirs), fuse=True).model
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(net.eval()(x), theirs.eval()(x), rtol=1e-4, atol=1e-5)
    assert _relus(net, monkeypatch) == 1
    assert _relus(net.train(), monkeypatch) == 5


def test_a_forward_that_cannot_be_traced_in_evaluation_is_fused_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    net = _net(_BranchesInEvaluation())
    conversion = dt.convert(net, fuse=True)
    assert "3.conv1" in conversion.fused
    (left,) = conversion.left
    assert left[0] == "3"
    assert "forward in evaluation cannot be traced" in left[1]
    assert _relus(net, monkeypatch) == 5
    assert _relus(net.eval(), monkeypatch) == 0


def test_a_module_keeps_its_mode_and_attributes_while_its_forward_is_read() -> None:
    class Counts(Activated):
        modes: ClassVar[list[bool]] = []

        def forward(self, x: Tensor) -> Tensor:
            self.modes.append(net[3].training)
            self.last = x
            return super().forward(x)

    net = _net(Counts()).eval()
    dt.convert(net, fuse=True)
    assert Counts.modes == [False, False]
    assert not net[3].training
    assert not hasattr(net[3], "last")


def test_copies_and_pickles_are_fused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    net = dt.convert(_net(Block()), fuse=True).model
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), net[:4]):
        assert _calls(other, monkeypatch) == 3
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(copy.deepcopy(net)(x), net(x))


def test_what_is_changed_afterwards_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    net = dt.convert(_net(Block()), fuse=True).model
    seen: list[str] = []
    net[3].bn1.register_forward_hook(lambda *_: seen.append("hook"))
    assert _calls(net, monkeypatch) == 2
    assert seen == ["hook"]
    net[3].relu = nn.Tanh()
    assert _calls(net, monkeypatch) == 1
    net.append(nn.Tanh())
    assert net(torch.randn(2, 3, 8, 8)).abs().max().item() < 1


def test_converting_again_finds_the_same() -> None:
    net = _net(Block())
    assert dt.convert(net, fuse=True).fused == dt.convert(net, fuse=True).fused != ()


def test_hooks_keep_a_batch_norm_as_it_is() -> None:
    net = _net(Block())
    net[1].register_forward_hook(lambda *_: None)
    net[3].relu.register_forward_hook(lambda *_: None)
    conversion = dt.convert(net, fuse=True)
    assert conversion.fused == ()
    assert {name for name, _ in conversion.left} == {"1", "3.bn1", "3.bn2"}
    assert all("hook" in reason for _, reason in conversion.left)


class _Branches(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x


class _Optional(Block):
    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return super().forward(x if scale is None else x * scale)


class _Overwrites(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn, self.relu = nn.BatchNorm2d(8), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(x)
        other = self.relu(x)
        return self.relu(y) + other


LEFT = (
    (_Branches, "3", "cannot be traced"),
    (_Optional, "3", "scale"),
    (_Overwrites, "3.bn", "read again"),
)


@pytest.mark.parametrize(("make", "name", "reason"), LEFT, ids=[make.__name__ for make, *_ in LEFT])
def test_what_cannot_be_fused_is_left_with_the_reason(make: type[nn.Module], name: str, reason: str) -> None:
    net = _net(make())
    conversion = dt.convert(net, fuse=True)
    assert conversion.fused == ("1",)
    ((where, why),) = conversion.left
    assert where == name
    assert reason in why
    assert type(net[3]) is make


def test_a_residual_of_another_shape_is_added_as_before() -> None:
    class Broadcasts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> Tensor:
            mean = x.mean((2, 3), keepdim=True)
            return f.relu(self.bn(x) + mean)

    theirs = _net(Broadcasts())
    ours = copy.deepcopy(theirs)
    assert "3.bn" in dt.convert(ours, fuse=True).fused
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
