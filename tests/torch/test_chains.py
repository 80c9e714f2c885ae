"""Layers in a row that are one operation forward and one backward: they train as one by one, and are that wherever they must be."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import dnncore.torch as dt
from dnncore.descriptors import TensorDescriptor
from dnncore.handle import Handle
from dnncore.problems import ConvolutionProblem, Direction
from dnncore.torch import bridge
from dnncore.torch.bridge import _describe
from dnncore.torch.dtypes import TORCH_DTYPES
from dnncore.torch.functions import chain
from dnncore.torch.functions.chain import Chain, _Passing
from dnncore.torch.operation import Way
from tests.conftest import CUDA_DEVICES

Tensor = Any
f = nn.functional
FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}


class Bottleneck(nn.Module):
    """As torchvision's ResNet has it; with or without a projection."""

    def __init__(self, channels: int = 8, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, stride, 1, bias=False), nn.BatchNorm2d(4)
        self.conv3, self.bn3 = nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        projects = channels != 8 or stride != 1
        self.project = (
            nn.Sequential(nn.Conv2d(channels, 8, 1, stride, bias=False), nn.BatchNorm2d(8)) if projects else None
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.project is None else self.project(x)
        return self.relu(out)


class Pooled(nn.Module):
    """As AlexNet has it, and a stem's pooling behind a batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(8, 6, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(6, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class ReadAgain(nn.Module):
    """Whose first result is read by three layers, and whose last is the sum of chains."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu = nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
        self.conv1, self.conv2, self.bn1, self.bn2 = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1), *(nn.BatchNorm2d(8),) * 2
        self.bn2 = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.first(x))
        z = self.relu(self.bn1(self.conv1(y)) + y)
        return self.relu(self.bn2(self.conv2(y)) + z)


