"""Convolutions and linear layers with the ReLU behind them: the same as one after the other, however it is computed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dnncore.torch as dt
from dnncore import Handle
from dnncore.descriptors import ConvolutionDescriptor, TensorDescriptor
from dnncore.torch import bridge
from dnncore.torch.functions import convolution, draft, linear
from dnncore.torch.operation import Way

Tensor = Any
LAYERS = (
    (nn.Conv2d(4, 6, 3, padding=1), (3, 4, 5, 7)),
    (nn.Conv2d(4, 6, 3, stride=2, groups=2, bias=False), (3, 4, 5, 7)),
    (nn.Conv2d(4, 6, 3), (4, 5, 7)),
    (nn.Conv1d(4, 6, 3), (2, 4, 9)),
    (nn.Linear(5, 6), (3, 5)),
    (nn.Linear(5, 6, bias=False), (2, 3, 5)),
    (nn.Linear(5, 6), (5,)),
)
DTYPES = (None, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("inplace", [True, False], ids=["in-place", "out-of-place"])
@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda value: str(value))
def test_a_fused_layer_is_the_two_one_after_the_other(
    layer: nn.Module, shape: tuple[int, ...], inplace: bool, training: bool, dtype: torch.dtype | None
) -> None:
    theirs = nn.Sequential(copy.deepcopy(layer), nn.ReLU(inplace))
    theirs[0].reset_parameters()  # as the seed has it: when the module was made there was none
    ours = copy.deepcopy(theirs).train(training)
    assert dt.convert(ours, fuse=True).fused == ("0",)
    x = torch.randn(shape).to(dtype or torch.float32).requires_grad_()
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        y, before = ours(x), theirs[0](x)
        expected = before.relu()
        with torch.no_grad():
            assert torch.equal(ours(x), y)
    assert type(y.grad_fn).__name__ != "ReluBackward0"
    assert (y.dtype, y.stride()) == (expected.dtype, expected.stride())
    tolerance = 4 * torch.finfo(y.dtype).eps
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=2 * tolerance)
    assert 0 < (y == 0).sum() < y.numel()
    dy = torch.randn(y.shape).to(y.dtype)
    y.backward(dy)
    found, x.grad = [x.grad, *(p.grad for p in ours.parameters())], None
    before.backward(dy * (y > 0))  # of this result: near 0 the other may have rounded to the other side
    for a, b in zip(found, (x.grad, *(p.grad for p in theirs.parameters())), strict=True):
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())
        torch.testing.assert_close(a, b, rtol=4 * tolerance, atol=16 * tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "fp16", "bf16"])
def test_an_empty_batch(dtype: torch.dtype | None) -> None:
    for layer, shape in ((nn.Conv2d(3, 4, 3), (0, 3, 5, 5)), (nn.Linear(5, 4), (0, 5))):
        ours = nn.Sequential(layer, nn.ReLU())
        assert dt.convert(ours, fuse=True).fused == ("0",)
        x = torch.empty(shape, requires_grad=True)
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            y = ours(x)
        y.sum().backward()
        assert y.numel() == x.grad.numel() == 0
        assert not any(p.grad.any() for p in ours.parameters())


def test_nan_goes_through_and_no_gradient_back() -> None:
    ours = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with torch.no_grad():
        ours[0].weight.copy_(torch.tensor([[torch.nan, 0.0], [0.0, -1.0]]))
    theirs = copy.deepcopy(ours)
    dt.convert(ours, fuse=True)
    x = torch.ones(1, 2)
    y = ours(x)
    torch.testing.assert_close(y, theirs(x), equal_nan=True)
    assert y.isnan().tolist() == [[True, False]]
    y.sum().backward()
    assert ours[0].bias.grad.tolist() == [0, 0]


def test_a_result_that_is_overwritten_has_no_gradient() -> None:
    ours = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    dt.convert(ours, fuse=True)
    y = ours(torch.randn(1, 3, 5, 5))
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def _results(handle: Handle, way: Way, given: Sequence[tuple[TensorDescriptor, np.ndarray]]) -> list[np.ndarray]:
    """What a way computes on a handle's device from tensors that lie as described."""
    tensors = [handle.tensor(descriptor) for descriptor, _ in given]
    for tensor, (_, array) in zip(tensors, given, strict=True):
        tensor.assign(array.astype(tensor.dtype.numpy))
    placeholders: list[Any] = [True] * len(given)  # of which is asked only that they are not None
    steps = bridge._wired(handle, way, placeholders)
    made = [handle.tensor(each) for each in way.results]
    handle.wire(steps, None, way.scratch_bytes)([tensor.address for tensor in (*tensors, *made)])
    return [tensor.numpy() for tensor in made]


