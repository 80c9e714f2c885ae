"""`convert(model)`, which fuses where a forward's source shows that it does the same at every call, and nowhere else."""

from __future__ import annotations

import copy
import functools
import linecache
import math
import pickle
import random
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import relu

import dnncore.torch as dt
from dnncore.torch import fusion, straight
from dnncore.torch.straight import NotStraightError, Settled, settled_by

Tensor = Any
f = nn.functional
factor = 2.0


class Layers(nn.Module):
    """What the forwards below call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.other = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.relu, self.nothing, self.absent = nn.ReLU(), None, nn.Identity()
        self.absent = None
        self.adds, self.scale, self.sizes = True, 0.5, [4, 4]
        self.weight = nn.Parameter(torch.ones(4, 1, 1))
        self.register_buffer("shift", torch.zeros(4, 1, 1))


class Block(Layers):
    """Decides by submodules and plain attributes, and by its mode."""

    def forward(self, x: Tensor) -> Tensor:
        """As residual blocks do."""
        residual = x
        out = self.relu(self.bn(self.conv(x)))
        if self.nothing is not None:
            residual = self.nothing(x)
        if self.absent is not None and not self.training:
            residual = self.absent(x)
        if self.adds:
            out = out + residual
        out = self.other(out)
        return (relu(out) if self.training else out.relu()) * self.scale


class Calls(Layers):
    """Calls methods of its own, functions by several names, methods of tensors, and reads parameters and buffers."""

    def _first(self, x: Tensor) -> Tensor:
        y = self.bn(self.conv(x))
        return nn.functional.relu(y)

    def forward(self, x: Tensor) -> Tensor:
        y = self._first(x)
        first, second = torch.chunk(torch.cat([y, y * self.weight + self.shift], 1), 2, dim=1)
        z: Tensor = f.relu(self.other(first + second[:, :4].contiguous()))
        return torch.flatten(z, 2).view(z.size(0), 4, -1)


class Row(nn.Sequential):
    """A subclass without a forward of its own."""


def test_what_a_straight_forward_goes_by_is_what_it_reads() -> None:
    settled = settled_by(Block(), Block)
    assert dict(settled.attributes) == {"nothing": None, "adds": True, "scale": 0.5}
    assert dict(settled.children) == {"absent": False, "relu": True, "bn": True, "conv": True, "other": True}
    assert [name for _, name, _, _ in settled.methods] == ["forward"]
    assert [name for _, name, _ in settled.names] == ["relu"]
    assert settled_by(Row(nn.Identity()), Row) == Settled(children=(("0", True),))


class Draws(Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn(self.conv(x)))
        return y if random.random() < 0.5 else x


class ReadsGlobal(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x))) * factor


class ReadsModule(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x))) * math.pi


class Asks(Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn(self.conv(x)))
        return y if torch.is_grad_enabled() else x


class Branches(Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn(self.conv(x)))
        return y if x.shape[0] > 3 else x


class BranchesByKind(Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn(self.conv(x)))
        return y if isinstance(x, torch.Tensor) else x


class BranchesByIdentity(Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn(self.conv(x)))
        return y * (x is None)


class BranchesInMethod(Layers):
    def _chosen(self, y: Tensor, first: bool) -> Tensor:
        return y if first else y * 2

    def forward(self, x: Tensor) -> Tensor:
        return self._chosen(self.relu(self.bn(self.conv(x))), True)


class Loops(Layers):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.relu(self.bn(self.conv(x)))
        return x


class Counts(Layers):
    def forward(self, x: Tensor) -> Tensor:
        self.scale = self.scale + 1
        return self.relu(self.bn(self.conv(x)))


class ReadsList(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x))) * self.sizes[0]


class ReadsProperty(Layers):
    @property
    def half(self) -> float:
        return self.scale

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x))) * self.half


class FindsOtherwise(Layers):
    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x)))


def _as_it_is(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def wrapped(self: Any, x: Tensor) -> Tensor:
        y: Tensor = forward(self, x)
        return y * 2

    return wrapped


class Wrapped(Layers):
    @_as_it_is
    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x)))


class CallsBase(Layers):
    def forward(self, x: Tensor) -> Tensor:
        return super().extra_repr() or self.relu(self.bn(self.conv(x)))


class PassesChild(Layers):
    def forward(self, x: Tensor) -> Tensor:
        layer = self.bn
        return self.relu(layer(self.conv(x)))


class Remembers(Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = [self.relu(self.bn(self.conv(each))) for each in (x,)]
        return y[0]


class Defaults(Layers):
    def _kept(self, y: Tensor, seen: list[Any] = []) -> Tensor:  # noqa: B006
        seen.append(y)
        return y

    def forward(self, x: Tensor) -> Tensor:
        return self._kept(self.relu(self.bn(self.conv(x))))


class TwoNames(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.again = self.relu

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.other(self.relu(self.bn(self.conv(x)))))


class Tied(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.tied = self.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x))) * self.tied


NOT_STRAIGHT: dict[type[nn.Module], str] = {
    Draws: "random.random()",
    ReadsGlobal: "`factor`",
    ReadsModule: "`math.pi`",
    Asks: "torch.is_grad_enabled()",
    Branches: "x.shape[0] > 3",
    BranchesByKind: "isinstance",
    BranchesByIdentity: "x is None",
    BranchesInMethod: "`first`",
    Loops: "for _ in range(2):",
    Counts: "self.scale",
    ReadsList: "self.sizes",
    ReadsProperty: "self.half",
    FindsOtherwise: "__getattr__",
    Wrapped: "wrapped",
    CallsBase: "closure",
    PassesChild: "self.bn",
    Remembers: "for each in",
    Defaults: "_kept",
    TwoNames: "self.again",
    Tied: "self.tied",
}


@pytest.mark.parametrize("kind", NOT_STRAIGHT)
def test_what_may_do_something_else_at_the_next_call_is_refused_by_what_it_says(kind: type[nn.Module]) -> None:
    with pytest.raises(NotStraightError) as refused:
        settled_by(kind(), kind)
    assert NOT_STRAIGHT[kind] in str(refused.value)


@pytest.mark.parametrize("kind", NOT_STRAIGHT)
def test_it_is_fused_where_it_is_asked_for_alone(kind: type[nn.Module]) -> None:
    conversion = dt.convert(kind().train())
    assert conversion.fused == ()
    assert type(conversion.model) is kind
    assert all("does the same" not in why for _, why in conversion.left)
    asked = dt.convert(kind().train(), fuse=True)
    assert asked.fused or asked.left  # fused, or said to be left


@pytest.mark.parametrize("make", [Block, Calls])
@pytest.mark.parametrize("training", [True, False])
def test_a_straight_forward_is_fused_and_computes_what_it_did(make: type[nn.Module], training: bool) -> None:
    theirs = make().double().train(training)
    apart, fused = (dt.convert(copy.deepcopy(theirs), fuse=fuse) for fuse in (False, None))
    assert apart.fused == ()
    assert set(fused.fused) == {"bn", "other"}
    _agree(apart.model, fused.model)


def test_an_attribute_that_changes_later_is_read_again() -> None:
    apart, fused = (dt.convert(Block().double().train(), fuse=fuse).model for fuse in (False, None))
    fused.load_state_dict(apart.state_dict())
    _agree(apart, fused)
    changes: list[tuple[str, Any]] = [
        *(("adds", False), ("scale", 3.0), ("nothing", nn.Conv2d(4, 4, 1).double()), ("adds", True)),
        *(("absent", nn.Identity()), ("nothing", None), ("scale", torch.tensor(2.0))),
    ]
    for name, value in changes:
        for net in (apart, fused):
            setattr(net, name, value)
        for training in (True, False):
            _agree(apart.train(training), fused.train(training))


def test_what_becomes_unreadable_is_left_from_then_on() -> None:
    net = dt.convert(Block().train()).model
    net(torch.ones(2, 4, 3, 3))
    assert net.__dict__["_dnncore_fused"].training is not None
    net.scale = torch.tensor(2.0)  # no longer a number, which a trace would have taken as it is
    net(torch.ones(2, 4, 3, 3))
    assert net.__dict__["_dnncore_fused"].training is None


@pytest.mark.parametrize("again", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["copy", "pickle"])
@pytest.mark.parametrize("fuse", [None, True])
def test_copies_go_by_what_was_asked(again: Callable[[nn.Module], nn.Module], fuse: bool | None) -> None:
    """Not by what the original went by: a copy is read when it is first called."""
    net = again(dt.convert(Block().double().train(), fuse=fuse).model)
    apart = dt.convert(Block().double().train(), fuse=False).model
    apart.load_state_dict(net.state_dict())
    apart.adds = net.adds = False
    _agree(apart, net)
    assert type(net)._trusts is bool(fuse)
    assert isinstance(net, Block)


class Counting(Layers):
    """Writes to a buffer, and reads another's value."""

    def forward(self, x: Tensor) -> Tensor:
        self.shift.add_(1)
        y = self.relu(self.bn(self.conv(x)))
        self.shift.mul_(0.5)
        return y * self.shift.max().item()


