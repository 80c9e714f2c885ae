"""dnncore.torch on a GPU: gradients, cuDNN as the judge, PyTorch's streams and autograd threads."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dnncore.torch as dt
from dnncore.descriptors import ConvolutionDescriptor
from dnncore.errors import BadParamError
from tests.torch import chained
from tests.torch.test_calls import FORMS, layers_for, steps
from tests.torch.test_convert import BATCHES, LAYERS
from tests.torch.test_gradients import FUNCTIONS

Tensor = Any
_CUDA = torch.device("cuda:0")

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def _exact() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def _inputs(shapes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(s, dtype=torch.float64, generator=generator).to(_CUDA).requires_grad_() for s in shapes]


# What closes over tensors of the CPU is left out.
ON_CUDA = [pytest.param(*f[1:], id=f[0]) for f in FUNCTIONS if f[0] not in ("batch-norm-inference", "cross-entropy")]


@pytest.mark.parametrize(("ours", "_theirs", "shapes"), ON_CUDA)
def test_gradcheck(ours: Callable[..., Tensor], _theirs: object, shapes: tuple[tuple[int, ...], ...]) -> None:
    assert torch.autograd.gradcheck(ours, _inputs(shapes))


@pytest.mark.parametrize(("ours", "theirs", "shapes"), ON_CUDA)
def test_values_and_gradients_are_those_of_pytorch(
    ours: Callable[..., Tensor], theirs: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...]
) -> None:
    inputs = _inputs(shapes)
    mine, yours = ours(*inputs), theirs(*inputs)
    torch.testing.assert_close(mine, yours)
    seed = torch.linspace(-1, 1, mine.numel(), dtype=torch.float64, device=_CUDA).reshape(mine.shape)
    for a, b in zip(torch.autograd.grad(mine, inputs, seed), torch.autograd.grad(yours, inputs, seed), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("layout", chained.FORMATS)
@pytest.mark.parametrize("name", chained.BLOCKS)
def test_a_chain_has_the_gradients_of_its_layers(name: str, layout: str) -> None:
    nets = [net.cuda() for net in chained.pair(chained.BLOCKS[name])]
    x = chained.example(layout=layout).detach().cuda().requires_grad_()
    found = []
    for net in nets:
        y = net(x)
        seed = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=_CUDA).view(y.shape)
        found.append([y, *torch.autograd.grad(y, [x, *net.parameters()], seed)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("layout", chained.FORMATS)
def test_a_chain_under_autocast_gives_what_its_layers_give_one_by_one(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on another stream, and with a backward that begins on it."""
    _, ours = chained.pair(lambda: nn.Sequential(*(chained.Bottleneck() for _ in range(2))), torch.float32)
    ours.cuda()
    x = chained.example(torch.float16, layout).detach().cuda().requires_grad_()
    found = []
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.autocast("cuda", torch.float16):
        for together in (True, False):
            if not together:
                monkeypatch.setattr("dnncore.torch.chains.wants_gradient", lambda *_: False)
            y = ours(x)
            assert (type(y.grad_fn).__name__ == "ChainBackward") is together
            found.append([y, *torch.autograd.grad(y, [x, *ours.parameters()], torch.cos(y.detach()))])
    stream.synchronize()
    assert torch.equal(found[0][0], found[1][0])
    for one, another in zip(*found, strict=True):
        torch.testing.assert_close(one, another, rtol=5e-3, atol=5e-3 * float(another.detach().abs().max()))


