"""Gradients against finite differences, and values and gradients against torch.nn.functional, on the reference backend in fp64.

On a GPU host the same runs on cuda:0 with PyTorch's CUDA build (tests/gpu).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dnncore.torch as dt
from dnncore.descriptors import (
    ActivationDescriptor,
    ActivationMode,
    ConvolutionDescriptor,
    LRNDescriptor,
    PoolingDescriptor,
)
from dnncore.errors import BadParamError
from dnncore.ops import dropout_state

Tensor = Any
_RELU6 = ActivationDescriptor.make("clipped_relu", 1.5)
_STATE = torch.tensor(dropout_state(7))
_LABELS = torch.tensor([1, 0, 3])

# name, ours, theirs, shapes of the inputs
FUNCTIONS: tuple[tuple[str, Callable[..., Tensor], Callable[..., Tensor], tuple[tuple[int, ...], ...]], ...] = (
    (
        "convolution",
        lambda x, w, b: dt.convolution(x, w, b, ConvolutionDescriptor.make(padding=1, stride=2)),
        lambda x, w, b: F.conv2d(x, w, b, padding=1, stride=2),
        ((2, 3, 6, 5), (4, 3, 3, 3), (4,)),
    ),
    (
        "convolution-3d-groups",
        lambda x, w: dt.convolution(x, w, None, ConvolutionDescriptor.make(3, groups=2)),
        lambda x, w: F.conv3d(x, w, groups=2),
        ((1, 4, 3, 4, 3), (4, 2, 2, 2, 2)),
    ),
    (
        "convolution-relu",
        lambda x, w, b: dt.convolution(x, w, b, ConvolutionDescriptor.make(padding=1), relu=True),
        lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(),
        ((2, 3, 4, 5), (4, 3, 3, 3), (4,)),
    ),
    (
        "convolution-relu-without-bias",
        lambda x, w: dt.convolution(x, w, None, ConvolutionDescriptor.make(groups=2), relu=True),
        lambda x, w: F.conv2d(x, w, groups=2).relu(),
        ((2, 4, 4, 5), (4, 2, 3, 3)),
    ),
    (
        "max-pool",
        lambda x: dt.max_pool(x, PoolingDescriptor.make("max", 3, stride=2, padding=1)),
        lambda x: F.max_pool2d(x, 3, 2, 1),
        ((2, 2, 7, 6),),
    ),
    (
        "average-pool",
        lambda x: dt.avg_pool(x, PoolingDescriptor.make("average_exclude_padding", 3, stride=2, padding=1)),
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        ((2, 2, 7, 6),),
    ),
    ("softmax", lambda x: dt.softmax(x, 2), lambda x: F.softmax(x, 2), ((2, 3, 4, 2),)),
    ("softmax-vector", lambda x: dt.softmax(x, 0), lambda x: F.softmax(x, 0), ((7,),)),
    ("log-softmax", lambda x: dt.log_softmax(x, -1), lambda x: F.log_softmax(x, -1), ((3, 5),)),
    ("linear", dt.linear, F.linear, ((2, 3, 5), (4, 5), (4,))),
    (
        "linear-relu",
        lambda x, w, b: dt.linear(x, w, b, relu=True),
        lambda x, w, b: F.linear(x, w, b).relu(),
        ((2, 3, 5), (4, 5), (4,)),
    ),
    (
        "linear-relu-without-bias",
        lambda x, w: dt.linear(x, w, relu=True),
        lambda x, w: F.linear(x, w).relu(),
        ((3, 5), (4, 5)),
    ),
    (
        "batch-norm",
        lambda x, w, b: dt.batch_norm(x, None, None, w, b, training=True),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        ((3, 2, 4, 3), (2,), (2,)),
    ),
    (
        "batch-norm-relu",
        lambda x, w, b: dt.batch_norm_relu(x, None, None, w, b),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True).relu(),
        ((3, 2, 4, 3), (2,), (2,)),
    ),
    (
        "batch-norm-add-relu",
        lambda x, w, b, r: dt.batch_norm_relu(x, None, None, w, b, residual=r),
        lambda x, w, b, r: (F.batch_norm(x, None, None, w, b, training=True) + r).relu(),
        ((3, 2, 4, 3), (2,), (2,), (3, 2, 4, 3)),
    ),
    (
        "batch-norm-inference",
        lambda x, w, b: dt.batch_norm(x, torch.full((2,), 0.3).double(), torch.full((2,), 2.0).double(), w, b),
        lambda x, w, b: F.batch_norm(x, torch.full((2,), 0.3).double(), torch.full((2,), 2.0).double(), w, b),
        ((3, 2, 4), (2,), (2,)),
    ),
    (
        "layer-norm",
        lambda x, w, b: dt.layer_norm(x, (4, 3), w, b),
        lambda x, w, b: F.layer_norm(x, (4, 3), w, b),
        ((2, 3, 4, 3), (4, 3), (4, 3)),
    ),
    (
        "layer-norm-plain",
        lambda x: dt.layer_norm(x, (5,)),
        lambda x: F.layer_norm(x, (5,)),
        ((3, 5),),
    ),
    (
        "group-norm",
        lambda x, w, b: dt.group_norm(x, 2, w, b),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        ((2, 4, 3, 3), (4,), (4,)),
    ),
    (
        "lrn",
        lambda x: dt.local_response_norm(x, LRNDescriptor.make(n=3, alpha=0.5, k=1.0)),
        lambda x: F.local_response_norm(x, 3, 0.5, 0.75, 1.0),
        ((2, 5, 3, 2),),
    ),
    (
        "cross-entropy",
        lambda x: dt.cross_entropy(x, _LABELS),
        lambda x: F.cross_entropy(x, _LABELS, reduction="none"),
        ((3, 5),),
    ),
    ("relu6", lambda x: dt.activation(x, _RELU6), lambda x: F.hardtanh(x, 0, 1.5), ((4, 5),)),
    (
        "gelu",
        lambda x: dt.activation(x, ActivationDescriptor(ActivationMode.GELU)),
        F.gelu,
        ((3, 7),),
    ),
)


def _inputs(shapes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]


@pytest.mark.parametrize(("ours", "shapes"), [pytest.param(f[1], f[3], id=f[0]) for f in FUNCTIONS])
def test_gradcheck(ours: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...]) -> None:
    assert torch.autograd.gradcheck(ours, _inputs(shapes))


@pytest.mark.parametrize(("ours", "theirs", "shapes"), [pytest.param(*f[1:], id=f[0]) for f in FUNCTIONS])
def test_values_and_gradients_are_those_of_pytorch(
    ours: Callable[..., Tensor], theirs: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...]
) -> None:
    inputs = _inputs(shapes)
    mine, yours = ours(*inputs), theirs(*inputs)
    torch.testing.assert_close(mine, yours)
    seed = torch.linspace(-1, 1, mine.numel(), dtype=torch.float64).reshape(mine.shape)
    for a, b in zip(torch.autograd.grad(mine, inputs, seed), torch.autograd.grad(yours, inputs, seed), strict=True):
        torch.testing.assert_close(a, b)


def test_dropout_passes_gradcheck_and_is_its_own_adjoint() -> None:
    (x,) = _inputs(((5, 7),))
    assert torch.autograd.gradcheck(lambda x: dt.dropout(x, 0.4, state=_STATE), [x])
    assert dt.dropout(x, 0.4, training=False) is x
    torch.manual_seed(3)
    first = dt.dropout(x)
    torch.manual_seed(3)
    assert torch.equal(first, dt.dropout(x))
    assert not torch.equal(first, dt.dropout(x))


def test_channels_last_comes_back_as_channels_last() -> None:
    x = torch.randn(2, 3, 6, 5).to(memory_format=torch.channels_last)
    y = dt.convolution(x, torch.randn(4, 3, 3, 3))
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert not y.is_contiguous()


@pytest.mark.parametrize("shape", [(5,), (0, 5), (2, 0, 5), (3, 5), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("form", ["contiguous", "transposed", "sliced", "expanded", "reversed"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_takes_rows_of_any_strides(shape: tuple[int, ...], form: str, has_bias: bool) -> None:
    x, w, b, seed = _inputs((shape, (4, 5), (4,), (*shape[:-1], 4)))
    arranged: dict[str, Callable[[Tensor], Tensor]] = {
        "contiguous": lambda t: t,
        "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
        "sliced": lambda t: torch.stack((t, t), -1)[..., 0],
        "expanded": lambda t: t[:1].expand(t.shape) if t.dim() > 1 and t.shape[0] else t,
        "reversed": lambda t: t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim()))),
    }
    given = (x, w, b) if has_bias else (x, w)
    found = []
    for function in (dt.linear, F.linear):
        y = function(arranged[form](x), *given[1:])
        found.append((y, *torch.autograd.grad(y, given, arranged[form](seed.detach()))))
    assert found[0][0].is_contiguous()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_an_expanded_gradient_is_read_where_it_lies() -> None:
    (x,) = _inputs(((2, 3, 4, 4),))
    dt.max_pool(x, PoolingDescriptor.make("max", 2)).sum().backward()  # its gradient has strides of 0
    assert x.grad.sum() == 24


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_lower_precision(dtype: torch.dtype) -> None:
    x, w = torch.randn(2, 3, 5, 5).to(dtype), torch.randn(4, 3, 3, 3).to(dtype)
    y = dt.convolution(x, w)
    assert y.dtype is dtype
    torch.testing.assert_close(y.double(), F.conv2d(x.double(), w.double()), rtol=0.02, atol=0.02)


def test_what_we_do_not_have_is_refused_by_name() -> None:
    with pytest.raises(BadParamError, match="complex64"):
        dt.activation(torch.zeros(3, dtype=torch.complex64), _RELU6)
    with pytest.raises(BadParamError, match="meta"):
        dt.activation(torch.zeros(3, device="meta"), _RELU6)
    with pytest.raises(BadParamError, match="running_mean"):
        dt.batch_norm(torch.zeros(2, 3), None, None)


@pytest.mark.parametrize(("ours", "shapes"), [pytest.param(f[1], f[3], id=f[0]) for f in FUNCTIONS])
def test_a_gradient_with_a_graph_is_refused(ours: Callable[..., Tensor], shapes: tuple[tuple[int, ...], ...]) -> None:
    inputs = _inputs(shapes)
    y = ours(*inputs)  # summed, so that dy needs no gradient
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(y.sum(), inputs, create_graph=True)


def test_dropout_with_a_graph_is_refused() -> None:
    (x,) = _inputs(((5, 7),))
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(dt.dropout(x, 0.4).sum(), x, create_graph=True)


def test_a_second_derivative_beside_other_terms_is_refused() -> None:
    x, c = _inputs(((3, 4), (3, 4)))
    y = (dt.softmax(x, 1) * c.detach()).sum() + (x**3).sum()
    with pytest.raises(RuntimeError, match="create_graph=False"):
        torch.autograd.grad(y, x, create_graph=True)


def test_a_gradient_penalty_is_refused() -> None:
    x, w = _inputs(((4, 5), (3, 5)))
    critic = dt.linear(x, w).tanh().sum()
    with pytest.raises(RuntimeError, match="create_graph=False"):
        torch.autograd.grad(critic, x, create_graph=True)


def test_a_graph_that_our_functions_are_only_data_for_is_not_refused() -> None:
    (x,) = _inputs(((3, 4),))
    y = (dt.softmax(x.detach(), 1) * x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(h, 6 * x * F.softmax(x, 1))


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4, 4), (2, 3, 0)], ids=str)
def test_an_empty_batch_is_normalised_as_by_pytorch(shape: tuple[int, ...]) -> None:
    found: list[tuple[Tensor, ...]] = []
    functions: tuple[Callable[..., Tensor], ...] = (dt.batch_norm, F.batch_norm)
    for batch_norm in functions:
        x, scale, bias = (torch.ones(extents, requires_grad=True) for extents in (shape, (3,), (3,)))
        running = torch.full((3,), 5.0), torch.full((3,), 7.0)
        y = batch_norm(x, *running, scale, bias, training=True)
        found.append((y.detach(), *running, *torch.autograd.grad(y.sum(), (x, scale, bias))))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
