"""What a call costs the host: nothing is described or planned twice, autograd is told only of what needs it. And what comes of it:
PyTorch's memory formats, and errors that name the reason.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import dnncore.torch as dt
from dnncore import descriptors, problems
from dnncore.choice import fastest
from dnncore.descriptors import ActivationDescriptor, ActivationMode
from dnncore.errors import BadParamError
from dnncore.handle import Handle
from dnncore.torch import bridge
from dnncore.torch.functions.gradients import Function
from dnncore.torch.operation import Step, Way
from tests.torch.test_convert import LAYERS

Tensor = Any
RELU = ActivationDescriptor(ActivationMode.RELU)
# Windows of several extents are put together of PyTorch's operations at each call, and those know of no form.
UNEVEN = (
    "AdaptiveAvgPool1d(output_size=4)",
    "AdaptiveAvgPool2d(output_size=(3, 5))",
    "AdaptiveAvgPool3d(output_size=(3, None, 5))",
)
PLANNED = [pytest.param(*layer, id=str(layer[0])) for layer in LAYERS if str(layer[0]) not in (*UNEVEN, "ReLU()")]


@dataclass
class Made:
    """Descriptors and problems that were made, and functions that autograd was told of, by their names."""

    values: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


@pytest.fixture
def made(nothing_seen: None, monkeypatch: pytest.MonkeyPatch) -> Made:
    found = Made()
    kinds = {getattr(module, name) for module in (descriptors, problems) for name in module.__all__}
    for kind in kinds:
        check = vars(kind).get("__post_init__") if isinstance(kind, type) else None
        if check is None:
            continue

        def count(self: object, check: Callable[[object], None] = check) -> None:
            found.values.append(type(self).__name__)
            check(self)

        monkeypatch.setattr(kind, "__post_init__", count)
    for function in Function.__subclasses__():

        def tell(*args: Any, name: str = function.__name__, apply: Callable[..., Any] = function.apply) -> Any:
            found.told.append(name)
            return apply(*args)

        monkeypatch.setattr(function, "apply", tell)
    return found


def _call(layer: nn.Module, shape: tuple[int, ...], gradient: bool) -> None:
    x = torch.randn(shape, requires_grad=gradient)
    with torch.set_grad_enabled(gradient):
        y = layer(x)
    if gradient:
        y.backward(torch.ones_like(y))


@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "gradient"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(("layer", "shape"), PLANNED)
def test_a_form_seen_before_is_neither_described_nor_planned_again(
    layer: nn.Module,
    shape: tuple[int, ...],
    training: bool,
    gradient: bool,
    made: Made,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The reference backend describes a fused convolution's parts at each launch, which is not what is asked here.
    monkeypatch.setattr(Handle, "wire", lambda *_: lambda _: None)
    ours = dt.convert(copy.deepcopy(layer).train(training)).model
    _call(ours, shape, gradient)
    assert bool(made.values) != (isinstance(layer, nn.Dropout) and not training)
    made.values.clear()
    _call(ours, shape, gradient)
    assert made.values == []


def test_a_loss_seen_before_is_not_described_again(made: Made) -> None:
    loss = dt.convert(nn.CrossEntropyLoss(label_smoothing=0.125, reduction="none")).model
    target = torch.tensor([[1, 0], [2, 1], [0, 2]])
    for _ in range(2):
        made.values.clear()
        loss(torch.randn(3, 3, 2, requires_grad=True), target).sum().backward()
    assert made.values == []


@pytest.mark.parametrize(("layer", "shape"), PLANNED)
def test_autograd_is_told_of_what_needs_a_gradient_and_of_nothing_else(
    layer: nn.Module, shape: tuple[int, ...], made: Made
) -> None:
    ours = dt.convert(copy.deepcopy(layer)).model
    for module, gradient in ((ours, False), (copy.deepcopy(ours).requires_grad_(False), True)):
        with torch.set_grad_enabled(gradient):
            y = module(torch.randn(shape))
        assert made.told == []
        assert not y.requires_grad
    assert ours(torch.randn(shape, requires_grad=True)).requires_grad
    assert len(made.told) == 1


def test_transforms_of_torch_func_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"do not run under transforms of torch\.func"):
        torch.func.grad(lambda x: dt.activation(x, RELU).sum())(torch.ones(3))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by PyTorch's own forward mode
def test_a_forward_derivative_is_refused() -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.ones(3), torch.ones(3))
        with pytest.raises(NotImplementedError, match="jvp"):
            dt.activation(x, RELU)


# Of a [4, 8, 6, 6]: each as PyTorch's users come by it.
FORMS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.randn(4, 8, 6, 6),
    "channels-last": lambda: torch.randn(4, 8, 6, 6).to(memory_format=torch.channels_last),
    "channels-sliced": lambda: torch.randn(4, 16, 6, 6)[:, ::2],
    "columns-sliced": lambda: torch.randn(4, 8, 6, 12)[..., ::2],
    "channels-last-sliced": lambda: torch.randn(4, 16, 6, 6).to(memory_format=torch.channels_last)[:, :8],
    "channels-expanded": lambda: torch.randn(4, 1, 6, 6).expand(4, 8, 6, 6),
    "batch-expanded": lambda: torch.randn(1, 8, 6, 6).expand(4, 8, 6, 6),
    # Whole numbers, so that the variance of a channel is 0 and not its rounding.
    "places-expanded": lambda: torch.randn(1, 8, 1, 1).mul(4).round().expand(4, 8, 6, 6),
    "channels-last-expanded": lambda: torch.randn(1, 8, 6, 6).to(memory_format=torch.channels_last).expand(4, 8, 6, 6),
    "transposed": lambda: torch.randn(4, 8, 6, 6).transpose(2, 3),
    "batch-last": lambda: torch.randn(8, 6, 6, 4).permute(3, 0, 1, 2),
    "one-channel": lambda: torch.randn(4, 1, 6, 6).to(memory_format=torch.channels_last),
    "one-place": lambda: torch.randn(4, 8, 1, 1),
    "one-place-channels-last": lambda: torch.randn(4, 8, 1, 1).to(memory_format=torch.channels_last),
    "one-image": lambda: torch.randn(1, 8, 6, 6).to(memory_format=torch.channels_last),
}


def layers_for(x: Tensor) -> tuple[nn.Module, ...]:
    """One of each kind that takes such a tensor."""
    channels = x.shape[1]
    return (
        nn.Conv2d(channels, 5, 1),
        nn.Conv2d(channels, 5, 3, padding=1, bias=False).to(memory_format=torch.channels_last),
        nn.MaxPool2d(1),
        nn.AvgPool2d(1),
        nn.AdaptiveAvgPool2d(1),
        nn.AdaptiveAvgPool2d((3, 2)),
        nn.AdaptiveAvgPool2d((4, 3)),
        nn.AdaptiveMaxPool2d((3, 2)),
        nn.AdaptiveMaxPool2d((4, 3)),
        nn.ReLU(),
        nn.GELU(),
        nn.Softmax(1),
        nn.LogSoftmax(-1),
        nn.Linear(x.shape[-1], 3),
        nn.BatchNorm2d(channels),
        nn.BatchNorm2d(channels).eval(),
        nn.LayerNorm(x.shape[2:]),
        nn.GroupNorm(1, channels),
        nn.LocalResponseNorm(3),
        nn.Dropout(1.0),
    )


def steps(tensor: Tensor) -> list[int]:
    """Strides of the dimensions that have one to speak of."""
    return [stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True) if extent > 1]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "gradient"])
def test_results_have_the_memory_format_of_pytorchs(form: str, gradient: bool) -> None:
    x = FORMS[form]()
    for layer in layers_for(x):
        ours = dt.convert(copy.deepcopy(layer)).model
        with torch.set_grad_enabled(gradient):
            y, expected = ours(x), layer(x)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4, msg=lambda text, of=layer: f"{of}: {text}")
        assert steps(y) == steps(expected), str(layer)


@pytest.mark.parametrize("layer", [nn.Softmax, nn.LogSoftmax])
@pytest.mark.parametrize(("shape", "dim"), [((), 1), ((), -2), ((3,), 1), ((2, 3), 2), ((2, 3), -3)], ids=str)
def test_a_dimension_that_is_not_there_is_refused_in_pytorchs_words(
    layer: type[nn.Module], shape: tuple[int, ...], dim: int
) -> None:
    theirs = layer(dim=dim)
    ours = dt.convert(layer(dim=dim)).model
    for x in (torch.ones(shape), torch.ones(shape, requires_grad=True)):
        said: list[str] = []
        for one in (theirs, ours):
            with pytest.raises(IndexError) as error:
                one(x)
            said.append(str(error.value))
        assert said[0] == said[1]


def test_tensors_of_two_devices_are_refused() -> None:
    x, w = torch.randn(2, 3, 7, 5), torch.randn(4, 3, 3, 3)
    for tensors in ((x, w.to("meta")), (x, w, torch.ones(4, device="meta"))):
        with pytest.raises(BadParamError, match="tensors are on meta and on cpu; all must be on one device"):
            dt.convolution(*tensors)
    with pytest.raises(BadParamError, match="tensors on meta are not supported"):
        dt.convolution(x.to("meta"), w)


@pytest.mark.usefixtures("nothing_seen")
def test_the_oldest_form_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "_MOST_OPERATIONS", 2)
    seen = []
    for extent in (1, 2, 3, 1):
        x = torch.linspace(-1, 1, extent)
        assert torch.equal(dt.activation(x, RELU), x.relu())
        seen.append([key[3][1] for key in bridge._thread.seen])
    assert seen == [[(1,)], [(1,), (2,)], [(2,), (3,)], [(3,), (1,)]]


class _Estimates:
    """A handle that knows what each problem takes; None is one that nothing solves."""

    def __init__(self, seconds: dict[Any, float | None]) -> None:
        self.seconds = seconds

    def estimated_seconds(self, problem: Any) -> float:
        seconds = self.seconds[problem]
        return math.inf if seconds is None else seconds


def test_the_fastest_way_that_can_be_computed_is_taken() -> None:
    handle: Any = _Estimates({"a": 2.0, "b": 3.0, "fused": 4.0, "impossible": None})
    problems: tuple[tuple[Any, ...], ...] = (("a", "b"), ("fused",), ("impossible",), ("a", "impossible"))
    ways = tuple(Way((), tuple(Step(problem, (0, 1)) for problem in way)) for way in problems)
    assert bridge.fastest_way(handle, ways) == ways[1]


@pytest.mark.usefixtures("nothing_seen")
def test_each_problem_of_an_operation_is_chosen_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge._thread, "opened", {})
    chosen: Counter[Any] = Counter()

    def choose(algorithms: Any, problem: Any, *others: Any) -> Any:
        chosen[problem] += 1
        return fastest(algorithms, problem, *others)

    monkeypatch.setattr("dnncore.plan.fastest", choose)
    monkeypatch.setattr("dnncore.planner.rank", None)
    x, w, b = torch.randn(2, 3, 9, 7), torch.randn(4, 3, 3, 3), torch.randn(4)
    assert torch.allclose(dt.convolution(x, w, b), nn.functional.conv2d(x, w, b), atol=1e-4)
    for door in bridge._thread.opened.values():
        door.abandon()
    assert len(chosen) > 1
    assert set(chosen.values()) == {1}


def test_an_in_place_activation_overwrites_its_argument_where_no_gradient_is_wanted() -> None:
    relu6 = dt.convert(nn.ReLU6(inplace=True)).model
    x = torch.tensor([-1.0, 2.0])
    with torch.no_grad():
        assert relu6(x) is x
    assert x.tolist() == [0.0, 2.0]
    wanted = torch.tensor([-1.0, 2.0], requires_grad=True)
    assert relu6(wanted).tolist() == [0.0, 2.0]
    assert wanted.tolist() == [-1.0, 2.0]


def test_an_activation_keeps_for_its_gradient_only_what_tells_the_slope() -> None:
    x = torch.linspace(-2, 2, 9, dtype=torch.float16, requires_grad=True)
    # 1.3 is rounded down in 16 bits: there a result at the ceiling seems to lie below it.
    for mode, coefficient, kept in (
        ("tanh", 0.0, 1),
        ("clipped_relu", 1.5, 1),
        ("clipped_relu", 1.3, 2),
        ("elu", 1.0, 2),
    ):
        y = dt.activation(x, ActivationDescriptor.make(mode, coefficient))
        assert len(y.grad_fn.saved_tensors) == kept
        if mode == "clipped_relu":
            (dx,) = torch.autograd.grad(y.sum(), x)
            assert dx.tolist() == [0.0 < value < coefficient for value in x.tolist()]


def _both(layer: nn.Module) -> tuple[nn.Module, nn.Module]:
    return dt.convert(copy.deepcopy(layer)).model, layer


def _checked(ours: nn.Module, theirs: nn.Module, x: Tensor) -> None:
    """Compare a call, and its gradients where x wants one."""
    found = []
    for layer in (ours, theirs):
        given = x.detach().requires_grad_(x.requires_grad)
        y = layer(given)
        gradients: tuple[Tensor, ...] = ()
        if y.requires_grad:
            wanted = [each for each in (given, *layer.parameters()) if each.requires_grad]
            gradients = torch.autograd.grad(y, wanted, torch.linspace(-1, 1, y.numel()).to(y.dtype).reshape(y.shape))
        found.append((y, *gradients))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


LAST = {
    "convolution": nn.Conv2d(4, 4, 3, padding=1, bias=False),
    "convolution-bias": nn.Conv2d(4, 4, 3, padding=1),
    "batch-norm": nn.BatchNorm2d(4),
    "batch-norm-eval": nn.BatchNorm2d(4).eval(),
    "batch-norm-plain": nn.BatchNorm2d(4, affine=False),
    "linear": nn.Linear(6, 4),
    "max-pool": nn.MaxPool2d(2),
    "average-pool": nn.AvgPool2d(2),
}


def _forms_in_turn() -> dict[str, Tensor]:
    x = torch.randn(2, 4, 6, 6)
    return {
        "plain": x,
        "wanted": x.clone().requires_grad_(),
        "larger": torch.randn(3, 4, 6, 6),
        "channels-last": x.to(memory_format=torch.channels_last),
        "channels-last-wanted": x.to(memory_format=torch.channels_last).clone().requires_grad_(),
        "sliced": torch.randn(2, 4, 6, 12)[..., ::2],
    }


@pytest.mark.usefixtures("nothing_seen")
@pytest.mark.parametrize("compares", [True, False], ids=["", "without-comparisons"])
@pytest.mark.parametrize("layer", LAST.values(), ids=LAST)
def test_a_layer_takes_other_forms_after_one_that_it_had_often(
    layer: nn.Module, compares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compares:
        monkeypatch.setattr(bridge, "_TensorGuards", None)
    ours, theirs = _both(layer)
    forms = list(_forms_in_turn().values())
    for x in (*(each for form in forms for each in [form] * 4), *forms, *forms):
        _checked(ours, theirs, x)


@pytest.mark.usefixtures("nothing_seen")
def test_a_layer_is_computed_as_it_is_now_however_often_it_was_called_before() -> None:
    ours, theirs = _both(nn.Conv2d(4, 4, 3, padding=1))
    x = torch.randn(2, 4, 6, 6)
    changes: tuple[Callable[[nn.Module], object], ...] = (
        lambda layer: setattr(layer, "stride", (2, 1)),
        lambda layer: layer.weight.data.mul_(2),
        lambda layer: layer.to(memory_format=torch.channels_last),
        lambda layer: setattr(layer.weight, "data", layer.weight.data.clone().contiguous()),
        lambda layer: layer.requires_grad_(False),
        lambda layer: layer.double(),
        lambda layer: layer.register_parameter("bias", None),
    )
    for change in changes:
        for _ in range(4):
            _checked(ours, theirs, x.to(theirs.weight.dtype))
        for layer in (ours, theirs):
            change(layer)
    _checked(ours, theirs, x.double())


def test_what_was_saved_for_a_gradient_is_read_as_it_comes_back() -> None:
    """As `save_on_cpu` gives tensors back: without the strides that they had."""
    ours, theirs = _both(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last))
    x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    for _ in range(4):
        _checked(ours, theirs, x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.contiguous()):
        for _ in range(4):
            _checked(ours, theirs, x)


@pytest.mark.usefixtures("nothing_seen")
def test_a_form_is_known_by_a_comparison_from_the_second_call_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[int] = []
    planned = bridge._planned

    def look_up(*arguments: Any) -> Any:
        keys.append(len(keys))
        return planned(*arguments)

    monkeypatch.setattr(bridge, "_planned", look_up)
    pool = dt.convert(nn.MaxPool2d(2)).model
    small, large = torch.randn(1, 2, 4, 4), torch.randn(1, 2, 6, 6)
    calls = [(small, 1), (small, 2), (small, 2), (small, 2), (large, 3), (small, 4), (large, 5), (large, 6), (large, 6)]
    for x, looked_up in calls:
        assert torch.equal(pool(x), nn.functional.max_pool2d(x, 2))
        assert len(keys) == looked_up


def test_a_caller_on_another_stream_is_not_taken_for_the_one_before(
    nothing_seen: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a stand-in for a CUDA device: the stream is part of what is launched."""
    stream = 5
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: 0)
    monkeypatch.setattr(bridge, "_current_stream", lambda _: stream)
    monkeypatch.setattr(bridge._Thread, "prepare", _prepared)
    x = torch.ones(3)
    for stream in (5, 5, 5, 5, 6, 6, 6, 5, 6):
        assert bridge.operate(_nothing, (), (x,), 1) == (stream,)


def _nothing() -> Any:
    raise AssertionError("nothing is planned here")


def _prepared(self: Any, key: tuple[Any, ...], place: tuple[int, int | None], *_: Any) -> Any:
    run = self.seen[key] = lambda _: (place[1],)
    return run


def test_autograd_calls_a_backward_itself() -> None:
    x = torch.ones(3, requires_grad=True)
    y = dt.activation(x, RELU)
    node: Any = type(y.grad_fn)
    assert node.apply is node._forward_cls.backward
    with torch.no_grad():
        assert torch.equal(y.grad_fn.apply(torch.full((3,), 2.0))[0], torch.full((3,), 2.0))
