"""LeNet for small images."""

from __future__ import annotations

from dnncore.nn.builder import NetBuilder
from dnncore.nn.graph import BATCH, Graph

__all__ = ["lenet"]


def lenet(num_classes: int = 10, input_shape: tuple[int, ...] = (1, 8, 8)) -> Graph:
    """Two convolutions with pooling and two inner products, after LeCun et al. 1998, with ReLU; ends in logits."""
    net = NetBuilder("lenet")
    x = net.input("data", (BATCH, *input_shape))
    for number, channels in ((1, 16), (2, 32)):
        x = net.convolution(f"conv{number}", x, channels, (3, 3), padding=1)
        x = net.relu(f"relu{number}", x)
        x = net.pooling(f"pool{number}", x, "max", (2, 2))
    x = net.relu("relu3", net.inner_product("ip1", x, 64))
    return net.build(net.inner_product("logits", x, num_classes))
