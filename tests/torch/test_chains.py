"""Layers in a row that are one operation forward and one backward: they train as they do one by one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

import dnncore.torch as dt
from dnncore.cuda.runtime import replays
from dnncore.descriptors import TensorDescriptor
from dnncore.handle import Handle
from dnncore.problems import (
    AddProblem,
    ConvolutionProblem,
    Direction,
    PoolingBackwardProblem,
    PoolingForwardProblem,
)
from dnncore.torch import bridge
from dnncore.torch.bridge import _describe
from dnncore.torch.dtypes import TORCH_DTYPES
from dnncore.torch.functions import chain
from dnncore.torch.functions.chain import Wiring, _Passing
from dnncore.torch.operation import Step, Way
from tests.conftest import CUDA_DEVICES
from tests.torch.chained import (
    BLOCKS,
    FORMATS,
    Bottleneck,
    Classifier,
    Headed,
    Tensor,
    calls,
    counted,
    example,
    gradients,
    pair,
)

LENGTHS = {
    "identity": [6],
    "projection": [8],
    "pooled": [5],
    "read-again": [5],
    "inverted": [8],
    "headed": [6],
    "averaged": [7],
}


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_chain_has_the_gradients_of_its_layers(name: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pair(BLOCKS[name])
    x = example(layout=layout)
    with counted(monkeypatch) as counts:
        found = gradients(ours, x)
    assert counts == LENGTHS[name]
    expected = gradients(theirs, x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert [each.stride() for each in found[:2]] == [each.stride() for each in expected[:2]]
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["identity", "projection"])
def test_gradients_of_some_are_those_of_all(name: str) -> None:
    """Whichever parameters are frozen, and whether x wants a gradient."""
    _, ours = pair(BLOCKS[name])
    names = [name for name, _ in ours.named_parameters()]
    x = example()
    everything = dict(zip(["x", *names], gradients(ours, x)[1:], strict=True))
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
        found = dict(zip(wanted, gradients(ours, x)[1:], strict=True))
        torch.testing.assert_close(found, {each: everything[each] for each in wanted})


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_chain_under_autocast_gives_what_its_layers_give_one_by_one(
    name: str, layout: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ours = pair(BLOCKS[name], torch.float32)
    x = example(dtype if name == "identity" else torch.float32, layout)  # what is added to is not cast
    with torch.autocast("cpu", dtype):
        with counted(monkeypatch) as counts:
            found = gradients(ours, x)
        assert counts == LENGTHS[name]
        monkeypatch.setattr("dnncore.torch.chains.wants_gradient", lambda *_: False)
        with counted(monkeypatch) as counts:
            expected = gradients(ours, x)
        assert not counts
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    assert torch.equal(found[0], expected[0])
    tolerance = 8 * torch.finfo(dtype).eps  # a sum of gradients is rounded once in place of twice
    for one, another in zip(found, expected, strict=True):
        torch.testing.assert_close(one, another, rtol=tolerance, atol=tolerance * float(another.detach().abs().max()))


class _Casts(TorchDispatchMode):
    """Counts PyTorch's own casts."""

    num_casts = 0

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_casts += function is torch.ops.aten._to_copy.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["projection", "headed"])
def test_a_chain_casts_its_only_input_itself(name: str) -> None:
    _, ours = pair(BLOCKS[name], torch.float32)
    x = example(torch.float32)
    with torch.autocast("cpu", torch.bfloat16), _Casts() as casts:
        found = gradients(ours, x)
    assert casts.num_casts == 0
    assert [each.dtype for each in found[:2]] == [torch.bfloat16, torch.float32]


