"""`convert` swaps layers in place and changes nothing else: outputs, gradients, state_dict, hooks, training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import dnncore.torch as dt
from dnncore.errors import BadParamError
from dnncore.torch.modules import MODULES

Tensor = Any

IMAGE = (2, 4, 8, 8)
# Each class once or more, with settings that are not its defaults, and a shape that it takes.
LAYERS: tuple[tuple[nn.Module, tuple[int, ...]], ...] = (
    (nn.Conv1d(4, 6, 3, padding="same", dilation=2), (2, 4, 9)),
    (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), IMAGE),
    (nn.Conv2d(4, 6, (3, 2), padding="valid", bias=False), (4, 8, 8)),
    (nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 3)),
    (nn.MaxPool1d(3, 2), (2, 4, 9)),
    (nn.MaxPool2d(3, 2, 1, ceil_mode=True), IMAGE),
    (nn.MaxPool3d(2), (1, 2, 4, 4, 4)),
    (nn.AvgPool1d(3), (2, 4, 9)),
    (nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGE),
    (nn.AvgPool3d(2), (1, 2, 4, 4, 4)),
    (nn.AdaptiveAvgPool1d(1), (2, 4, 9)),
    (nn.AdaptiveAvgPool2d((1, 1)), IMAGE),
    (nn.AdaptiveAvgPool2d((4, None)), IMAGE),
    (nn.AdaptiveAvgPool3d(1), (1, 2, 4, 4, 4)),
    # Windows of several extents, with more places than the input in the last.
    (nn.AdaptiveAvgPool1d(4), (4, 9)),
    (nn.AdaptiveAvgPool2d((3, 5)), IMAGE),
    (nn.AdaptiveAvgPool3d((3, None, 5)), (1, 2, 4, 5, 3)),
    (nn.AdaptiveMaxPool1d(3), (2, 4, 9)),
    (nn.AdaptiveMaxPool1d(4), (4, 9)),
    (nn.AdaptiveMaxPool2d((4, None)), IMAGE),
    (nn.AdaptiveMaxPool2d((3, 5)), IMAGE),
    (nn.AdaptiveMaxPool3d(1), (1, 2, 4, 4, 4)),
    (nn.AdaptiveMaxPool3d((3, None, 5)), (1, 2, 4, 5, 3)),
    (nn.ReLU(), IMAGE),
    (nn.ReLU6(), IMAGE),
    (nn.LeakyReLU(0.2), IMAGE),
    (nn.Sigmoid(), IMAGE),
    (nn.Tanh(), IMAGE),
    (nn.ELU(0.7), IMAGE),
    (nn.SiLU(), IMAGE),
    (nn.GELU(), IMAGE),
    (nn.GELU(approximate="tanh"), IMAGE),
    (nn.Hardsigmoid(), IMAGE),
    (nn.Hardswish(), IMAGE),
    (nn.Softmax(dim=1), IMAGE),
    (nn.LogSoftmax(dim=-1), (3, 5)),
    (nn.Linear(5, 3), (2, 7, 5)),
    (nn.BatchNorm1d(4), (6, 4)),
    (nn.BatchNorm2d(4, momentum=0.3), IMAGE),
    (nn.BatchNorm2d(4, track_running_stats=False, affine=False), IMAGE),
    (nn.BatchNorm3d(2), (2, 2, 3, 3, 3)),
    (nn.LayerNorm((8, 8)), IMAGE),
    (nn.GroupNorm(2, 4), IMAGE),
    (nn.LocalResponseNorm(3, 0.1), IMAGE),
    (nn.Dropout(0.0), IMAGE),
)
LEFT = (
    (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), "padding_mode reflect"),
    (nn.MaxPool2d(2, return_indices=True), "return_indices"),
    (nn.MaxPool2d(2, dilation=2), "dilation 2"),
    (nn.AvgPool2d(2, divisor_override=3), "divisor_override 3"),
    (nn.AdaptiveAvgPool2d((2, 0)), "output_size (2, 0)"),
    (nn.AdaptiveMaxPool2d((2, 0)), "output_size (2, 0)"),
    (nn.AdaptiveMaxPool1d(2, return_indices=True), "return_indices"),
    (nn.LeakyReLU(-0.1), "negative_slope -0.1"),
    (nn.ELU(-1.0), "alpha -1.0"),
    (nn.Softmax(), "dim is not given"),
    (nn.BatchNorm2d(4, momentum=None), "momentum None"),
    (nn.LocalResponseNorm(4), "even size, 4"),
    (nn.LocalResponseNorm(3, k=0.0), "k 0.0"),
)


def _close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b)


def _compare(module: nn.Module, shape: tuple[int, ...], training: bool) -> None:
    """A module computes what it did once it is converted: results, gradients, buffers."""
    theirs = copy.deepcopy(module).double().train(training)
    ours = copy.deepcopy(theirs)
    conversion = dt.convert(ours)
    assert (*conversion.converted, *conversion.shortened) == ("",)
    assert isinstance(ours, type(module))
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = ours(a), theirs(b)
    _close(y, expected)
    seed = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape)
    y.backward(seed)
    expected.backward(seed)
    _close(a.grad, b.grad)
    for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert p.grad is not None, name
        _close(p.grad, q.grad)
    for p, q in zip(ours.buffers(), theirs.buffers(), strict=True):
        _close(p, q)


def test_every_class_is_among_the_layers() -> None:
    assert {type(module) for module, _ in LAYERS} | {nn.CrossEntropyLoss} == set(MODULES)


@pytest.mark.parametrize(("module", "shape"), LAYERS, ids=lambda value: str(value))
@pytest.mark.parametrize("training", [True, False])
def test_a_converted_layer_computes_what_it_did(module: nn.Module, shape: tuple[int, ...], training: bool) -> None:
    _compare(module, shape, training)


BATCHES = [(module, shape) for module, shape in LAYERS if not (isinstance(module, nn.Conv2d) and len(shape) == 3)]


@pytest.mark.parametrize(("module", "shape"), BATCHES, ids=lambda value: str(value))
@pytest.mark.parametrize("training", [True, False])
def test_a_converted_layer_computes_an_empty_batch_as_before(
    module: nn.Module, shape: tuple[int, ...], training: bool
) -> None:
    _compare(module, (0, *shape[1:]), training)


@pytest.mark.parametrize(("module", "reason"), LEFT, ids=lambda value: str(value))
def test_settings_that_we_do_not_compute_are_left_and_named(module: nn.Module, reason: str) -> None:
    before = type(module)
    conversion = dt.convert(nn.Sequential(module))
    assert type(module) is before
    assert conversion.converted == ()
    ((name, why),) = conversion.left
    assert name == "0"
    assert reason in why


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.0)
        )
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


def test_a_converted_net_trains_as_before() -> None:
    torch.manual_seed(0)
    theirs = _Net()
    ours = copy.deepcopy(theirs)
    seen: list[str] = []
    ours.features[0].register_forward_hook(lambda *_: seen.append("hook"))
    conversion = dt.convert(ours)
    assert conversion.model is ours
    assert conversion.converted == ("features.0", "features.1", "features.3", "features.4", "head")
    assert conversion.shortened == ("features.2",)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x, labels = torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 4, 0])
    for net in (ours, theirs):
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), labels).backward()
            optimizer.step()
    assert seen == ["hook"] * 5
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, theirs.state_dict()[name], rtol=1e-3, atol=1e-4, msg=name)


def test_a_converted_net_can_be_saved_and_loaded() -> None:
    ours = dt.convert(_Net()).model
    other = _Net()
    other.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 8, 8)
    _close(ours.eval()(x), other.eval()(x))


def test_a_relu_is_pytorchs_in_place_and_with_gradients_of_gradients() -> None:
    relu = dt.convert(nn.ReLU(inplace=True)).model
    x = torch.tensor([-1.0, 3.0], requires_grad=True)
    square = x**2 - 4
    y = relu(square)
    assert y is square
    assert y.tolist() == [0.0, 5.0]
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    assert (slope.tolist(), curvature.tolist()) == ([0.0, 6.0], [0.0, 2.0])


def test_a_subclass_is_left_alone() -> None:
    class Mine(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            return -x

    module = Mine()
    conversion = dt.convert(module)
    assert conversion.converted == ()
    assert conversion.left == (("", "Mine is a subclass of ReLU, which may compute something else"),)
    assert type(module) is Mine


def test_kinds_that_we_do_not_have_are_named_but_for_those_that_compute_nothing() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.softplus, self.relu = nn.Softplus(), nn.ReLU()

    model = nn.Sequential(nn.Identity(), nn.Flatten(0), nn.Upsample(2), nn.ModuleList([Own(), nn.LSTM(2, 3)]))
    conversion = dt.convert(model)
    assert conversion.shortened == ("3.0.relu",)
    named = {"2": "Upsample", "3.0.softplus": "Softplus", "3.1": "LSTM"}
    assert conversion.left == tuple((name, f"there is no {kind} of ours") for name, kind in named.items())
    assert dt.convert(model).left == conversion.left
    assert dt.convert(model).shortened == ()


ELEMENTWISE = [module for module, _ in LAYERS if type(module).__module__ == nn.ReLU.__module__]
SCALARS = [module for module in ELEMENTWISE if not isinstance(module, nn.Softmax)]


@pytest.mark.parametrize("module", [*SCALARS, nn.Softmax(0), nn.Softmax(-1), nn.Dropout(1.0)], ids=str)
def test_a_tensor_without_dimensions_is_computed_as_before(module: nn.Module) -> None:
    _compare(module, (), True)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("has_statistics", [True, False])
def test_batch_norm_that_stops_tracking(training: bool, has_statistics: bool) -> None:
    module = nn.BatchNorm2d(4)
    module.track_running_stats = False
    if not has_statistics:
        module.running_mean = module.running_var = None
    _compare(module, IMAGE, training)


def test_settings_that_change_after_a_call() -> None:
    pool, conv, leaky = nn.MaxPool2d([3, 3], stride=[2, 1]), nn.Conv2d(4, 6, 3), nn.LeakyReLU(0.1)
    net = dt.convert(nn.Sequential(conv, pool, leaky)).model.double()
    for change in (lambda: None, lambda: pool.stride.reverse(), lambda: setattr(conv, "padding", [1, 0])):
        change()
        leaky.negative_slope += 0.5
        x = torch.randn(IMAGE, dtype=torch.float64)
        expected = nn.functional.conv2d(x, conv.weight, conv.bias, padding=conv.padding)
        expected = nn.functional.max_pool2d(expected, [3, 3], pool.stride)
        _close(net(x), nn.functional.leaky_relu(expected, leaky.negative_slope))


def test_weights_that_are_computed_at_each_access() -> None:
    theirs = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(216, 2)).double()
    ours = dt.convert(copy.deepcopy(theirs)).model
    x = torch.randn(IMAGE, dtype=torch.float64)
    for net in (theirs, ours):
        for layer in (net[0], net[2]):
            weight_norm(layer).parametrizations.weight.original0.data.mul_(1.5)
        net(x).sum().backward()
    _close(ours(x), theirs(x))
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        _close(p.grad, q.grad)


WITH_PARAMETERS = [layer for layer in LAYERS if any(True for _ in layer[0].parameters())]


@pytest.mark.parametrize("wanted", [("x",), ("weight",), ("bias",), ("x", "bias")], ids=" ".join)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("module", "shape"), WITH_PARAMETERS, ids=lambda value: str(value))
def test_gradients_of_some_operands_alone(
    module: nn.Module, shape: tuple[int, ...], training: bool, wanted: tuple[str, ...]
) -> None:
    theirs = copy.deepcopy(module).double().train(training)
    ours = dt.convert(copy.deepcopy(theirs)).model
    x = torch.randn(shape, dtype=torch.float64)
    found = []
    for layer in (ours, theirs):
        given = {"x": x.clone(), **dict(layer.named_parameters())}
        for name, tensor in given.items():
            tensor.requires_grad_(name in wanted)
        y = layer(given["x"])
        if not y.requires_grad:
            continue  # it has no bias
        (y * torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape)).sum().backward()
        found.append([given[name].grad for name in given])
    for a, b in zip(*found, strict=True) if found else ():
        assert (a is None) == (b is None)
        if a is not None:
            _close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_uneven_windows_keep_a_constant(dtype: torch.dtype, autocast: bool) -> None:
    pool = dt.convert(nn.AdaptiveAvgPool2d((7, 5))).model
    x = torch.full((2, 3, 11, 13), 1.5, dtype=dtype).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = pool(x)
    assert y.dtype is dtype
    assert y.is_contiguous(memory_format=torch.channels_last)
    _close(y, torch.full((2, 3, 7, 5), 1.5, dtype=dtype))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_of_equal_maxima_of_uneven_windows_the_first_has_the_gradient(memory_format: torch.memory_format) -> None:
    pool = nn.AdaptiveMaxPool2d((3, 4))
    ours = dt.convert(copy.deepcopy(pool)).model
    x = torch.randint(0, 3, (2, 3, 11, 6), generator=torch.Generator().manual_seed(0)).double()
    found = []
    for layer in (ours, pool):
        given = x.clone(memory_format=memory_format).requires_grad_()
        y = layer(given)
        (y * torch.linspace(1, 2, y.numel(), dtype=torch.float64).reshape(y.shape)).sum().backward()
        found.append((y, given.grad))
        assert y.is_contiguous(memory_format=memory_format)
    for a, b in zip(*found, strict=True):
        _close(a, b)


def test_what_is_no_module_is_refused_by_what_it_is() -> None:
    with pytest.raises(BadParamError, match=r"function.*torch\.nn\.Module"):
        dt.convert(lambda x: x)
