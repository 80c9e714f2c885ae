"""dnncore.torch.compile on a GPU: nets of several families, PyTorch's streams, and models that PyTorch traces otherwise there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import dnncore.torch as dt
from tests.torch.nets import NETS
from tests.torch.test_export import assert_near

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def _exact() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def _on_gpu(tree: Any) -> Any:
    return pytree.tree_map(lambda each: each.cuda(), tree)


@pytest.mark.parametrize("name", NETS)
def test_a_model_that_was_compiled_gives_what_pytorch_gives(name: str) -> None:
    net = copy.deepcopy(NETS[name].build()).cuda()
    with dt.compile(net, *_on_gpu([NETS[name].inputs(1)])) as run, torch.no_grad():
        for batch in (1, 3, 1):
            inputs = _on_gpu(NETS[name].inputs(batch))
            assert_near(run(*inputs), net(*inputs), 40)


def test_a_call_comes_between_what_is_before_and_behind_it_on_any_stream() -> None:
    net = NETS["residual"].build().cuda()
    (example,) = _on_gpu(NETS["residual"].inputs(4))
    with dt.compile(net, example) as run, torch.no_grad():
        expected = net(example * 3)
        for stream in (torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()):
            with torch.cuda.stream(stream):
                x = torch.zeros_like(example)
                torch.cuda._sleep(20_000_000)
                x += example * 3  # after the sleep, so that an early call would read zeros
                y = run(x)
                x.zero_()
                found = y + 0
            stream.synchronize()
            assert_near(found, expected, 40)
