"""A chain as autograd sees it: one node, what it keeps, what it refuses."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.utils.checkpoint

from dnncore.torch import bridge
from tests.torch.chained import (
    Bottleneck,
    Tensor,
    example,
    gradients,
    pair,
)


def test_a_chain_is_one_node_and_keeps_one_tensor_beside_what_it_is_given() -> None:
    _, ours = pair(Bottleneck)
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = ours(example())
    assert type(y.grad_fn).__name__ == "ChainBackward"
    assert sum(tensor.dtype is torch.uint8 for tensor in packed) == 1
    given = {id(parameter) for parameter in ours.parameters()}
    others = [tensor for tensor in packed if tensor.dtype is not torch.uint8 and id(tensor) not in given]
    assert sorted(tensor.shape for tensor in others) == sorted([y.shape, y.shape])  # x and y


def test_what_no_backward_reads_is_not_kept() -> None:
    """A projection's result is added, and that is all."""
    _, ours = pair(lambda: Bottleneck(8, 2), torch.float32)
    y = ours(example(torch.float32))
    kept = y.grad_fn.saved_tensors[0].numel()
    of_conv1, of_conv2, of_conv3 = 3 * 4 * 9 * 7, 3 * 4 * 5 * 4, y.numel()  # 5 x 4 behind a stride of 2
    maps = [of_conv1] * 2 + [of_conv2] * 2 + [of_conv3] * 2  # the projection's convolution too
    statistics = [2 * 4] * 2 + [2 * 8] * 2
    assert kept == sum(-(-4 * count // 256) * 256 for count in (*maps, *statistics))


def test_layers_that_are_frozen_keep_nothing_in_front_of_the_first_that_is_not() -> None:
    theirs, ours = pair(Bottleneck)
    for net in (theirs, ours):
        net.conv1.requires_grad_(False)
        net.bn1.requires_grad_(False)
    x = example().detach()
    y = ours(x)
    of_conv1, of_conv3 = 3 * 4 * 9 * 7, y.numel()
    maps = [of_conv1] + [of_conv1] * 2 + [of_conv3]  # what the second convolution reads, and what the others do
    statistics = [2 * 4, 2 * 8]
    assert y.grad_fn.saved_tensors[0].numel() == sum(-(-8 * count // 256) * 256 for count in (*maps, *statistics))
    assert not any(each.shape == x.shape and torch.equal(each, x) for each in y.grad_fn.saved_tensors)
    theirs.load_state_dict(ours.state_dict())
    x.requires_grad_()
    torch.testing.assert_close(gradients(ours, x)[1:], gradients(theirs, x)[1:], rtol=1e-9, atol=1e-9)


def test_what_is_saved_may_come_back_otherwise() -> None:
    """As from memory of the host, where hooks have put it."""
    theirs, ours = pair(Bottleneck)
    x = example(layout="NHWC")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.contiguous()):
        found = gradients(ours, x)
    torch.testing.assert_close(found, gradients(theirs, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("overwritten", ["weight", "bias", "x", "y"])
def test_what_is_overwritten_between_forward_and_backward_is_refused(overwritten: str) -> None:
    _, ours = pair(Bottleneck)
    x = example()
    read = x * 1
    y = ours(read)
    with torch.no_grad():
        {"weight": ours.conv2.weight, "bias": ours.bn1.bias, "x": read, "y": y}[overwritten].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_graph_is_gone_through_twice_only_where_it_is_retained() -> None:
    _, ours = pair(Bottleneck)
    x = example()
    y = ours(x)
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), x)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(ours(x).sum(), x, create_graph=True)


def test_what_is_computed_again_for_the_backward_is_what_it_was() -> None:
    _, ours = pair(Bottleneck)
    x = example()
    expected = gradients(ours, x)
    again = torch.utils.checkpoint.checkpoint(ours, x, use_reentrant=False)
    seed = torch.sin(torch.arange(again.numel(), dtype=again.dtype)).view_as(again)
    found = torch.autograd.grad(again, [x, *ours.parameters()], seed)
    torch.testing.assert_close([again, *found], expected)


def test_chains_that_are_under_way_together_do_not_meet() -> None:
    theirs, ours = pair(Bottleneck)
    inputs = [example(), torch.flip(example().detach(), (0,)).requires_grad_()]
    sums = [[net(x).square().sum() for x in inputs] for net in (theirs, ours)]
    expected, found = (torch.autograd.grad(sum(each), inputs) for each in sums)
    torch.testing.assert_close(found, expected)
    copied = copy.deepcopy(ours)
    torch.testing.assert_close(gradients(copied, inputs[0]), gradients(ours, inputs[0]))
    assert copied.conv1.weight is not ours.conv1.weight


def test_a_backward_of_what_other_threads_have_called_is_planned_once() -> None:
    """As of data-parallel replicas, whose threads end with each step."""
    _, ours = pair(Bottleneck)
    x = example()
    known: list[int] = []
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            y = pool.submit(ours, x).result()
        y.sum().backward()
        known.append(len(bridge._thread.seen))
    assert len(set(known)) == 1


def test_parameters_see_their_gradients_once_each() -> None:
    """As data-parallel training counts on."""
    _, ours = pair(Bottleneck)
    seen: list[str] = []
    for name, parameter in ours.named_parameters():
        parameter.register_hook(lambda _gradient, name=name: seen.append(name))
    ours(example()).sum().backward()
    assert sorted(seen) == sorted(name for name, _ in ours.named_parameters())
    assert all(parameter.grad is not None and not parameter.grad._is_view() for parameter in ours.parameters())


def test_an_empty_batch_has_gradients_of_zero() -> None:
    theirs, ours = pair(Bottleneck)
    found = gradients(ours, torch.empty(0, 8, 9, 7, dtype=torch.float64, requires_grad=True))
    assert found[0].shape == (0, 8, 9, 7)
    assert all(not each.any() for each in found[2:])
    assert [each.shape for each in found[2:]] == [each.shape for each in theirs.parameters()]


def test_what_autograd_cannot_follow_is_refused() -> None:
    _, ours = pair(Bottleneck)
    with pytest.raises(RuntimeError, match="transforms of torch"):
        torch.func.grad(lambda x: ours(x).sum())(example().detach())
    with pytest.raises(RuntimeError, match="forward mode AD"), torch.autograd.forward_ad.dual_level():
        ours(torch.autograd.forward_ad.make_dual(example().detach(), example().detach()))