def test_what_is_done_to_buffers_is_done_at_each_call_and_not_when_a_model_is_converted() -> None:
    theirs = Counting().double().train()
    apart, fused = (dt.convert(copy.deepcopy(theirs), fuse=fuse) for fuse in (False, None))
    assert fused.fused == ("bn",)
    assert torch.equal(fused.model.shift, theirs.shift)
    for _ in range(3):
        _agree(apart.model, fused.model)
        torch.testing.assert_close(fused.model.shift, apart.model.shift)


class Overwrites(Layers):
    def forward(self, x: Tensor) -> Tensor:
        part = x[:, :2]
        y = self.conv(x)
        part.zero_()
        return self.relu(y)


class OverwritesElsewhere(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Hardswish(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        part = x[:, :2]
        y = self.conv(x)
        self.act(part)
        return self.relu(y)


@pytest.mark.parametrize("kind", [Overwrites, OverwritesElsewhere])
def test_a_layer_does_not_wait_for_its_relu_where_its_input_may_be_overwritten_meanwhile(kind: type[nn.Module]) -> None:
    theirs = kind().eval()
    conversion = dt.convert(copy.deepcopy(theirs))
    assert conversion.fused == ()
    with torch.no_grad():
        torch.testing.assert_close(conversion.model(torch.ones(2, 4, 3, 3)), theirs(torch.ones(2, 4, 3, 3)))


class Steps(Layers):
    """Calls a method, a function by a name from outside, and children."""

    def _first(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x)))

    def forward(self, x: Tensor) -> Tensor:
        return activation(self.other(self._first(x)))


