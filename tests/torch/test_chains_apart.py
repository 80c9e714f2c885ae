"""Which layers a chain has, and where they are called one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import dnncore.torch as dt
from tests.torch.chained import (
    BLOCKS,
    Bottleneck,
    Headed,
    Pooled,
    Tensor,
    calls,
    counted,
    example,
    gradients,
    pair,
)


def test_layers_are_called_one_by_one_where_they_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the projection's, whose forward is one of its own."""
    theirs, ours = pair(BLOCKS["projection"])
    x = example()
    assert calls(ours, x, monkeypatch) == [8]
    with torch.no_grad():
        assert calls(ours, x, monkeypatch) == []
    ours.bn2.eval()
    assert calls(ours, x, monkeypatch) == [2]
    ours.train()
    seen: list[str] = []
    for module, chains in ((ours.conv2, [2]), (ours.relu, [2]), (ours.project, [2]), (ours.project[1], [])):
        hook = module.register_forward_hook(lambda *_: seen.append("hook"))
        assert calls(ours, x, monkeypatch) == chains
        hook.remove()
    assert seen == ["hook"] * 6  # the ReLU is called three times
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert calls(ours, x, monkeypatch) == []
    hook.remove()
    assert calls(ours, x, monkeypatch) == [8]
    ours.project.append(nn.Tanh())
    ours.conv3 = nn.Conv2d(4, 8, 1, bias=False).double()
    assert calls(ours, x, monkeypatch) == [2]
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
    theirs, ours = pair(make, dtype)
    plain = dt.convert(theirs, fuse=False).model
    change(ours)
    change(plain)
    x = example(dtype)
    if ndim == 3:
        x = x.detach()[0].requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
        with counted(monkeypatch) as counts:
            found = gradients(ours, x)
        expected = gradients(plain, x)
    assert counts == []
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    tolerance = 0.05 if autocasts and dtype is torch.float32 else 1e-5
    for one, another in zip(found, expected, strict=True):
        torch.testing.assert_close(one, another, rtol=tolerance, atol=tolerance * float(another.detach().abs().max()))
    torch.testing.assert_close(list(ours.buffers()), list(plain.buffers()))


def test_long_rows_are_cut_so_that_activations_go_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pair(
        lambda: nn.Sequential(*(each for _ in range(7) for each in (nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU())))
    )
    x = example()
    assert calls(ours, x, monkeypatch) == [8, 6]
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(gradients(ours, x), gradients(theirs, x), rtol=1e-8, atol=1e-8)