def _residual_net() -> nn.Module:
    """Layers whose launches want scratch memory at batch 1, 3x3 convolutions of few places and batch normalisation among them."""
    torch.manual_seed(3)
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)),
        *(nn.Conv2d(64, 256, 3, 2, 1), nn.ReLU(), nn.Conv2d(256, 256, 3, padding=1), nn.Dropout(0.0)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)),
    ).cuda()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_graph_of_a_converted_net_has_scratch_memory_of_its_own(dtype: torch.dtype) -> None:
    net = dt.convert(_residual_net()).model.eval().to(dtype)
    first, second, large = (torch.randn(n, 3, 64, 64, device=_CUDA, dtype=dtype) for n in (1, 1, 16))
    with torch.no_grad():
        expected, of_large = [net(x) for x in (first, second)], net(large)
        stream, graph, x = torch.cuda.Stream(), torch.cuda.CUDAGraph(), first.clone()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            net(x)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, stream=stream):
            y = net(x)
        with torch.cuda.stream(stream):
            torch.testing.assert_close(
                net(large), of_large
            )  # a larger block takes the place of the one that the stream had
        for given, wanted in zip((second, first, second), (expected[1], expected[0], expected[1]), strict=True):
            x.copy_(given)
            graph.replay()
            torch.testing.assert_close(y, wanted)


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "autocast"])
@pytest.mark.parametrize("fuse", [False, True], ids=["converted", "fused"])
def test_a_captured_training_step_is_that_of_the_net(autocast: bool, fuse: bool) -> None:
    nets = [dt.convert(_residual_net(), fuse=fuse).model.train() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    example = torch.randn(4, 3, 64, 64, device=_CUDA)
    gc.collect()  # graphs of nets that are gone: to destroy one while another is captured ends the capture
    with torch.autocast("cuda", torch.float16, enabled=autocast, cache_enabled=False):
        captured = torch.cuda.make_graphed_callables(nets[1], (example,))
    nets[1].load_state_dict(nets[0].state_dict())  # warming up has moved the running statistics
    optimizers = [torch.optim.SGD(net.parameters(), 0.1, momentum=0.9) for net in nets]
    for _ in range(3):
        x, losses = torch.randn_like(example), []
        for run, optimizer in zip((nets[0], captured), optimizers, strict=True):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16, enabled=autocast, cache_enabled=False):
                losses.append(run(x).float().square().mean())
            losses[-1].backward()
            optimizer.step()
        torch.testing.assert_close(losses[1], losses[0])
    for name, value in nets[0].state_dict().items():
        torch.testing.assert_close(nets[1].state_dict()[name], value, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("module", "shape"), LAYERS, ids=lambda value: str(value))
