from __future__ import annotations

import numpy as np
import pytest
import torch

from dnncore import Handle
from dnncore.backend import Memory
from dnncore.errors import BadParamError, OutOfMemoryError
from dnncore.nn import Executor, Net, Node, Phase
from dnncore.nn.layers import Add, Convolution, InnerProduct, Pooling, ReLU, Sigmoid, Softmax, TanH
from dnncore.nn.zoo import lenet
from dnncore.testing import tolerance

# A residual branch: blob "stem" is read twice, so its gradient has two parts.
BRANCHED = Net(
    "branched",
    (2, 6, 6),
    (
        Node("stem", Convolution(4, (3, 3), padding=1), ("data",)),
        Node("left", TanH(), ("stem",)),
        Node("right", Convolution(4, (1, 1), bias=False), ("stem",)),
        Node("join", Add(), ("left", "right")),
        Node("pool", Pooling("average_include_padding", (3, 3), stride=2, padding=1), ("join",)),
        Node("squash", Sigmoid(), ("pool",)),
        Node("logits", InnerProduct(5), ("squash",)),
        Node("probabilities", Softmax(), ("logits",)),
    ),
)


def _torch_branched(x: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
    f = torch.nn.functional
    stem = f.conv2d(x, w["stem.weight"], w["stem.bias"], padding=1)
    join = torch.tanh(stem) + f.conv2d(stem, w["right.weight"])
    squash = torch.sigmoid(f.avg_pool2d(join, 3, 2, 1))
    return f.softmax(f.linear(squash.flatten(1), w["logits.weight"], w["logits.bias"]), 1)


def _torch_lenet(x: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
    f = torch.nn.functional
    for conv in ("conv1", "conv2"):
        x = f.max_pool2d(torch.relu(f.conv2d(x, w[f"{conv}.weight"], w[f"{conv}.bias"], padding=1)), 2)
    x = torch.relu(f.linear(x.flatten(1), w["ip1.weight"], w["ip1.bias"]))
    return f.linear(x, w["logits.weight"], w["logits.bias"])


@pytest.mark.parametrize(
    ("net", "twin"), [(BRANCHED, _torch_branched), (lenet(), _torch_lenet)], ids=["branched", "lenet"]
)
def test_forward_and_backward_agree_with_pytorch(handle: Handle, net: Net, twin: object) -> None:
    rng = np.random.default_rng(3)
    weights = {name: w + np.float32(0.01) for name, w in net.initialize(3).items()}
    x = rng.standard_normal((4, *net.input_shape)).astype(np.float32)
    dy = rng.standard_normal((4, *net.output_shape)).astype(np.float32)

    parameters = net.upload(handle, weights)
    executor = Executor(net, handle, parameters, 4, Phase.TRAIN)
    y = executor.run(x).copy()
    executor.output_gradient.assign(dy)
    executor.backward()
    gradients = {name: tensor.numpy() for name, tensor in parameters.gradients.items()}
    executor.close()
    parameters.close()

    leaves = {name: torch.tensor(w, dtype=torch.float64, requires_grad=True) for name, w in weights.items()}
    expected = twin(torch.tensor(x, dtype=torch.float64), leaves)  # type: ignore[operator]
    expected.backward(torch.tensor(dy, dtype=torch.float64))
    # Rounding grows through the layers; each adds its own part.
    allowed = len(net.nodes) * tolerance(parameters.values["logits.weight"].descriptor.dtype, 400)
    assert np.abs(y - expected.detach().numpy()).max() <= allowed * np.abs(expected.detach().numpy()).max()
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        reference = leaf.grad.numpy()
        assert np.abs(gradients[name] - reference).max() <= allowed * np.abs(reference).max(), name


def test_executors_of_several_batch_sizes_share_parameters_and_agree(handle: Handle) -> None:
    net = lenet().with_probabilities()
    parameters = net.upload(handle, net.initialize(0))
    x = np.random.default_rng(0).standard_normal((5, 1, 8, 8)).astype(np.float32)
    big = Executor(net, handle, parameters, 5, Phase.TEST)
    together = big.run(x).copy()
    single = Executor(net, handle, parameters, 1, Phase.TEST)
    apart = np.concatenate([single.run(x[i : i + 1]).copy() for i in range(5)])
    assert np.abs(together - apart).max() < 1e-6
    assert np.allclose(together.sum(1), 1, atol=1e-6)
    for thing in (big, single, parameters):
        thing.close()


def test_a_binding_that_finds_no_room_gives_back_what_it_took(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    net = lenet()
    parameters = net.upload(handle, net.initialize(0))
    before, allocate, taken = repr(handle), handle.device.allocate, 0

    def small(nbytes: int) -> Memory:
        nonlocal taken
        taken += 1
        if taken > 1:  # all activations and nothing else
            raise OutOfMemoryError("full")
        return allocate(nbytes)

    with monkeypatch.context() as patch:
        patch.setattr(handle.device, "allocate", small)
        with pytest.raises(OutOfMemoryError):
            Executor(net, handle, parameters, 2, Phase.TRAIN)
    assert repr(handle) == before
    parameters.close()


def test_there_is_no_way_back_through_an_executor_for_testing_or_a_closed_one(handle: Handle) -> None:
    net = lenet()
    parameters = net.upload(handle, net.initialize(0))
    testing, closed = (Executor(net, handle, parameters, 1, phase) for phase in (Phase.TEST, Phase.TRAIN))
    closed.close()
    for executor in (testing, closed):
        with pytest.raises(BadParamError, match=r"bind the net with Phase\.TRAIN"):
            executor.backward()
    with pytest.raises(BadParamError, match=r"Phase\.TEST"):
        _ = testing.output_gradient
    testing.close()
    parameters.close()


def test_initialisation_depends_on_the_seed_alone() -> None:
    first, again, other = (lenet().initialize(seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["conv1.weight"], other["conv1.weight"])
    assert not first["conv1.bias"].any()


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((), "no nodes"),
        ((Node("a", ReLU(), ("data",)), Node("a", ReLU(), ("data",))), "'a' is empty or used twice"),
        ((Node("a", ReLU(), ("b",)), Node("b", ReLU(), ("data",))), "reads 'b', which no earlier node writes"),
        ((Node("a", Add(), ("data",)),), "takes 2 inputs, 1 are given"),
        ((Node("a", Convolution(3, (9, 9)), ("data",)),), "node 'a': filter extent 9"),
        ((Node("a", Pooling("median", (2, 2)), ("data",)),), "median"),
        ((Node("a", InnerProduct(0), ("data",)),), "num_output 0"),
    ],
)
def test_nets_that_make_no_sense_are_refused_by_node(nodes: tuple[Node, ...], message: str) -> None:
    with pytest.raises(BadParamError, match=message):
        Net("bad", (1, 4, 4), nodes)


def test_weights_that_do_not_fit_are_named(handle: Handle) -> None:
    net = lenet()
    weights = net.initialize(0)
    with pytest.raises(BadParamError, match=r"lack \['conv1.bias'\] and have unknown \['conv9.bias'\]"):
        net.upload(handle, {("conv9.bias" if k == "conv1.bias" else k): v for k, v in weights.items()})
    with pytest.raises(BadParamError, match=r"'ip1.bias' is float32\[3\], the net needs float32\[64\]"):
        net.upload(handle, {**weights, "ip1.bias": np.zeros(3, np.float32)})
