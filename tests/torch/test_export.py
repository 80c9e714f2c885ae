"""PyTorch's models as nets of ours: what they compute, what they are called, and what is said of what cannot be imported."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import dnncore.torch as dt
from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.errors import ModelImportError
from dnncore.nn import Executor, Parameters, Role
from dnncore.nn.model import Model
from dnncore.nn.operators import BatchNormTraining
from dnncore.nn.training import in_training
from dnncore.testing import tolerance
from dnncore.torch.export.model import Imported, import_exported, import_model
from dnncore.torch.export.program import Exported, export
from dnncore.torch.export.rules import RULES
from tests.torch.nets import NETS, Residual

Tensor = Any


@functools.cache
def _exported(name: str) -> tuple[nn.Module, Exported]:
    net = NETS[name].build()
    return net, export(net, NETS[name].inputs(1))


@functools.cache
def _imported(name: str) -> tuple[nn.Module, Imported]:
    net, exported = _exported(name)
    return net, import_exported(exported, type(net).__name__)


def _run(handle: Handle, model: Model, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    graph = model.graph
    feeds = {value.name: x.numpy() for value, x in zip(graph.inputs, inputs, strict=True)}
    with (
        Parameters.upload(handle, graph, model.weights) as parameters,
        Executor(graph, handle, parameters, len(inputs[0])) as executor,
    ):
        found = executor.run(feeds)
        return [torch.from_numpy(found[name].copy()) for name in graph.outputs]


def assert_near(actual: Any, expected: Any, num_nodes: int) -> None:
    """Results of the same structure, whose elements differ by what roundings in that many nodes may add up to."""
    ours, structure = pytree.tree_flatten(actual)
    theirs, wanted = pytree.tree_flatten(expected)
    assert structure == wanted
    for a, b in zip(ours, theirs, strict=True):
        if b is None:
            assert a is None
            continue
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if b.dtype is torch.bool:
            assert torch.equal(a, b)
            continue
        allowed = num_nodes * tolerance(DType.FLOAT32, 400) * float(b.detach().abs().max())
        assert float((a - b).detach().abs().max()) <= allowed


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_net_computes_what_pytorch_does(handle: Handle, name: str, batch: int) -> None:
    net, imported = _imported(name)
    inputs = NETS[name].inputs(batch)
    found = imported.assemble(_run(handle, imported.model, inputs))
    with torch.no_grad():
        assert_near(found, net(*inputs), len(imported.model.graph.nodes))


def test_the_nets_need_most_rules() -> None:
    """So that a rule that nothing tries is noticed; the others are other names for the same."""
    used: set[str] = set()
    for name in NETS:
        _, exported = _exported(name)
        used |= {str(node.target) for node in exported.program.graph.nodes}
    untried = sorted(str(operator) for operator in RULES if str(operator) not in used)
    assert not untried


def test_layers_have_the_names_of_modules_and_constants_those_of_the_state() -> None:
    net, imported = _imported("residual")
    graph = imported.model.graph
    names = {node.name: node.operator.kind for node in graph.nodes}
    assert names["down.0"] == "convolution"
    assert names["bn2"] == "batch_norm"
    assert names["fc"] == "inner_product"
    assert names["add"] == "binary"
    state = net.state_dict()
    own = {name for name in graph.constant if not name.startswith("bn2.")}
    assert own == {name for name in state if not name.endswith("num_batches_tracked") and not name.startswith("bn2.")}
    assert graph.constant["down.1.running_var"].role is Role.BUFFER
    assert graph.constant["conv1.weight"].role is Role.TRAINABLE
    np.testing.assert_array_equal(imported.model.weights["fc.bias"], state["fc.bias"])
    assert [str(value) for value in graph.inputs] == ["x: float32[N, 3, 7, 6]"]


def test_a_net_that_is_trained_further_keeps_the_momentum_of_its_modules() -> None:
    net = torch.nn.Sequential(torch.nn.BatchNorm2d(3, momentum=0.3), torch.nn.BatchNorm2d(3)).eval()
    imported = import_exported(export(net, (torch.zeros(2, 3, 4, 4),)), "norms")
    found = [node.operator for node in in_training(imported.model.graph).nodes]
    assert found == [BatchNormTraining(1e-5, 0.3), BatchNormTraining(1e-5, 0.1)]


def test_what_depends_on_no_input_is_computed_when_the_model_is_imported() -> None:
    _, imported = _imported("arithmetic")
    fixed = [constant for constant in imported.model.graph.constants if constant.role is Role.FIXED]
    assert {(3,), (4, 5), (4, 4)} <= {constant.shape for constant in fixed}


def test_a_model_is_left_as_it_was() -> None:
    net = Residual().train()
    net.bn1.eval()
    model = dt.to_model(net, torch.zeros(1, 3, 7, 6), "mine")
    assert model.graph.name == "mine"
    assert [module.training for module in (net, net.bn1, net.bn2)] == [True, False, True]
    with torch.no_grad():
        net.fc.bias.zero_()
    assert model.weights["fc.bias"].all()


def test_a_converted_model_is_exported_as_it_was() -> None:
    """A program of PyTorch's operators has no launches of ours in it: what is traced is PyTorch's forward, also of fused layers."""
    net, example = Residual().train(), torch.zeros(2, 3, 7, 6)
    expected = dt.to_model(net, example)
    assert dt.convert(net, fuse=True).fused
    assert dt.to_model(net, example).graph == expected.graph
    assert type(net(example).grad_fn).__name__ == "_LinearBackward", "and afterwards it computes with our kernels again"


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_layers_that_have_their_relu_are_exported_as_they_were() -> None:
    """In evaluation too, where their forward is another than PyTorch's."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(36, 5), nn.ReLU()).eval()
    example = torch.zeros(2, 3, 5, 5)
    expected = dt.to_model(net, example)
    assert dt.convert(net, fuse=True).fused == ("0", "3")
    assert dt.to_model(net, example).graph == expected.graph
    x = torch.randn(2, 3, 5, 5)
    program = torch.export.export(
        copy.deepcopy(net), (example,), strict=True
    )  # of one whose forward nobody has read yet
    assert {str(node.target).split(".")[1] for node in program.graph.nodes if node.op == "call_function"} == {
        *("conv2d", "relu_", "flatten", "linear", "relu"),
    }
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.trace(net, (example,))(x), net(x))


