"""Nets for tests, each with the same net in PyTorch, which reads the same constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from dnncore.nn import BATCH, Graph, NetBuilder
from dnncore.nn.model import Model
from dnncore.nn.zoo import lenet

f = torch.nn.functional
Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Twin:
    """A graph and a PyTorch function that gives the same outputs."""

    graph: Graph
    function: Callable[[torch.Tensor, Weights], tuple[torch.Tensor, ...]]


def _branched() -> Graph:
    """Value "stem" is read twice, so its gradient has two parts."""
    net = NetBuilder("branched")
    stem = net.convolution("stem", net.input("data", (BATCH, 2, 6, 6)), 4, 3, padding=1)
    right = net.convolution("right", stem, 4, 1, bias=False)
    join = net.plus("join", net.activation("left", stem, "tanh"), right)
    pool = net.pooling("pool", join, "average_include_padding", 3, stride=2, padding=1)
    logits = net.inner_product("logits", net.activation("squash", pool, "sigmoid"), 5)
    return net.build(net.softmax("probabilities", logits))


def _torch_branched(x: torch.Tensor, w: Weights) -> tuple[torch.Tensor, ...]:
    stem = f.conv2d(x, w["stem.weight"], w["stem.bias"], padding=1)
    join = torch.tanh(stem) + f.conv2d(stem, w["right.weight"])
    squash = torch.sigmoid(f.avg_pool2d(join, 3, 2, 1))
    return (f.softmax(f.linear(squash.flatten(1), w["logits.weight"], w["logits.bias"]), 1),)


def _torch_lenet(x: torch.Tensor, w: Weights) -> tuple[torch.Tensor, ...]:
    for conv in ("conv1", "conv2"):
        x = f.max_pool2d(torch.relu(f.conv2d(x, w[f"{conv}.weight"], w[f"{conv}.bias"], padding=1)), 2)
    x = torch.relu(f.linear(x.flatten(1), w["ip1.weight"], w["ip1.bias"]))
    return (f.linear(x, w["logits.weight"], w["logits.bias"]),)


def _inception() -> Graph:
    """Branches that are put together, one of them twice, and two outputs: parts of a whole, and a whole that is a part."""
    net = NetBuilder("inception")
    x = net.relu("relu0", net.convolution("conv0", net.input("data", (BATCH, 3, 8, 8)), 8, 3, padding=1))
    x = net.local_response_norm("norm", x, 3, 0.1, 0.75)
    one = net.relu("relu1", net.convolution("conv1", x, 4, 1))
    two = net.relu("relu2", net.convolution("conv2", x, 4, 3, padding=1, groups=2))
    inner = net.concat("inner", one, two)
    pool = net.pooling("pool", x, "max", 3, stride=1, padding=1)
    whole = net.concat("whole", inner, pool, one)
    features = net.global_pooling("features", net.dropout("drop", whole))
    side = net.inner_product("side", two, 3)
    return net.build(net.inner_product("logits", features, 5), side)


def _torch_inception(x: torch.Tensor, w: Weights) -> tuple[torch.Tensor, ...]:
    x = torch.relu(f.conv2d(x, w["conv0.weight"], w["conv0.bias"], padding=1))
    x = f.local_response_norm(x, 3, 0.1, 0.75, 1.0)
    one = torch.relu(f.conv2d(x, w["conv1.weight"], w["conv1.bias"]))
    two = torch.relu(f.conv2d(x, w["conv2.weight"], w["conv2.bias"], padding=1, groups=2))
    whole = torch.cat((one, two, f.max_pool2d(x, 3, 1, 1), one), 1)
    side = f.linear(two.flatten(1), w["side.weight"], w["side.bias"])
    return f.linear(whole.mean((2, 3)), w["logits.weight"], w["logits.bias"]), side


TWINS = (Twin(_branched(), _torch_branched), Twin(lenet(), _torch_lenet), Twin(_inception(), _torch_inception))


def residual(width: int = 4) -> Graph:
    """A residual block with batch normalisation behind every convolution, as ResNet has it; not to be differentiated."""
    net = NetBuilder("residual")
    x = net.input("data", (BATCH, 3, 8, 8))
    stem = net.relu(
        "stem.relu", net.batch_norm("stem.norm", net.convolution("stem", x, width, 3, padding=1, bias=False))
    )
    y = net.relu("a.relu", net.batch_norm("a.norm", net.convolution("a", stem, width, 3, padding=1, bias=False)))
    y = net.batch_norm("b.norm", net.convolution("b", y, width, 3, padding=1, bias=False))
    x = net.relu("join.relu", net.plus("join", y, stem))
    return net.build(net.softmax("probabilities", net.inner_product("logits", net.global_pooling("pool", x), 5)))


def torch_residual(x: torch.Tensor, w: Weights) -> tuple[torch.Tensor, ...]:
    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return f.batch_norm(x, *(w[f"{name}.{part}"] for part in ("mean", "variance", "scale", "bias")))

    stem = torch.relu(norm(f.conv2d(x, w["stem.weight"], padding=1), "stem.norm"))
    y = torch.relu(norm(f.conv2d(stem, w["a.weight"], padding=1), "a.norm"))
    y = norm(f.conv2d(y, w["b.weight"], padding=1), "b.norm")
    y = torch.relu(y + stem).mean((2, 3))
    return (f.softmax(f.linear(y, w["logits.weight"], w["logits.bias"]), 1),)


def siblings() -> Graph:
    """Two inceptions in a row: 1x1 convolutions of one input, of which one is the first part of a concatenation."""
    net = NetBuilder("siblings")
    x = net.relu("stem.relu", net.convolution("stem", net.input("data", (BATCH, 3, 8, 8)), 6, 3, padding=1))
    for name in ("first", "second"):

        def branch(part: str, x: str, channels: int, kernel: int, name: str = name) -> str:
            conv = net.convolution(f"{name}.{part}", x, channels, kernel, padding=kernel // 2)
            return net.relu(f"{name}.{part}.relu", conv)

        one = branch("one", x, 4, 1)
        two = branch("two", branch("two.before", x, 3, 1), 5, 3)
        three = branch("three", branch("three.before", x, 2, 1), 3, 3)
        pooled = branch("four", net.pooling(f"{name}.pool", x, "max", 3, stride=1, padding=1), 2, 1)
        x = net.concat(name, one, two, three, pooled)
    return net.build(net.inner_product("logits", net.global_pooling("pool", x), 5))


def weightless(graph: Graph) -> Model:
    """A model for estimates, whose weights are all 0 and take no memory."""
    return Model(graph, {one.name: np.broadcast_to(one.dtype.numpy.type(0), one.shape) for one in graph.constants})