class Classifier(nn.Module):
    """As AlexNet and VGG have it, of rows in the last dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Dropout(0.2),
                nn.Linear(7, 9),
                nn.ReLU(),
                nn.Dropout(0.7),
                nn.Linear(9, 5),
                nn.ReLU(),
                nn.Linear(5, 3),
            ),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Inverted(nn.Module):
    """As MobileNet and EfficientNet have it: rows in rows, and activations that are no ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Sequential(nn.Conv2d(8, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU6()),
            nn.Sequential(nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.BatchNorm2d(12), nn.SiLU(inplace=True)),
            *(nn.Conv2d(12, 8, 1, bias=False), nn.GELU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "identity": Bottleneck,
    "projection": lambda: Bottleneck(8, 2),
    "pooled": Pooled,
    "read-again": ReadAgain,
    "inverted": Inverted,
}


def _pair(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    theirs = make().to(dtype)
    for parameter in theirs.parameters():
        nn.init.uniform_(parameter, 0.2, 0.8)
        parameter.data *= torch.randint(0, 2, parameter.shape) * 2 - 1
    return theirs, dt.convert(copy.deepcopy(theirs), fuse=True).model


def _x(dtype: torch.dtype = torch.float64, layout: str = "NCHW") -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 8, 9, 7, generator=generator).to(dtype, memory_format=FORMATS[layout])
    return x.requires_grad_()


def _gradients(net: nn.Module, x: Tensor) -> list[Tensor]:
    y = net(x)
    of = [x, *net.parameters()]
    wanted = [tensor for tensor in of if tensor.requires_grad]
    return [y, *torch.autograd.grad(y, wanted, torch.sin(torch.arange(y.numel(), dtype=y.dtype)).view_as(y))]


@contextmanager
def _counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many layers each chain has that is called as one."""
    counts: list[int] = []

    class Counted:
        @staticmethod
        def apply(call: Any, *tensors: Tensor) -> Tensor:
            y = Chain.apply(call, *tensors)
            counts.append(len(call[0][-1]))
            return y

    with monkeypatch.context() as patch:
        patch.setattr("dnncore.torch.chains.Chain", Counted)
        yield counts


LENGTHS = {"identity": [6], "projection": [8], "pooled": [5], "read-again": [5], "inverted": [8]}


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_chain_has_the_gradients_of_its_layers(name: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = _pair(BLOCKS[name])
    x = _x(layout=layout)
    with _counted(monkeypatch) as counts:
        found = _gradients(ours, x)
    assert counts == LENGTHS[name]
    expected = _gradients(theirs, x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert [each.stride() for each in found[:2]] == [each.stride() for each in expected[:2]]
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["identity", "projection"])
def test_gradients_of_some_are_those_of_all(name: str) -> None:
    """Whichever parameters are frozen, and whether x wants a gradient."""
    _, ours = _pair(BLOCKS[name])
    names = [name for name, _ in ours.named_parameters()]
    x = _x()
    everything = dict(zip(["x", *names], _gradients(ours, x)[1:], strict=True))
    frozen = [
        *combinations(["x", "conv1.weight", "bn2.bias", "conv3.weight"], 2),
        names[:4],
        names[2:],
        ["x", *names[:7]],
    ]
    for some in frozen:
        x.requires_grad_("x" not in some)
        for each, parameter in ours.named_parameters():
            parameter.requires_grad_(each not in some)
        wanted = [each for each in everything if each not in some]
        found = dict(zip(wanted, _gradients(ours, x)[1:], strict=True))
        torch.testing.assert_close(found, {each: everything[each] for each in wanted})


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_chain_under_autocast_gives_what_its_layers_give_one_by_one(
    name: str, layout: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ours = _pair(BLOCKS[name], torch.float32)
    x = _x(dtype if name == "identity" else torch.float32, layout)  # what is added to is not cast
    with torch.autocast("cpu", dtype):
        with _counted(monkeypatch) as counts:
            found = _gradients(ours, x)
        assert counts == LENGTHS[name]
        monkeypatch.setattr("dnncore.torch.chains.wants_gradient", lambda *_: False)
        with _counted(monkeypatch) as counts:
            expected = _gradients(ours, x)
        assert not counts
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    assert torch.equal(found[0], expected[0])
    tolerance = 8 * torch.finfo(dtype).eps  # a sum of gradients is rounded once in place of twice
    for one, another in zip(found, expected, strict=True):
        torch.testing.assert_close(one, another, rtol=tolerance, atol=tolerance * float(another.detach().abs().max()))


@pytest.mark.usefixtures("nothing_seen")
@pytest.mark.parametrize("layout", FORMATS)
def test_every_way_of_the_layers_gives_the_same(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = _pair(BLOCKS["projection"], torch.float32)
    ours.to(memory_format=FORMATS["NCHW"])
    x = _x(torch.float32, layout)
    expected = _gradients(theirs, x)
    seen: set[int] = set()
    for number in range(4):

        def take(_handle: Handle, ways: Sequence[Way], number: int = number) -> Way:
            seen.add(len(ways))
            return ways[number % len(ways)]

        monkeypatch.setattr(bridge, "fastest_way", take)
        bridge._thread.seen.clear()
        bridge._thread.recent.clear()
        with torch.autocast("cpu", torch.float16):
            found = _gradients(ours, x)
        for one, right in zip(found, expected, strict=True):
            torch.testing.assert_close(one.float(), right, rtol=0.05, atol=0.02 * float(right.detach().abs().max()))
    assert max(seen) == {"NCHW": 4, "NHWC": 2}[layout]


@pytest.mark.parametrize("shape", [(9, 7), (4, 5, 7), (7,)])
@pytest.mark.parametrize("autocasts", [False, True])
def test_a_classifier_drops_what_it_drops_layer_by_layer(
    shape: tuple[int, ...], autocasts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ours = _pair(Classifier, torch.float32)
    plain = dt.convert(_pair(Classifier, torch.float32)[0]).model
    x = torch.linspace(-2, 3, torch.Size(shape).numel()).view(shape).requires_grad_()
    found = []
    for net, expected in ((ours, [5]), (plain, [])):
        torch.manual_seed(3)
        if autocasts:
            x = x.detach().bfloat16().requires_grad_()
        with _counted(monkeypatch) as counts, torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
            found.append(_gradients(net, x))
        assert counts == expected
    tolerance = {"rtol": 0.05, "atol": 0.02} if autocasts else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(*found, **tolerance)
    ours.layers[3].eval()
    assert _calls(ours, x.detach().float().requires_grad_(), monkeypatch) == []


def _calls(net: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    with _counted(monkeypatch) as counts:
        net(x)
    return counts


def test_layers_are_called_one_by_one_where_they_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the projection's, whose forward is one of its own."""
    theirs, ours = _pair(BLOCKS["projection"])
    x = _x()
    assert _calls(ours, x, monkeypatch) == [8]
    with torch.no_grad():
        assert _calls(ours, x, monkeypatch) == []
    ours.bn2.eval()
    assert _calls(ours, x, monkeypatch) == [2]
    ours.train()
    seen: list[str] = []
    for module, chains in ((ours.conv2, [2]), (ours.relu, [2]), (ours.project, [2]), (ours.project[1], [])):
        hook = module.register_forward_hook(lambda *_: seen.append("hook"))
        assert _calls(ours, x, monkeypatch) == chains
        hook.remove()
    assert seen == ["hook"] * 6  # the ReLU is called three times
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert _calls(ours, x, monkeypatch) == []
    hook.remove()
    assert _calls(ours, x, monkeypatch) == [8]
    ours.project.append(nn.Tanh())
    ours.conv3 = nn.Conv2d(4, 8, 1, bias=False).double()
    assert _calls(ours, x, monkeypatch) == [2]
    theirs.project.append(nn.Tanh())
    theirs.conv3 = ours.conv3
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(ours(x), theirs(x))


def _pooled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.GELU())


