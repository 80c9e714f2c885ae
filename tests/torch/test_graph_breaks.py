"""Models, steps and functions of ours under `torch.compile`: what it traces lies around our launches, and nothing changes.

The backend here keeps each graph that it is given and runs it as PyTorch would. What `torch.export` finds is in here too, for it
meets the same marks.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.utils import counters

import dnncore.torch as dt
from dnncore.descriptors import ActivationDescriptor, ActivationMode, LRNDescriptor, PoolingDescriptor, PoolingMode
from tests.torch.nets import NETS

Tensor = Any

pytestmark = [
    pytest.mark.skipif(
        tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7),
        reason="before PyTorch 2.7 its own layers are compiled",
    ),
    pytest.mark.filterwarnings("error:Dynamo"),  # it warns of what it cannot trace, as of our caches
]


class _Graphs:
    """A backend for `torch.compile`: the operators of each graph that there was to compile."""

    def __init__(self) -> None:
        self.operators: list[list[str]] = []

    def __call__(self, graph: fx.GraphModule, _example: list[Tensor]) -> Callable[..., Any]:
        calls = [node for node in graph.graph.nodes if node.op.startswith("call")]
        self.operators.append([getattr(node.target, "__name__", str(node.target)) for node in calls])
        run: Callable[..., Any] = graph.forward
        return run

    @property
    def frames(self) -> int:
        """How many Python frames dynamo has looked into."""
        return int(counters["frames"]["total"])


@pytest.fixture
def graphs() -> Iterator[_Graphs]:
    torch._dynamo.reset()
    counters.clear()
    yield _Graphs()
    torch._dynamo.reset()


def _twins(fuse: bool = False) -> tuple[nn.Module, nn.Module]:
    model = dt.convert(NETS["residual"].build().train(), fuse=fuse).model
    return model, copy.deepcopy(model)


def _inputs(batch: int) -> Tensor:
    return NETS["residual"].inputs(batch)[0]


def _train(model: Callable[..., Any], x: Tensor, casts: bool = False) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=casts):
        y = model(x)
    nn.functional.cross_entropy(y.float(), torch.arange(len(x)) % 5).backward()
    return y


def _assert_same(compiled: nn.Module, eager: nn.Module) -> None:
    """Parameters, their gradients, and statistics."""
    for (name, p), q in zip(compiled.named_parameters(), eager.parameters(), strict=True):
        assert torch.equal(p, q), name
        assert torch.equal(p.grad, q.grad), name
    for (name, p), q in zip(compiled.named_buffers(), eager.buffers(), strict=True):
        assert torch.equal(p, q), name


@pytest.mark.parametrize("casts", [False, True])
@pytest.mark.parametrize("fuse", [False, True])
def test_a_training_step_is_the_one_of_the_converted_model(graphs: _Graphs, fuse: bool, casts: bool) -> None:
    eager, model = _twins(fuse)
    compiled = torch.compile(model, backend=graphs)
    for seen in range(3):
        y = _train(compiled, _inputs(4), casts)
        assert y.grad_fn.name() == "_LinearBackward"
        assert torch.equal(y, _train(eager, _inputs(4), casts))
        _assert_same(model, eager)
        if seen == 0:
            frames = graphs.frames
            assert frames <= 20  # one for each layer and a few; into planning it were hundreds
    assert graphs.frames == frames
    found = {operator for each in graphs.operators for operator in each}
    assert found <= {"relu_", "add_", "iadd", "flatten"}


@pytest.mark.parametrize("fuse", [False, True])
def test_evaluation_gives_what_it_gives_otherwise(graphs: _Graphs, fuse: bool) -> None:
    eager, model = _twins(fuse)
    compiled = torch.compile(model.eval(), backend=graphs)
    with torch.no_grad():
        assert torch.equal(compiled(_inputs(3)), eager.eval()(_inputs(3)))


@pytest.mark.parametrize("fuse", [False, True])
def test_other_numbers_of_images_are_compiled_once_more_at_most(graphs: _Graphs, fuse: bool) -> None:
    eager, model = _twins(fuse)
    compiled = torch.compile(model, backend=graphs)
    frames = []
    for batch in (4, 3, 5, 6, 2, 4):
        assert torch.equal(_train(compiled, _inputs(batch)), _train(eager, _inputs(batch)))
        frames.append(graphs.frames)
    _assert_same(model, eager)
    assert frames[1:] == frames[1:2] * 5
    assert frames[1] <= 2 * frames[0]


def test_a_step_with_its_backward_inside_is_compiled(graphs: _Graphs) -> None:
    eager, model = _twins()

    def step(model: nn.Module, x: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x), torch.arange(4))
        loss.backward()
        return loss.detach()

    compiled = torch.compile(step, backend=graphs)
    for _ in range(2):
        assert torch.equal(compiled(model, _inputs(4)), step(eager, _inputs(4)))
    _assert_same(model, eager)
    assert ["arange", "cross_entropy"] in graphs.operators


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "activation": lambda x, _: dt.activation(x, ActivationDescriptor(ActivationMode.SILU)),
    "avg_pool": lambda x, _: dt.avg_pool(x, PoolingDescriptor.make(PoolingMode.AVERAGE_INCLUDE_PADDING, 2)),
    "batch_norm": lambda x, w: dt.batch_norm(x, None, None, w, training=True),
    "batch_norm_relu": lambda x, w: dt.batch_norm_relu(x, None, None, w, residual=x),
    "convolution": lambda x, w: dt.convolution(x, w.view(1, 3, 1, 1)),
    "cross_entropy": lambda x, _: dt.cross_entropy(x.flatten(1), torch.tensor([1, 2])),
    "dropout": lambda x, _: dt.dropout(x, 0.5, state=torch.arange(4, dtype=torch.int32)),
    "group_norm": lambda x, w: dt.group_norm(x, 1, w),
    "layer_norm": lambda x, w: dt.layer_norm(x.transpose(1, 3), (3,), w),
    "linear": lambda x, w: dt.linear(x.transpose(1, 3), w.view(1, 3)),
    "local_response_norm": lambda x, _: dt.local_response_norm(x, LRNDescriptor()),
    "log_softmax": lambda x, _: dt.log_softmax(x, 1),
    "max_pool": lambda x, _: dt.max_pool(x, PoolingDescriptor.make(PoolingMode.MAX, 2)),
    "softmax": lambda x, _: dt.softmax(x, 1),
}


def test_each_function_of_ours_is_called_below() -> None:
    of_models = {"compile", "convert", "save_package", "to_model"}
    functions = {name for name in dt.__all__ if isinstance(getattr(dt, name), types.FunctionType)}
    assert functions - of_models == FUNCTIONS.keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_ours_lies_between_two_graphs(graphs: _Graphs, name: str) -> None:
    def around(x: Tensor, w: Tensor) -> Tensor:
        return FUNCTIONS[name](x * 2, w).sin()

    x, w = torch.randn(2, 3, 4, 4, requires_grad=True), torch.randn(3, requires_grad=True)
    found, expected = torch.compile(around, backend=graphs)(x, w), around(x, w)
    assert torch.equal(found, expected)
    for a, b in zip(*(torch.autograd.grad(y.sum(), (x, w), allow_unused=True) for y in (found, expected)), strict=True):
        assert a is b or torch.equal(a, b)
    assert graphs.operators[0][0] == "mul"
    assert graphs.operators[-1][-1] == "sin"
    assert graphs.frames <= 4


def test_a_model_of_one_launch_lies_between_two_graphs(graphs: _Graphs) -> None:
    with dt.compile(NETS["residual"].build(), _inputs(1)) as run:

        def around(x: Tensor) -> Tensor:
            return run(x * 2).sin()

        assert torch.equal(torch.compile(around, backend=graphs)(_inputs(3)), around(_inputs(3)))
    assert graphs.operators == [["mul"], ["sin"]]


def test_layers_by_a_shorter_way_to_pytorchs_kernel_are_compiled_with_what_is_around_them(graphs: _Graphs) -> None:
    relu = dt.modules.ReLU()
    torch.compile(lambda x: relu(x * 2).sin(), backend=graphs, fullgraph=True)(torch.randn(3))
    assert graphs.operators == [["mul", "relu", "sin"]]


def test_hooks_are_called(graphs: _Graphs) -> None:
    _, model = _twins()
    shapes = []
    model.conv1.register_forward_hook(lambda _module, _inputs, y: shapes.append(tuple(y.shape)))
    torch.compile(model, backend=graphs)(_inputs(2))
    assert shapes == [(2, 6, 4, 3)]


def test_where_one_graph_is_asked_for_pytorch_says_why_there_is_none(graphs: _Graphs) -> None:
    with pytest.raises(RuntimeError, match="dnncore plans and launches its own kernels"):
        torch.compile(_twins()[1], backend=graphs, fullgraph=True)(_inputs(2))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("fuse", [False, True])
def test_an_export_finds_pytorchs_operators_though_it_was_compiled(graphs: _Graphs, fuse: bool, strict: bool) -> None:
    def operators(model: nn.Module) -> list[str]:
        program = torch.export.export(model.eval(), (_inputs(2),), strict=strict)
        return [str(node.target) for node in program.graph.nodes]

    _, model = _twins(fuse)
    torch.compile(model, backend=graphs)(_inputs(2))
    assert operators(model) == operators(NETS["residual"].build())


def test_the_compiler_is_not_imported_for_those_who_do_not_use_it() -> None:
    """It takes a second."""
    code = "import sys, dnncore.torch; print('torch._dynamo' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.strip() == "False"
