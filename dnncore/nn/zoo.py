"""Nets by name, as structure: what configuration files refer to."""

from __future__ import annotations

from collections.abc import Callable

from dnncore.nn.layer import Shape
from dnncore.nn.layers import Convolution, InnerProduct, Pooling, ReLU
from dnncore.nn.net import Net, Node

__all__ = ["ZOO", "lenet"]


def lenet(num_classes: int = 10, input_shape: Shape = (1, 8, 8)) -> Net:
    """Two convolutions with pooling and two inner products, after LeCun et al. 1998, with ReLU; ends in logits."""
    return Net(
        "lenet",
        tuple(input_shape),
        (
            Node("conv1", Convolution(16, (3, 3), padding=1), ("data",)),
            Node("relu1", ReLU(), ("conv1",)),
            Node("pool1", Pooling("max", (2, 2)), ("relu1",)),
            Node("conv2", Convolution(32, (3, 3), padding=1), ("pool1",)),
            Node("relu2", ReLU(), ("conv2",)),
            Node("pool2", Pooling("max", (2, 2)), ("relu2",)),
            Node("ip1", InnerProduct(64), ("pool2",)),
            Node("relu3", ReLU(), ("ip1",)),
            Node("logits", InnerProduct(num_classes), ("relu3",)),
        ),
    )


ZOO: dict[str, Callable[[int, Shape], Net]] = {"lenet": lenet}
"""Functions that make a net from a number of classes and the shape of one input, by name."""