@pytest.mark.parametrize("large", [False, True], ids=["scratch", "allocated"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "rows"])
def test_every_way_on_every_device_gives_the_same(
    layout: str, bias: bool, dtype: str, large: bool, handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16 bits with parameters in float32, as under autocast."""
    if large:
        monkeypatch.setattr(draft, "_MOST_SCRATCH_BYTES", 0)
    casts = dtype == "float16"
    x, w, b, dy = (
        torch.randn(shape).to(torch.float16 if casts else torch.float32).float()
        for shape in (
            ((4, 8), (16, 8), (16,), (4, 16))
            if layout == "rows"
            else ((2, 8, 4, 5), (16, 8, 3, 3), (16,), (2, 16, 4, 5))
        )
    )
    described = [
        TensorDescriptor.packed(tuple(t.shape), of, "NCHW" if t.dim() < 4 else layout)
        for t, of in zip((x, w, b, dy), (dtype, "float32", "float32", dtype), strict=True)
    ]
    leaves = [t.double().requires_grad_() for t in (x, w, b)]
    of_x, of_w, of_b = leaves
    before = (
        nn.functional.linear(of_x, of_w, of_b if bias else None)
        if layout == "rows"
        else nn.functional.conv2d(of_x, of_w, of_b if bias else None, padding=1)
    )
    before.relu().backward(dy.double())
    tolerance = 4e-3 if casts else 1e-5
    arrays = [t.numpy() for t in (x, w, b, dy)]
    given = list(zip(described, arrays, strict=True))
    parameters = 2 + bias
    conv = ConvolutionDescriptor.make(padding=1)
    if layout == "rows":
        forward = linear._forward(casts, True, *described[:parameters])
    else:
        forward = convolution._forward(conv, casts, True, *described[:parameters])
    assert len(forward.ways) > 1
    for way in forward.ways:
        y, *_ = _results(handle, way, given[:parameters])
        np.testing.assert_allclose(y, before.detach().relu().numpy(), rtol=tolerance, atol=4 * tolerance)
    assert 0 < np.count_nonzero(y) < y.size
    wanted = (True, True, False, *((True,) if bias else ()))
    low = described[1].with_dtype(described[0].dtype)
    of_y = described[3]
    if layout == "rows":
        backward = linear._backward((torch.float32, torch.float32), wanted, described[0], low, of_y, of_y)
        assert len(backward.ways) == 1 + casts  # dw is cast, or stored as it is wanted
    else:
        strides = described[1].strides if casts else None
        settings = (torch.float32, torch.float32, strides)
        backward = convolution._backward(conv, settings, wanted, described[0], low, of_y, of_y)
    expected = [leaf.grad.numpy() for leaf in leaves[:parameters]]
    rounded = before.detach().relu().to(torch.float16 if casts else torch.float32).numpy()
    for way in backward.ways:
        found = _results(handle, way, [given[0], (low, arrays[1]), given[3], (of_y, rounded)])
        for a, right in zip(found, expected, strict=False):  # behind these, what nobody reads
            np.testing.assert_allclose(a, right, rtol=4 * tolerance, atol=8 * tolerance)