activation = torch.relu


@pytest.mark.parametrize("what", ["method", "class", "name", "code", "child"])
def test_what_is_put_in_the_place_of_what_a_forward_calls_is_called(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(self: Any, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)) * 2

    apart, fused = (dt.convert(Steps().double().train(), fuse=fuse).model for fuse in (False, None))
    fused.load_state_dict(apart.state_dict())
    _agree(apart, fused)
    if what == "class":
        monkeypatch.setattr(Steps, "_first", twice)
    elif what == "name":
        monkeypatch.setitem(globals(), "activation", torch.tanh)
    elif what == "code":
        monkeypatch.setattr(Steps._first, "__code__", twice.__code__)
    for net in (apart, fused):
        if what == "method":
            net._first = types.MethodType(twice, net)
        elif what == "child":
            net.relu = nn.Tanh()
    _agree(apart, fused)


def test_children_in_another_order_run_in_it() -> None:
    net = dt.convert(
        nn.Sequential(OrderedDict(conv=nn.Conv2d(4, 4, 1), bn=nn.BatchNorm2d(4), relu=nn.ReLU())).train()
    ).model
    x = torch.randn(2, 4, 3, 3)
    net(x)
    bn = net.bn
    del net.bn
    net.add_module("bn", bn)
    torch.testing.assert_close(net(x), bn(net.relu(net.conv(x))))


def test_an_attribute_that_changes_before_each_call_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[None] = []
    trace = fusion._trace_as

    def counted(*args: Any, **how: Any) -> Any:
        reads.append(None)
        return trace(*args, **how)

    monkeypatch.setattr(fusion, "_trace_as", counted)
    net = dt.convert(Block().train()).model
    for step in range(30):
        net.scale = float(step)
        net(torch.ones(2, 4, 3, 3))
    assert len(reads) < 25
    assert net.__dict__["_dnncore_fused"].training is None


def test_another_forward_that_a_class_is_given_later_is_heeded() -> None:
    class Patched(Block):
        def forward(self, x: Tensor) -> Tensor:
            return self.relu(self.bn(self.conv(x)))

    net = dt.convert(Patched().train()).model
    x = torch.ones(2, 4, 3, 3)
    net(x)
    setattr(Patched, "forward", lambda _, x: x * 2)  # noqa: B010 (a method is not assigned to)
    assert torch.equal(net(x), x * 2)


def test_a_class_that_takes_notice_of_its_subclasses_gets_none() -> None:
    known = []

    class Base(Block):
        def __init_subclass__(cls) -> None:
            known.append(cls.__name__)

    class Registered(Base):
        def forward(self, x: Tensor) -> Tensor:
            return self.relu(self.bn(self.conv(x)))

    for fuse in (None, True):
        assert dt.convert(Registered().train(), fuse=fuse).fused == ()
    assert known == ["Registered"]


def test_a_model_that_is_converted_again_stays_as_it_was_asked_for() -> None:
    net = nn.Sequential(ReadsGlobal().train())
    assert dt.convert(net, fuse=True).fused == dt.convert(net).fused == ("0.bn",)


def test_a_source_that_has_been_changed_since_it_was_imported_says_nothing() -> None:
    source = "def forward(self, x):\n    return self.relu(self.bn(self.conv(x)))\n"
    names: dict[str, Any] = {}
    name = "<changed>"
    exec(compile(source, name, "exec"), names)
    forward = names["forward"]

    def read() -> Settled:
        straight._definition_of.cache_clear()
        kind: Any = type("Changed", (Layers,), {"forward": type(forward)(forward.__code__, names)})
        return settled_by(kind(), kind)

    def show(lines: str) -> None:
        linecache.cache[name] = (len(lines), None, lines.splitlines(keepends=True), name)

    show(source)
    assert [name for _, name, _, _ in read().methods] == ["forward"]
    show(source.replace("self.bn(self.conv(x))", "self.bn(x)"))
    with pytest.raises(NotStraightError, match="is not that of its code"):
        read()
    del linecache.cache[name]
    with pytest.raises(NotStraightError, match="there is no source"):
        read()


def _agree(apart: nn.Module, fused: nn.Module) -> None:
    x = torch.randn(3, 4, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [net(each) for net, each in zip((apart, fused), inputs, strict=True)]
    torch.testing.assert_close(outputs[1], outputs[0])
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    for own, other in zip(apart.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(other.grad, own.grad)
    for net in (apart, fused):
        net.zero_grad()
