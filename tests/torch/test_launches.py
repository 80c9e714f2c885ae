"""Of how many launches layers consist under autocast on an H200; and that every way to compute one gives the same."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import dnncore.torch as dt
from benchmarks.launches import count_launches, tally_step
from dnncore.cuda.absent import AbsentDevice
from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.figures import H200
from dnncore.handle import Handle
from dnncore.torch import bridge
from dnncore.torch.functions import convolution, draft, linear
from dnncore.torch.operation import Operation, Way

Tensor = Any
FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
WIDE = torch.float32


def _launches(operation: Operation) -> tuple[int, Way]:
    with Handle(AbsentDevice(H200)) as handle:
        way = bridge.fastest_way(handle, operation.ways)
        return sum(count_launches(handle.plan(step.problem).work) for step in way.steps), way


# Channels of x, filters, their extent, whether there is a bias, layout; launches forward and backward.
#   forward: w is cast, to channels innermost where they are to be; x relaid; the product; y relaid
#   backward: dy relaid for both gradients; the product, dx relaid; x relaid, the product, its parts added up in float32, or in 16
#   bits, and dw relaid and cast; and the sums of dy, of which there may be parts
@pytest.mark.parametrize(
    ("channels", "filters", "extent", "bias", "layout", "forward", "backward"),
    [
        (128, 128, 3, False, "NCHW", 4, 7),
        (128, 128, 3, True, "NCHW", 4, 8),
        (128, 128, 3, False, "NHWC", 2, 3),
        (128, 128, 3, True, "NHWC", 2, 5),
        (128, 512, 1, False, "NCHW", 2, 3),
        (128, 512, 1, False, "NHWC", 2, 3),
    ],
)
def test_a_convolution_under_autocast_takes_so_many_launches(
    channels: int, filters: int, extent: int, bias: bool, layout: str, forward: int, backward: int
) -> None:
    """Fewer are welcome: then these numbers are to be changed. More cost the host what it has not got."""
    x, y = (TensorDescriptor.packed((64, extents, 28, 28), "float16", layout) for extents in (channels, filters))
    w = TensorDescriptor.packed((filters, channels, extent, extent), "float32", layout)
    given = (x, w, TensorDescriptor.packed((filters,), "float32")) if bias else (x, w)
    conv = ConvolutionDescriptor.make(padding=extent // 2)
    found, way = _launches(convolution._forward(conv, True, False, *given))
    assert found == forward
    assert way.results[0] == y
    wanted = (True, True, False, True) if bias else (True, True, False)
    found, way = _launches(convolution._backward(conv, (WIDE, WIDE, w.strides), wanted, x, way.results[1], y))
    assert found == backward
    assert way.results == (x, w, *given[2:])


def test_a_linear_layer_under_autocast_takes_so_many_launches() -> None:
    x, w, bias = (TensorDescriptor.packed(*form) for form in (((64, 1024), "float16"), ((512, 1024),), ((512,),)))
    found, way = _launches(linear._forward(True, False, x, w, bias))
    assert found == 2  # w cast, and the product with the bias
    dy, saved = way.results
    found, way = _launches(linear._backward((WIDE, WIDE), (True, True, False, True), x, saved, dy))
    assert found == 3  # dx, dw as it is wanted, and db
    assert way.results == (x, w, bias)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_a_relu_takes_no_launch_forward_and_one_backward(bias: bool, layout: str) -> None:
    """In front of the gradients, which all read what it leaves."""
    x = TensorDescriptor.packed((64, 128, 28, 28), "float16", layout)
    w = TensorDescriptor.packed((128, 128, 3, 3), "float32", layout)
    given = (x, w, TensorDescriptor.packed((128,), "float32")) if bias else (x, w)
    conv, wanted = ConvolutionDescriptor.make(padding=1), (True, True, False, True) if bias else (True, True, False)
    found = [_launches(convolution._forward(conv, True, relu, *given)) for relu in (False, True)]
    assert found[1][0] == found[0][0]
    assert found[1][1].results == found[0][1].results
    y, saved = found[1][1].results
    settings = conv, (WIDE, WIDE, w.strides), wanted, x, saved, y
    plain, fused = (_launches(convolution._backward(*settings, *of_relu))[0] for of_relu in ((), (y,)))
    assert fused == plain + 1
    rows, matrix, row = (TensorDescriptor.packed(*form) for form in (((64, 256), "float16"), ((512, 256),), ((512,),)))
    given = (rows, matrix, row) if bias else (rows, matrix)
    found = [_launches(linear._forward(True, relu, *given)) for relu in (False, True)]
    assert found[1][0] == found[0][0]
    y, saved = found[1][1].results
    plain, fused = (
        _launches(linear._backward((WIDE, WIDE), wanted, rows, saved, y, *of_relu))[0] for of_relu in ((), (y,))
    )
    assert fused == plain + 1


@pytest.mark.usefixtures("nothing_seen")
@pytest.mark.parametrize("large", [False, True], ids=["scratch", "allocated"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("of_x", "of_w"), [("NCHW", "NCHW"), ("NHWC", "NCHW"), ("NHWC", "NHWC")])
def test_every_way_to_compute_a_convolution_under_autocast_gives_the_same(
    of_x: str, of_w: str, bias: bool, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(draft, "_MOST_SCRATCH_BYTES", 0)
    theirs = nn.Conv2d(4, 6, 3, padding=1, bias=bias).to(memory_format=FORMATS[of_w])
    x = torch.randn(3, 4, 5, 7).half().to(memory_format=FORMATS[of_x]).requires_grad_()
    dy = torch.randn(3, 6, 5, 7).half()
    with torch.autocast("cpu", torch.float16):
        expected = theirs(x)
    expected.backward(dy)
    right = [x.grad, *(parameter.grad for parameter in theirs.parameters())]
    numbers: set[tuple[int, int]] = set()
    for number in range(8):

        def take(_handle: Handle, ways: Sequence[Way], number: int = number) -> Way:
            numbers.add((len(ways), number % len(ways)))
            return ways[number % len(ways)]

        monkeypatch.setattr(bridge, "fastest_way", take)
        bridge._thread.seen.clear()
        bridge._thread.recent.clear()
        ours, x.grad = dt.convert(copy.deepcopy(theirs)).model, None
        ours.zero_grad()
        with torch.autocast("cpu", torch.float16):
            y = ours(x)
        assert y.stride() == expected.stride()
        torch.testing.assert_close(y, expected, rtol=4e-3, atol=4e-3)
        y.backward(dy)
        for found, gradient in zip((x.grad, *(p.grad for p in ours.parameters())), right, strict=True):
            assert found.dtype is gradient.dtype
            assert found.stride() == gradient.stride()
            torch.testing.assert_close(found, gradient, rtol=1e-2, atol=2e-2)
    of_forward, of_backward = (1 + (of_w == "NCHW")) * (1 + bias), 4
    assert {most for most, _ in numbers} == {of_forward, of_backward}


@pytest.mark.parametrize("layout", FORMATS)
def test_a_step_is_counted_without_a_device(layout: str) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 64, 8, 8, bias=False), nn.BatchNorm2d(64), nn.Flatten(), nn.Linear(64 * 28 * 28, 10)
    )
    tallies = tally_step(dt.convert(net, fuse=False).model, 2, layout)
    assert {name: tally.calls for name, tally in tallies.items()} == dict.fromkeys(tallies, 1)
    assert {name.partition("_")[0] for name in tallies} == {"convolution", "batch", "linear"}
    assert tallies["linear_forward"].tensors == 2
    for tally in tallies.values():
        assert tally.launches == sum(map(len, tally.kinds)) > 0
        assert tally.seconds > 0
    assert "prepare" not in vars(bridge._thread)