class _Masking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x > 0) * x + (x < 1) * 0.5


def test_bool_beside_floating_point_is_a_number(handle: Handle) -> None:
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    imported = import_model(_Masking(), (x[:2],))
    assert_near(imported.assemble(_run(handle, imported.model, (x,))), _Masking()(x), 4)


class _Unsupported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.lgamma(self.conv(x))
        x = nn.functional.adaptive_avg_pool2d(nn.functional.interpolate(x, scale_factor=2), 3)
        values, indices = nn.functional.max_pool2d(x, 2, return_indices=True)
        return values.cumsum(1), indices


def test_all_that_is_not_supported_is_listed_at_once() -> None:
    with pytest.raises(ModelImportError) as caught:
        dt.to_model(_Unsupported(), torch.zeros(1, 3, 6, 6))
    said = "\n".join(caught.value.problems)
    assert "aten.lgamma.default (node 'lgamma'): not supported; float32[N, 4, 4, 4] -> float32[N, 4, 4, 4]" in said
    assert "aten.upsample_nearest2d.vec" in said
    assert "windows would have several extents: [8, 8] places are no multiple of [3, 3]" in said
    assert "its result 1 is not computed" in said
    assert "aten.cumsum.default" in said
    assert len(caught.value.problems) == 5
    assert "conv2d" not in said


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.count


class _PerImage(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([image * i for i, image in enumerate(x)]).flatten(1)


class _Counted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.shape[0]


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        pytest.param(
            nn.Linear(2, 3).half(), torch.zeros(1, 2).half(), r"torch.float16; a model is imported in torch", id="half"
        ),
        pytest.param(nn.Linear(2, 3), (torch.zeros(1, 2), None), r"it has: Tensor, NoneType", id="no tensor"),
        pytest.param(nn.Linear(2, 3), (), r"it has: nothing", id="nothing"),
        pytest.param(
            nn.Bilinear(2, 2, 3), (torch.zeros(1, 2), torch.zeros(2, 2)), r"one number of images", id="batches"
        ),
        pytest.param(nn.Linear(2, 3), torch.zeros(1, 3), r"Linear: torch.export cannot trace it", id="shape"),
        pytest.param(_Counting(), torch.zeros(1, 2), r"the model writes 'count' while it runs", id="state"),
        pytest.param(
            _PerImage(), torch.zeros(1, 2), r"_PerImage: torch.export cannot trace it for any number", id="loop"
        ),
        pytest.param(_Counted(), torch.zeros(1, 2), r"operand 'N' depends on the number of images", id="number"),
    ],
)
def test_what_cannot_be_imported_is_refused_with_the_reason(model: nn.Module, example: Any, message: str) -> None:
    with pytest.raises(ModelImportError, match=message):
        dt.to_model(model, example)