def _normalised() -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))


class _Added(nn.Module):
    """A residual that is the input, added out of place: in place it would be rounded to 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x)) + x)


def _nothing(_net: Any) -> None:
    """Leave a module as it is."""


def _counts_nothing(net: Any) -> None:
    net[1].track_running_stats = False


def _widen(net: Any) -> None:
    net[1].double()


OTHERWISE: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], None], torch.dtype, int, bool]] = {
    "unbatched": (_pooled, _nothing, torch.float64, 3, False),
    "statistics-that-are-not-tracked": (_normalised, _counts_nothing, torch.float64, 4, False),
    "parameters-that-are-converted": (_normalised, _widen, torch.float32, 4, False),
    "a-residual-that-autocast-leaves": (_Added, _nothing, torch.float32, 4, True),
    "float64-that-autocast-leaves": (_pooled, _nothing, torch.float64, 4, True),
}
"""A module, what is changed in it, dtype and dimensions of what it is given, and whether that is under autocast."""


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_given_otherwise_is_computed_layer_by_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, change, dtype, ndim, autocasts = OTHERWISE[name]
    theirs, ours = _pair(make, dtype)
    plain = dt.convert(theirs).model
    change(ours)
    change(plain)
    x = _x(dtype)
    if ndim == 3:
        x = x.detach()[0].requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
        with _counted(monkeypatch) as counts:
            found = _gradients(ours, x)
        expected = _gradients(plain, x)
    assert counts == []
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    tolerance = 0.05 if autocasts and dtype is torch.float32 else 1e-5
    for one, another in zip(found, expected, strict=True):
        torch.testing.assert_close(one, another, rtol=tolerance, atol=tolerance * float(another.detach().abs().max()))
    torch.testing.assert_close(list(ours.buffers()), list(plain.buffers()))


def test_long_rows_are_cut_so_that_activations_go_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = _pair(
        lambda: nn.Sequential(*(each for _ in range(7) for each in (nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU())))
    )
    x = _x()
    assert _calls(ours, x, monkeypatch) == [8, 6]
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(_gradients(ours, x), _gradients(theirs, x), rtol=1e-8, atol=1e-8)


def test_a_sequential_that_holds_more_layers_is_cut_where_it_is_called_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Headed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(*(each for _ in range(5) for each in (nn.Conv2d(8, 8, 1), nn.SiLU())))
            self.head = nn.Linear(7, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.features(x))

    theirs, ours = _pair(Headed)
    x = _x()
    assert _calls(ours, x, monkeypatch) == [8, 2]
    torch.testing.assert_close(_gradients(ours, x), _gradients(theirs, x), rtol=1e-9, atol=1e-9)


class _Unread(nn.Module):
    """Of whose layers one runs for its statistics alone, and one for nothing; both behind what a chain could begin with."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unread = (nn.Conv2d(8, 8, 1) for _ in range(3))
        self.bn, self.last = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x))
        self.unread(x)
        self.bn(y)
        return self.last(y)