def test_a_converted_layer_agrees_with_cudnn(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    theirs = copy.deepcopy(module).to(_CUDA)
    ours = dt.convert(copy.deepcopy(theirs)).model
    if not isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.LayerNorm | nn.GroupNorm):
        theirs, ours = theirs.to(dtype), ours.to(dtype)  # the parameters of these stay in float32
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(_CUDA, dtype)
    a, b = x.clone().requires_grad_(), x.clone().float().requires_grad_()
    y, expected = ours(a), theirs.float()(b)
    tolerance = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(y.float(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    seed = torch.linspace(-1, 1, y.numel(), device=_CUDA).reshape(y.shape).to(dtype)
    y.backward(seed)
    expected.backward(seed.float())
    torch.testing.assert_close(a.grad.float(), b.grad, rtol=tolerance, atol=2 * tolerance * float(b.grad.abs().max()))


@pytest.mark.parametrize(
    "form", ["contiguous", "channels-last", "channels-sliced", "channels-last-sliced", "one-image"]
)
def test_results_have_the_memory_format_of_pytorchs(form: str) -> None:
    x = FORMS[form]()
    for layer in layers_for(x):
        theirs = layer.to(_CUDA)
        ours = dt.convert(copy.deepcopy(theirs)).model
        placed = torch.empty_strided(x.shape, x.stride(), device=_CUDA).copy_(x)
        y, expected = ours(placed), theirs(placed)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4, msg=lambda text, of=layer: f"{of}: {text}")
        # PyTorch's group norm keeps channels last on the CPU and not on CUDA; ours keeps them on both.
        likewise = torch.empty_like(placed) if isinstance(layer, nn.GroupNorm) else expected
        assert steps(y) == steps(likewise), str(layer)


@pytest.mark.parametrize(("module", "shape"), BATCHES, ids=lambda value: str(value))
def test_an_empty_batch(module: nn.Module, shape: tuple[int, ...]) -> None:
    theirs = copy.deepcopy(module).to(_CUDA)
    ours = dt.convert(copy.deepcopy(theirs)).model
    found = []
    for net in (ours, theirs):
        x = torch.empty(0, *shape[1:], device=_CUDA, requires_grad=True)
        y = net(x)
        y.sum().backward()
        found.append([y, x.grad, *(p.grad for p in net.parameters()), *net.buffers()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_weighted_loss(reduction: str, soft: bool) -> None:
    weight = torch.tensor([0.5, 2.0, 0.0, 1.5, 1.0], device=_CUDA)
    theirs = nn.CrossEntropyLoss(weight, reduction=reduction, label_smoothing=0.1)
    ours = dt.convert(copy.deepcopy(theirs)).model
    x = torch.randn(7, 5, 3, device=_CUDA)
    target = torch.randn(7, 5, 3, device=_CUDA).softmax(1) if soft else torch.randint(5, (7, 3), device=_CUDA)
    given = [(x.clone().requires_grad_(), target.clone().requires_grad_(soft)) for _ in range(2)]
    for module, (a, b) in zip((ours, theirs), given, strict=True):
        module(a, b).sum().backward()
    torch.testing.assert_close(ours(x, target), theirs(x, target))
    for mine, yours in zip(*given, strict=True):
        torch.testing.assert_close(mine.grad, yours.grad)


def test_tensors_of_two_devices_are_refused_also_in_a_form_seen_before() -> None:
    x, w = torch.randn(2, 3, 7, 5), torch.randn(4, 3, 3, 3)
    dt.convolution(x, w)
    dt.convolution(x.to(_CUDA), w.to(_CUDA))
    for given in ((x.to(_CUDA), w), (x, w.to(_CUDA))):
        with pytest.raises(BadParamError, match="all must be on one device"):
            dt.convolution(*given)


def test_work_is_in_order_on_whichever_stream_is_current() -> None:
    x, w = torch.randn(8, 16, 64, 64, device=_CUDA), torch.randn(32, 16, 3, 3, device=_CUDA)
    expected = nn.functional.conv2d(x * 3, w).relu()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Each temporary is freed, and its memory used again, while our work on it may still be waiting.
        results = [dt.convolution(x * 3, w).relu().clone() for _ in range(20)]
    torch.cuda.current_stream().wait_stream(stream)
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_layers_run_where_their_tensors_are_whichever_device_is_current() -> None:
    second = torch.device("cuda:1")
    net = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    ours, theirs = (copy.deepcopy(net).to(second) for _ in range(2))
    ours = dt.convert(ours).model
    for current in (0, 1, 0):
        torch.cuda.set_device(current)
        x = torch.randn(2, 4, 6, 6, device=second)
        mine, yours = x.clone().requires_grad_(), x.clone().requires_grad_()
        for model, given in ((ours, mine), (theirs, yours)):
            model(given).square().sum().backward()
        assert mine.grad.device == second
        torch.testing.assert_close(mine.grad, yours.grad, rtol=1e-3, atol=1e-4)
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream(second)):
            y = ours.eval()(x)
            expected = theirs.eval()(x)
            torch.cuda.current_stream(second).synchronize()
        assert y.device == second
        torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-4)
        ours.train(), theirs.train()
        assert torch.cuda.current_device() == current


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("module", [nn.BatchNorm2d(9), nn.LayerNorm(7), nn.GroupNorm(3, 9)], ids=str)
def test_a_normalisation_after_half_is_one_launch_and_agrees_with_pytorch(module: nn.Module, training: bool) -> None:
    theirs = copy.deepcopy(module).to(_CUDA).half().train(training)
    ours = dt.convert(copy.deepcopy(theirs)).model
    x = torch.randn(4, 9, 5, 7, device=_CUDA).half()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=4e-3, atol=4e-3)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            ours(x)
            torch.cuda.synchronize()
    kernels = [event.key for event in profile.key_averages() if event.self_device_time_total > 0]
    counter = ["batches"] if training and isinstance(module, nn.BatchNorm2d) else []
    assert len(kernels) == 1 + len(counter), kernels


def test_threads_have_handles_of_their_own() -> None:
    x, w = torch.randn(4, 8, 16, 16, device=_CUDA), torch.randn(8, 8, 3, 3, device=_CUDA)
    expected = nn.functional.conv2d(x, w)
    failures: list[Exception] = []

    def work() -> None:
        try:
            a = x.clone().requires_grad_()
            for _ in range(10):
                y = dt.convolution(a, w)
                torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
                y.sum().backward()
        except Exception as error:  # noqa: BLE001 (told to the test, in its own thread)
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@pytest.mark.xdist_group("large")
def test_a_tensor_beyond_32_bit_offsets() -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < 30 << 30:
        pytest.fail(f"{free >> 30} GiB are free; this needs 30")
    x = torch.randn(2, 70, 4096, 4096, device=_CUDA)  # 2.3e9 elements, 9.4 GB
    w = torch.randn(2, 70, 3, 3, device=_CUDA)
    ours = dt.convolution(x, w, None, ConvolutionDescriptor.make(padding=1))
    theirs = torch.cat([nn.functional.conv2d(image[None], w, padding=1) for image in x])
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-3)
