"""VGG: nothing but 3x3 convolutions, and pooling that halves the places."""

from __future__ import annotations

from dnncore.nn.builder import NetBuilder
from dnncore.nn.graph import BATCH, Graph
from dnncore.nn.zoo.heads import classifier

__all__ = ["vgg16"]

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and convolutions of each stage of the 16-layer net."""


def vgg16(num_classes: int = 1000, input_shape: tuple[int, ...] = (3, 224, 224)) -> Graph:
    """Thirteen convolutions and three inner products (Simonyan and Zisserman, arXiv 1409.1556, configuration D).

    Args:
        num_classes: K.
        input_shape: [C, H, W], at least 32 x 32.
    """
    net = NetBuilder("vgg16")
    x, index = net.input("data", (BATCH, *input_shape)), 0
    for channels, convolutions in _STAGES:
        for _ in range(convolutions):
            x = net.relu(f"features.{index + 1}", net.convolution(f"features.{index}", x, channels, 3, padding=1))
            index += 2
        x = net.pooling(f"features.{index}", x, "max", 2)
        index += 1
    return net.build(classifier(net, x, 4096, num_classes, dropout_first=False))
