"""Our modules by name: nets that are built from them, pickled and saved."""

from __future__ import annotations

import inspect
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import dnncore.torch as dt
from dnncore.errors import BadParamError
from dnncore.torch import modules

Tensor = Any


def _net(layers: Any) -> nn.Module:
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(
        layers.Conv2d(3, 8, 3, padding=1),
        layers.BatchNorm2d(8),
        layers.ReLU(),
        layers.MaxPool2d(2),
        nn.Flatten(),
        layers.Linear(8 * 16, 5),
    )
    return net


X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(2))


def _check(net: nn.Module) -> None:
    """A net of our classes computes what PyTorch's does."""
    ours = {"Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d", "Linear"}
    assert {type(m) for m in net.modules()} >= {getattr(modules, name) for name in ours}
    torch.testing.assert_close(net.eval()(X), _net(nn).eval()(X), rtol=1e-4, atol=1e-5)


def test_each_class_has_its_name_here() -> None:
    for theirs, ours in modules.MODULES.items():
        assert getattr(modules, theirs.__name__) is ours
        assert theirs.__name__ in modules.__all__
        assert inspect.signature(ours) == inspect.signature(theirs)


def test_a_net_is_built_from_our_modules() -> None:
    _check(_net(modules))


def test_a_converted_net_is_pickled() -> None:
    _check(pickle.loads(pickle.dumps(dt.convert(_net(nn)).model)))


def test_a_converted_net_is_saved_whole() -> None:
    file = io.BytesIO()
    torch.save(dt.convert(_net(nn)).model, file)
    file.seek(0)
    _check(torch.load(file, weights_only=False))


@pytest.mark.parametrize("name", sorted(modules.__all__))
def test_an_object_of_each_class_is_pickled(name: str) -> None:
    if name == "MODULES":
        assert pickle.loads(pickle.dumps(modules.MODULES)) == modules.MODULES
        return
    module = getattr(modules, name).__new__(getattr(modules, name))
    nn.Module.__init__(module)
    assert type(pickle.loads(pickle.dumps(module))) is type(module)


def test_a_subclass_keeps_its_own_constructor() -> None:
    class Narrow(modules.Conv2d):
        def __init__(self, channels: int) -> None:
            super().__init__(channels, channels, 1)

    assert list(inspect.signature(Narrow).parameters) == ["channels"]
    assert Narrow(3)(torch.ones(1, 3, 2, 2)).shape == (1, 3, 2, 2)


def test_a_subclass_may_have_a_forward_of_its_own() -> None:
    class Doubling(modules.Linear):
        def forward(self, x: Any) -> Any:
            return 2 * super().forward(x)

    layer, x = Doubling(3, 2), torch.ones(1, 3)
    torch.testing.assert_close(layer(x), 2 * torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_an_object_may_have_a_forward_of_its_own() -> None:
    """So do libraries that wrap the forward of modules, before `convert` or after it."""
    before, after, x = nn.Linear(3, 2), nn.Linear(3, 2), torch.ones(1, 3)
    before.forward = lambda x: 7 * x
    net = dt.convert(nn.Sequential(before, after)).model
    net[1].forward = lambda x: 5 * x
    torch.testing.assert_close(net(x), 35 * x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_a_net_is_traced_as_pytorchs() -> None:
    def operators(namespace: Any) -> list[str]:
        with torch.no_grad():
            return [node.kind() for node in torch.jit.trace(_net(namespace).eval(), X).inlined_graph.nodes()]

    assert operators(modules) == operators(nn)


def test_a_setting_that_we_do_not_compute_is_refused_by_the_constructor() -> None:
    with pytest.raises(BadParamError, match="Conv2d does not compute this: padding_mode reflect"):
        modules.Conv2d(3, 8, 3, padding_mode="reflect")
    with pytest.raises(BadParamError, match="MaxPool2d does not compute this: return_indices"):
        modules.MaxPool2d(2, return_indices=True)


CALLS = {
    "forward hook": lambda net, hook: net.register_forward_hook(hook),
    "forward pre-hook": lambda net, hook: net.register_forward_pre_hook(hook),
    "backward hook": lambda net, hook: net.register_full_backward_hook(hook),
    "backward pre-hook": lambda net, hook: net.register_full_backward_pre_hook(hook),
    "global forward hook": lambda _, hook: nn.modules.module.register_module_forward_hook(hook),
    "global forward pre-hook": lambda _, hook: nn.modules.module.register_module_forward_pre_hook(hook),
    "global backward hook": lambda _, hook: nn.modules.module.register_module_full_backward_hook(hook),
    "global backward pre-hook": lambda _, hook: nn.modules.module.register_module_full_backward_pre_hook(hook),
}
"""What a user may hang on every call of a module."""


@pytest.mark.parametrize("what", CALLS)
def test_what_hangs_on_a_call_is_called_until_it_is_removed(what: str) -> None:
    layer, x, seen = modules.Linear(3, 2), torch.ones(1, 3, requires_grad=True), []
    register: Any = CALLS[what]
    registered = register(layer, lambda *_: seen.append(what))
    layer(x).sum().backward()
    registered.remove()
    layer(x).sum().backward()
    assert seen == [what]


def test_who_stands_in_for_a_call_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = modules.Linear(3, 2)
    monkeypatch.setattr(layer, "_compiled_call_impl", lambda x: x + 1)  # as layer.compile() does
    assert layer(torch.zeros(1)).tolist() == [1.0]

    tracer: Any = type("Whole", (torch.fx.Tracer,), {"is_leaf_module": lambda *_: True})()
    traced = tracer.trace(nn.Sequential(modules.Linear(3, 2), modules.ReLU()))
    assert [node.op for node in traced.nodes] == ["placeholder", "call_module", "call_module", "output"]