def test_a_layer_whose_result_nobody_reads_is_none_of_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = _pair(_Unread)
    x = _x()
    with _counted(monkeypatch) as counts:
        ours(x).sum().backward()
    assert counts == [2]
    expected = torch.autograd.grad(theirs(x).sum(), [x, *theirs.parameters()], allow_unused=True)
    found = [x.grad, *(parameter.grad for parameter in ours.parameters())]
    assert [each is None for each in found] == [each is None for each in expected]
    for one, another in zip(found, expected, strict=True):
        if one is not None:
            torch.testing.assert_close(one, another, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-9, atol=1e-9)


class _Repeated(nn.Module):
    """Which calls two layers twice, and one that has nothing of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.activation = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.activation(self.activation(self.bn(self.conv(x))))
        return x


def test_a_layer_that_is_called_again_begins_another_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batches would be counted by one launch that adds to the same number twice."""
    theirs, ours = _pair(_Repeated)
    x = _x()
    with _counted(monkeypatch) as counts:
        found = _gradients(ours, x)
    assert counts == [4, 4]
    torch.testing.assert_close(found, _gradients(theirs, x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-9, atol=1e-9)


def test_settings_that_change_are_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = _pair(Bottleneck)
    x = _x()
    for change in range(3):
        for net in (theirs, ours):
            net.bn1.momentum, net.bn2.eps = 0.1 * change + 0.2, 0.1 * change + 0.1
            net.conv2.dilation, net.conv2.padding = (1 + change,) * 2, (1 + change,) * 2
        with _counted(monkeypatch) as counts:
            torch.testing.assert_close(_gradients(ours, x), _gradients(theirs, x), rtol=1e-9, atol=1e-9)
        assert counts == [6]
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_a_residual_that_has_to_be_spread_is_added_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.relu = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()

        def forward(self, x: Tensor, residual: Tensor) -> Tensor:
            return self.relu(self.bn(self.conv(x)) + residual)

    theirs, ours = _pair(Spread)
    x, residual = _x(), torch.ones(1, 8, 1, 1, dtype=torch.float64)
    for _ in range(2):
        with _counted(monkeypatch) as counts:
            torch.testing.assert_close(ours(x, residual), theirs(x, residual))
        assert counts == []
    assert int(ours.bn.num_batches_tracked) == 2


def test_a_chain_is_one_node_and_keeps_one_tensor_beside_what_it_is_given() -> None:
    _, ours = _pair(Bottleneck)
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = ours(_x())
    assert type(y.grad_fn).__name__ == "ChainBackward"
    assert sum(tensor.dtype is torch.uint8 for tensor in packed) == 1
    given = {id(parameter) for parameter in ours.parameters()}
    others = [tensor for tensor in packed if tensor.dtype is not torch.uint8 and id(tensor) not in given]
    assert sorted(tensor.shape for tensor in others) == sorted([y.shape, y.shape])  # x and y


def test_what_no_backward_reads_is_not_kept() -> None:
    """A projection's result is added, and that is all."""
    _, ours = _pair(lambda: Bottleneck(8, 2), torch.float32)
    y = ours(_x(torch.float32))
    kept = y.grad_fn.saved_tensors[0].numel()
    of_conv1, of_conv2, of_conv3 = 3 * 4 * 9 * 7, 3 * 4 * 5 * 4, y.numel()  # 5 x 4 behind a stride of 2
    maps = [of_conv1] * 2 + [of_conv2] * 2 + [of_conv3] * 2  # the projection's convolution too
    statistics = [2 * 4] * 2 + [2 * 8] * 2
    assert kept == sum(-(-4 * count // 256) * 256 for count in (*maps, *statistics))


def test_layers_that_are_frozen_keep_nothing_in_front_of_the_first_that_is_not() -> None:
    theirs, ours = _pair(Bottleneck)
    for net in (theirs, ours):
        net.conv1.requires_grad_(False)
        net.bn1.requires_grad_(False)
    x = _x().detach()
    y = ours(x)
    of_conv1, of_conv3 = 3 * 4 * 9 * 7, y.numel()
    maps = [of_conv1] + [of_conv1] * 2 + [of_conv3]  # what the second convolution reads, and what the others do
    statistics = [2 * 4, 2 * 8]
    assert y.grad_fn.saved_tensors[0].numel() == sum(-(-8 * count // 256) * 256 for count in (*maps, *statistics))
    assert not any(each.shape == x.shape and torch.equal(each, x) for each in y.grad_fn.saved_tensors)
    theirs.load_state_dict(ours.state_dict())
    x.requires_grad_()
    torch.testing.assert_close(_gradients(ours, x)[1:], _gradients(theirs, x)[1:], rtol=1e-9, atol=1e-9)


def test_what_is_saved_may_come_back_otherwise() -> None:
    """As from memory of the host, where hooks have put it."""
    theirs, ours = _pair(Bottleneck)
    x = _x(layout="NHWC")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.contiguous()):
        found = _gradients(ours, x)
    torch.testing.assert_close(found, _gradients(theirs, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("overwritten", ["weight", "bias", "x", "y"])
def test_what_is_overwritten_between_forward_and_backward_is_refused(overwritten: str) -> None:
    _, ours = _pair(Bottleneck)
    x = _x()
    read = x * 1
    y = ours(read)
    with torch.no_grad():
        {"weight": ours.conv2.weight, "bias": ours.bn1.bias, "x": read, "y": y}[overwritten].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_graph_is_gone_through_twice_only_where_it_is_retained() -> None:
    _, ours = _pair(Bottleneck)
    x = _x()
    y = ours(x)
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), x)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(ours(x).sum(), x, create_graph=True)


def test_what_is_computed_again_for_the_backward_is_what_it_was() -> None:
    _, ours = _pair(Bottleneck)
    x = _x()
    expected = _gradients(ours, x)
    again = torch.utils.checkpoint.checkpoint(ours, x, use_reentrant=False)
    seed = torch.sin(torch.arange(again.numel(), dtype=again.dtype)).view_as(again)
    found = torch.autograd.grad(again, [x, *ours.parameters()], seed)
    torch.testing.assert_close([again, *found], expected)


def test_chains_that_are_under_way_together_do_not_meet() -> None:
    theirs, ours = _pair(Bottleneck)
    inputs = [_x(), torch.flip(_x().detach(), (0,)).requires_grad_()]
    sums = [[net(x).square().sum() for x in inputs] for net in (theirs, ours)]
    expected, found = (torch.autograd.grad(sum(each), inputs) for each in sums)
    torch.testing.assert_close(found, expected)
    copied = copy.deepcopy(ours)
    torch.testing.assert_close(_gradients(copied, inputs[0]), _gradients(ours, inputs[0]))
    assert copied.conv1.weight is not ours.conv1.weight


def test_a_backward_of_what_other_threads_have_called_is_planned_once() -> None:
    """As of data-parallel replicas, whose threads end with each step."""
    _, ours = _pair(Bottleneck)
    x = _x()
    known: list[int] = []
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            y = pool.submit(ours, x).result()
        y.sum().backward()
        known.append(len(bridge._thread.seen))
    assert len(set(known)) == 1


def test_parameters_see_their_gradients_once_each() -> None:
    """As data-parallel training counts on."""
    _, ours = _pair(Bottleneck)
    seen: list[str] = []
    for name, parameter in ours.named_parameters():
        parameter.register_hook(lambda _gradient, name=name: seen.append(name))
    ours(_x()).sum().backward()
    assert sorted(seen) == sorted(name for name, _ in ours.named_parameters())
    assert all(parameter.grad is not None and not parameter.grad._is_view() for parameter in ours.parameters())


def test_an_empty_batch_has_gradients_of_zero() -> None:
    theirs, ours = _pair(Bottleneck)
    found = _gradients(ours, torch.empty(0, 8, 9, 7, dtype=torch.float64, requires_grad=True))
    assert found[0].shape == (0, 8, 9, 7)
    assert all(not each.any() for each in found[2:])
    assert [each.shape for each in found[2:]] == [each.shape for each in theirs.parameters()]


def test_what_autograd_cannot_follow_is_refused() -> None:
    _, ours = _pair(Bottleneck)
    with pytest.raises(RuntimeError, match="transforms of torch"):
        torch.func.grad(lambda x: ours(x).sum())(_x().detach())
    with pytest.raises(RuntimeError), torch.autograd.forward_ad.dual_level():
        ours(torch.autograd.forward_ad.make_dual(_x().detach(), _x().detach()))


def test_a_gradient_with_several_readers_is_added_up_by_the_convolution_that_comes_last() -> None:
    """A launch and a pass over memory less than a sum of its own takes."""
    _, ours = _pair(Bottleneck)
    y = ours(_x())
    record, _ = y.grad_fn.settings
    given = [_describe(tensor) for tensor in (y, *y.grad_fn.saved_tensors)]
    way = chain._backward(record, (True,) * 10, *given).compose(lambda operation: operation.ways[0])
    (adding,) = (step for step in way.steps if step.beta)
    assert adding.beta == 1.0
    assert isinstance(adding.problem, ConvolutionProblem)
    assert adding.problem.direction is Direction.BACKWARD_DATA
    assert len(way.steps) == 3 * 2 + 3


def test_places_are_given_to_others_once_they_are_free() -> None:
    passing = _Passing()
    small, large = (TensorDescriptor.packed((count,), "int8") for count in (200, 600))
    first, second = passing.take(large), passing.take(small)
    assert (first, second) == (0, 768)
    passing.give_back(first, large)
    assert passing.take(small) == 0
    assert passing.take(small) == 256
    assert passing.take(large) == 1024
    passing.give_back(second, small)
    assert passing.take(small) == 512
    assert passing.nbytes == 1024 + 768


@pytest.mark.parametrize("device", CUDA_DEVICES[:1])
@pytest.mark.parametrize("layout", FORMATS)
def test_a_chain_of_kernels_gives_what_the_reference_gives(
    device: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operation of a step, on memory of a CUDA device that holds what PyTorch's tensors do."""
    _, ours = _pair(lambda: Bottleneck(8, 2), torch.float32)
    x = _x(torch.float16, layout)
    compared: list[str] = []
    with Handle(device) as handle:

        def operate(describe: Any, settings: Any, tensors: Sequence[Tensor], caller: int) -> list[Any]:
            way = bridge.chosen_way(handle, describe(*settings, *map(_describe, tensors)))
            held = [handle.upload(bridge._bytes(tensor.detach())) for tensor in tensors]
            made = [handle.tensor((max(each.nbytes, 1),), "uint8") for each in way.results]
            enqueue = handle.wire(bridge._wired(handle, way, tensors), None, way.scratch_bytes)
            enqueue([each.address for each in (*held, *made)])
            results: list[Any] = []
            for each, memory in zip(way.results, made, strict=True):
                raw = torch.from_numpy(memory.numpy().copy()).view(TORCH_DTYPES[each.dtype])
                results.append(raw.as_strided(each.shape, each.strides))
            for tensor, memory in zip(tensors, held, strict=True):
                torch.from_numpy(bridge._bytes(tensor.detach())).copy_(torch.from_numpy(memory.numpy()))
            compared.append(describe.__name__)
            return [*results, *way.notes]

        with torch.autocast("cpu", torch.float16):
            expected = _gradients(copy.deepcopy(ours), x)
            monkeypatch.setattr(chain, "operate", operate)
            found = _gradients(ours, x)
    assert compared == ["_forward", "_backward"]
    for one, right in zip(found, expected, strict=True):
        assert (one.dtype, one.stride()) == (right.dtype, right.stride())
        torch.testing.assert_close(one, right, rtol=0.02, atol=0.01 * float(right.detach().abs().max()))