@pytest.mark.usefixtures("nothing_seen")
@pytest.mark.parametrize("layout", FORMATS)
def test_every_way_of_the_layers_gives_the_same(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pair(BLOCKS["projection"], torch.float32)
    ours.to(memory_format=FORMATS["NCHW"])
    x = example(torch.float32, layout)
    expected = gradients(theirs, x)
    seen: set[int] = set()
    for number in range(4):

        def take(_handle: Handle, ways: Sequence[Way], number: int = number) -> Way:
            seen.add(len(ways))
            return ways[number % len(ways)]

        monkeypatch.setattr(bridge, "fastest_way", take)
        bridge._thread.seen.clear()
        bridge._thread.recent.clear()
        with torch.autocast("cpu", torch.float16):
            found = gradients(ours, x)
        for one, right in zip(found, expected, strict=True):
            torch.testing.assert_close(one.float(), right, rtol=0.05, atol=0.02 * float(right.detach().abs().max()))
    assert max(seen) == {"NCHW": 4, "NHWC": 2}[layout]


@pytest.mark.parametrize(("layout", "copies"), [("NCHW", 0), ("NHWC", 1)])
def test_rows_are_images_as_they_lie_and_averages_over_single_places_the_places(layout: str, copies: int) -> None:
    """No launch for either, forward or backward, but for the copy of what lies otherwise."""
    _, ours = pair(Headed)
    y = ours(example(layout=layout))
    record, _ = y.grad_fn.settings
    inputs, parameters = record.layers[0].given[:1], [_describe(each) for each in ours.parameters()]
    wiring = Wiring(1, tuple((number,) for number in range(6)))
    counts, settings = ((2, 0), *((0, 0),) * 3, (2, 0), (2, 0)), tuple(layer.settings for layer in record.layers)
    forward = chain._forward(wiring, counts, False, settings, (True,) * 7, *inputs, *parameters)
    way = forward.compose(lambda operation: operation.ways[0])
    assert sum(isinstance(step.problem, PoolingForwardProblem) for step in way.steps) == 1
    assert sum(map(_copies_images, way.steps)) == copies
    given = [_describe(tensor) for tensor in (y, *y.grad_fn.saved_tensors)]
    back = chain._backward(record, (True,) * 7, *given).compose(lambda operation: operation.ways[0])
    assert not any(isinstance(step.problem, PoolingBackwardProblem) for step in back.steps)
    assert sum(map(_copies_images, back.steps)) == copies


def _copies_images(step: Step) -> bool:
    """All of them: a bias that is written before a product has other extents."""
    problem = step.problem
    return isinstance(problem, AddProblem) and problem.inputs[0].shape == problem.outputs[0].shape == (3, 6, 4, 3)


@pytest.mark.parametrize("frozen", ["features", "classifier", "features.0.bias"])
def test_what_is_frozen_beside_a_flatten_has_no_gradient_and_changes_none(frozen: str) -> None:
    theirs, ours = pair(Headed)
    for net in (theirs, ours):
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(not name.startswith(frozen))
    for wants in (True, False):
        x = example().requires_grad_(wants)
        torch.testing.assert_close(gradients(ours, x), gradients(theirs, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(9, 7), (4, 5, 7), (7,)])
@pytest.mark.parametrize("autocasts", [False, True])
def test_a_classifier_drops_what_it_drops_layer_by_layer(
    shape: tuple[int, ...], autocasts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ours = pair(Classifier, torch.float32)
    plain = dt.convert(pair(Classifier, torch.float32)[0], fuse=False).model
    x = torch.linspace(-2, 3, torch.Size(shape).numel()).view(shape).requires_grad_()
    found = []
    for net, expected in ((ours, [5]), (plain, [])):
        torch.manual_seed(3)
        if autocasts:
            x = x.detach().bfloat16().requires_grad_()
        with counted(monkeypatch) as counts, torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
            found.append(gradients(net, x))
        assert counts == expected
    tolerance = {"rtol": 0.05, "atol": 0.02} if autocasts else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(*found, **tolerance)
    ours.layers[3].eval()
    assert calls(ours, x.detach().float().requires_grad_(), monkeypatch) == []


def test_a_gradient_with_several_readers_is_added_up_by_the_convolution_that_comes_last() -> None:
    """A launch and a pass over memory less than a sum of its own takes."""
    _, ours = pair(Bottleneck)
    y = ours(example())
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
@pytest.mark.parametrize(
    ("name", "layout", "is_replayed"),
    [
        *[("projection", "NCHW", False), ("projection", "NHWC", False), ("projection", "NHWC", True)],
        *[("headed", "NCHW", True), ("headed", "NHWC", False)],
    ],
)
def test_a_chain_of_kernels_gives_what_the_reference_gives(
    device: str, name: str, layout: str, is_replayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operation of a step, on memory of a CUDA device that holds what PyTorch's tensors do; launched, or replayed by a graph
    over what its launches have left.
    """
    monkeypatch.setattr(replays, "_SIGHTINGS", 1)
    monkeypatch.setattr(replays, "LEAST_LAUNCHES", 1)
    _, ours = pair(BLOCKS[name], torch.float32)
    x = example(torch.float16, layout)
    compared: list[str] = []
    with Handle(device) as handle:
        opened: Any = handle.device

        def operate(describe: Any, settings: Any, tensors: Sequence[Tensor], caller: int) -> list[Any]:
            way = bridge.chosen_way(handle, describe(*settings, *map(_describe, tensors)))
            held = [handle.upload(bridge._bytes(tensor.detach())) for tensor in tensors]
            made = [handle.tensor((max(each.nbytes, 1),), "uint8") for each in way.results]
            steps = bridge._wired(handle, way, tensors)
            enqueue = handle.wire(steps, None, way.scratch_bytes, lambda: not is_replayed)
            addresses = [each.address for each in (*held, *made)]
            enqueue(addresses)
            if is_replayed:
                for memory, tensor in zip((*held, *made), (*tensors, *[None] * len(made)), strict=True):
                    poison = np.full(memory.descriptor.shape, 0xFF, np.uint8)
                    memory.assign(poison if tensor is None else bridge._bytes(tensor.detach()))
                enqueue(addresses)
            assert len(opened._graphs) == (len(compared) + 1 if is_replayed else 0)
            results: list[Any] = []
            for each, memory in zip(way.results, made, strict=True):
                raw = torch.from_numpy(memory.numpy().copy()).view(TORCH_DTYPES[each.dtype])
                results.append(raw.as_strided(each.shape, each.strides))
            for tensor, memory in zip(tensors, held, strict=True):
                torch.from_numpy(bridge._bytes(tensor.detach())).copy_(torch.from_numpy(memory.numpy()))
            compared.append(describe.__name__)
            return [*results, *way.notes]

        with torch.autocast("cpu", torch.float16):
            expected = gradients(copy.deepcopy(ours), x)
            monkeypatch.setattr(chain, "operate", operate)
            found = gradients(ours, x)
    assert compared == ["_forward", "_backward"]
    for one, right in zip(found, expected, strict=True):
        assert (one.dtype, one.stride()) == (right.dtype, right.stride())
        torch.testing.assert_close(one, right, rtol=0.02, atol=0.01 * float(right.detach().abs().max()))
