"""GoogLeNet: branches of several window sizes, put together."""

from __future__ import annotations

from dnncore.nn.builder import NetBuilder
from dnncore.nn.graph import BATCH, Graph

__all__ = ["googlenet"]

_EPSILON = 1e-3
"""Of torchvision's batch normalisations, which the original has not."""

_INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Channels: of 1x1; before 3x3, of 3x3; before the second 3x3 (5x5 in the paper), of that; behind pooling."""


def _basic(net: NetBuilder, name: str, x: str, channels: int, kernel: int, stride: int = 1) -> str:
    conv = net.convolution(f"{name}.conv", x, channels, kernel, stride=stride, padding=kernel // 2, bias=False)
    return net.relu(f"{name}.relu", net.batch_norm(f"{name}.bn", conv, _EPSILON))


def _inception(net: NetBuilder, name: str, x: str) -> str:
    one, before_three, three, before_five, five, pooled = _INCEPTIONS[name.removeprefix("inception")]
    branches = (
        _basic(net, f"{name}.branch1", x, one, 1),
        _basic(net, f"{name}.branch2.1", _basic(net, f"{name}.branch2.0", x, before_three, 1), three, 3),
        _basic(net, f"{name}.branch3.1", _basic(net, f"{name}.branch3.0", x, before_five, 1), five, 3),
        _basic(net, f"{name}.branch4.1", net.pooling(f"{name}.branch4.0", x, "max", 3, stride=1, padding=1), pooled, 1),
    )
    return net.concat(name, *branches)


def _auxiliary(net: NetBuilder, name: str, x: str, num_classes: int) -> str:
    """Logits from the midst of the net, which give the layers before it gradients of their own."""
    x = _basic(net, f"{name}.conv", net.adaptive_average_pooling(f"{name}.pool", x, (4, 4)), 128, 1)
    x = net.relu(f"{name}.relu", net.inner_product(f"{name}.fc1", x, 1024))
    return net.inner_product(f"{name}.fc2", net.dropout(f"{name}.dropout", x, 0.7), num_classes)


def googlenet(
    num_classes: int = 1000, input_shape: tuple[int, ...] = (3, 224, 224), *, auxiliary: bool = False
) -> Graph:
    """Nine inceptions (Szegedy et al., arXiv 1409.4842), with batch normalisation.

    Args:
        num_classes: K.
        input_shape: [C, H, W].
        auxiliary: Whether the heads behind inceptions 4a and 4d are there; their logits are outputs behind the net's own.
    """
    net = NetBuilder("googlenet")
    x = _basic(net, "conv1", net.input("data", (BATCH, *input_shape)), 64, 7, 2)
    x = net.pooling("maxpool1", x, "max", 3, stride=2, ceil_mode=True)
    x = _basic(net, "conv3", _basic(net, "conv2", x, 64, 1), 192, 3)
    x = net.pooling("maxpool2", x, "max", 3, stride=2, ceil_mode=True)
    for part in ("3a", "3b"):
        x = _inception(net, f"inception{part}", x)
    x = net.pooling("maxpool3", x, "max", 3, stride=2, ceil_mode=True)
    heads: list[str] = []
    for part in ("4a", "4b", "4c", "4d", "4e"):
        x = _inception(net, f"inception{part}", x)
        if auxiliary and part in ("4a", "4d"):
            heads.append(_auxiliary(net, f"aux{len(heads) + 1}", x, num_classes))
    x = net.pooling("maxpool4", x, "max", 2, stride=2, ceil_mode=True)
    for part in ("5a", "5b"):
        x = _inception(net, f"inception{part}", x)
    x = net.dropout("dropout", net.global_pooling("avgpool", x), 0.2)
    return net.build(net.inner_product("fc", x, num_classes), *heads)