def test_a_sequential_that_holds_more_layers_is_cut_where_it_is_called_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Headed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(*(each for _ in range(5) for each in (nn.Conv2d(8, 8, 1), nn.SiLU())))
            self.head = nn.Linear(7, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.features(x))

    theirs, ours = pair(Headed)
    x = example()
    assert calls(ours, x, monkeypatch) == [8, 2]
    torch.testing.assert_close(gradients(ours, x), gradients(theirs, x), rtol=1e-9, atol=1e-9)


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
    theirs, ours = pair(_Unread)
    x = example()
    with counted(monkeypatch) as counts:
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
    theirs, ours = pair(_Repeated)
    x = example()
    with counted(monkeypatch) as counts:
        found = gradients(ours, x)
    assert counts == [4, 4]
    torch.testing.assert_close(found, gradients(theirs, x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-9, atol=1e-9)


def test_settings_that_change_are_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pair(Bottleneck)
    x = example()
    for change in range(3):
        for net in (theirs, ours):
            net.bn1.momentum, net.bn2.eps = 0.1 * change + 0.2, 0.1 * change + 0.1
            net.conv2.dilation, net.conv2.padding = (1 + change,) * 2, (1 + change,) * 2
        with counted(monkeypatch) as counts:
            torch.testing.assert_close(gradients(ours, x), gradients(theirs, x), rtol=1e-9, atol=1e-9)
        assert counts == [6]
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_a_residual_that_has_to_be_spread_is_added_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.relu = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()

        def forward(self, x: Tensor, residual: Tensor) -> Tensor:
            return self.relu(self.bn(self.conv(x)) + residual)

    theirs, ours = pair(Spread)
    x, residual = example(), torch.ones(1, 8, 1, 1, dtype=torch.float64)
    for _ in range(2):
        with counted(monkeypatch) as counts:
            torch.testing.assert_close(ours(x, residual), theirs(x, residual))
        assert counts == []
    assert int(ours.bn.num_batches_tracked) == 2


def test_a_head_is_called_apart_where_its_modules_are_watched_or_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `Sequential` is a chain of its own then, as far as it is not watched itself."""
    theirs, ours = pair(Headed)
    x = example()
    assert calls(ours, x, monkeypatch) == [6]
    seen: list[str] = []
    for module, chains in (
        *((ours.features, [2, 2]), (ours.features[1], [2]), (ours.classifier[0], [2])),
        *((ours.avgpool, [2, 2]), (ours.classifier[1], [2])),
    ):
        hook = module.register_forward_hook(lambda *_: seen.append("hook"))
        assert calls(ours, x, monkeypatch) == chains
        hook.remove()
    assert seen == ["hook"] * 5
    ours.features[1] = theirs.features[1] = nn.Tanh()
    assert calls(ours, x, monkeypatch) == [2]
    torch.testing.assert_close(gradients(ours, x), gradients(theirs, x), rtol=1e-9, atol=1e-9)
    ours.eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs.eval()(x))


def test_windows_that_differ_are_averaged_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> nn.Module:
        net = Headed()
        net.avgpool = nn.AdaptiveAvgPool2d((3, 2))
        net.classifier[0] = nn.Linear(36, 5)
        return net

    theirs, ours = pair(make)
    x = example()
    assert calls(ours, x, monkeypatch) == [2, 2]
    torch.testing.assert_close(gradients(ours, x), gradients(theirs, x), rtol=1e-9, atol=1e-9)


class _Flattened(nn.Module):
    """Flattens in some way between two layers."""

    def __init__(self, flatten: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.last, self.flatten = nn.Conv2d(8, 4, (9, 1)), nn.Linear(7, 2), flatten

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.flatten(self.conv(x)))


FLATTENED: dict[str, Callable[[Tensor], Tensor]] = {
    "and something behind that": lambda x: torch.flatten(x, 1).unflatten(1, (4, 7)),
    "from the third": lambda x: torch.flatten(x, 2),
    "from the second to the third": lambda x: torch.flatten(x, 1, 2),
    "by name": lambda x: torch.flatten(x, start_dim=2),
    "read again": lambda x: torch.flatten(x, 1)[:, :7] + x.sum((1, 2, 3))[:, None],
}


@pytest.mark.parametrize("name", FLATTENED)
def test_what_is_flattened_otherwise_is_no_part_of_a_chain(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pair(lambda: _Flattened(FLATTENED[name]))
    x = example()
    assert calls(ours, x, monkeypatch) == []
    torch.testing.assert_close(gradients(ours, x), gradients(theirs, x), rtol=1e-9, atol=1e-9)


class _Scaled(nn.Module):
    def forward(self, x: Tensor, factor: int) -> Tensor:
        return x * factor * 2


class _CalledFlatten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.flatten, self.last = nn.Conv2d(8, 4, 1), _Scaled(), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.flatten(self.conv(x), 1))


def test_a_module_may_have_a_functions_name() -> None:
    theirs, ours = pair(_CalledFlatten)
    x = example()
    torch.testing.assert_close(gradients(ours, x), gradients(theirs, x), rtol=1e-9, atol=1e-9)


class _Rows(nn.Module):
    """Begins with a flatten, or ends with one."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first = first
        layers = (nn.Linear(504, 5), nn.Linear(5, 3)) if first else (nn.Conv2d(8, 4, 1), nn.Conv2d(4, 2, 1))
        self.one, self.two = layers

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(torch.flatten(x, 1))) if self.first else torch.flatten(self.two(self.one(x)), 1)


@pytest.mark.parametrize("first", [True, False])
def test_a_flatten_at_an_end_of_a_chain_is_pytorchs(first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pair(lambda: _Rows(first))
    x = example()
    assert calls(ours, x, monkeypatch) == [2]
    torch.testing.assert_close(gradients(ours, x), gradients(theirs, x), rtol=1e-9, atol=1e-9)


def test_layers_behind_a_flatten_do_not_count_up_to_as_many_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(*(nn.Conv2d(8, 8, 1) for _ in range(8)), nn.AvgPool2d(3))
            self.rows = nn.Sequential(nn.Linear(48, 3), *(nn.Linear(3, 3) for _ in range(4)))
            self.more = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))

        def forward(self, x: Tensor) -> Tensor:
            return self.more(self.rows(torch.flatten(self.features(x), 1)))

    theirs, ours = pair(Deep)
    x = example()
    assert calls(ours, x, monkeypatch) == [15, 3]
    torch.testing.assert_close(gradients(ours, x), gradients(theirs, x), rtol=1e-9, atol=1e-9)


def test_a_module_of_one_sequential_is_left_as_it_is_and_so_is_what_cannot_be_read() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.more = (nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU()) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.more(self.features(x)) if x.sum() > 0 else x

    for make in (Pooled, Branches):
        net = make()
        conversion = dt.convert(net, fuse=True)
        assert type(net) is make
        assert [why for name, why in conversion.left if not name] == []
