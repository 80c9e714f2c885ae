"""AlexNet, on one GPU."""

from __future__ import annotations

from dnncore.nn.builder import NetBuilder
from dnncore.nn.graph import BATCH, Graph
from dnncore.nn.zoo.heads import classifier

__all__ = ["alexnet"]


def alexnet(num_classes: int = 1000, input_shape: tuple[int, ...] = (3, 224, 224)) -> Graph:
    """Five convolutions and three inner products (Krizhevsky, arXiv 1404.5997, as torchvision has it).

    Args:
        num_classes: K.
        input_shape: [C, H, W], at least 63 x 63; what is not 6 x 6 places behind the convolutions, as of 224 x 224, is averaged.
    """
    net = NetBuilder("alexnet")
    x = net.input("data", (BATCH, *input_shape))
    x = net.relu("features.1", net.convolution("features.0", x, 64, 11, stride=4, padding=2))
    x = net.pooling("features.2", x, "max", 3, stride=2)
    x = net.relu("features.4", net.convolution("features.3", x, 192, 5, padding=2))
    x = net.pooling("features.5", x, "max", 3, stride=2)
    for index, channels in ((6, 384), (8, 256), (10, 256)):
        x = net.relu(f"features.{index + 1}", net.convolution(f"features.{index}", x, channels, 3, padding=1))
    x = net.adaptive_average_pooling("avgpool", net.pooling("features.12", x, "max", 3, stride=2), (6, 6))
    return net.build(classifier(net, x, 4096, num_classes, dropout_first=True))
