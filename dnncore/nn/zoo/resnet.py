"""ResNet: blocks whose input is added to what they compute."""

from __future__ import annotations

from collections.abc import Callable

from dnncore.nn.builder import NetBuilder
from dnncore.nn.graph import BATCH, Graph

__all__ = ["resnet18", "resnet50"]

_Block = Callable[[NetBuilder, str, str, int, int], str]


def _normalized(net: NetBuilder, name: str, norm: str, x: str, channels: int, kernel: int, stride: int = 1) -> str:
    conv = net.convolution(name, x, channels, kernel, stride=stride, padding=kernel // 2, bias=False)
    return net.batch_norm(norm, conv)


def _joined(net: NetBuilder, name: str, x: str, y: str, stride: int) -> str:
    """y plus x, which is brought to the same shape where it has another."""
    if net.shape(x) != net.shape(y):
        x = _normalized(net, f"{name}.downsample.0", f"{name}.downsample.1", x, net.shape(y)[1], 1, stride)
    return net.relu(f"{name}.relu", net.plus(f"{name}.add", y, x))


def _basic(net: NetBuilder, name: str, x: str, width: int, stride: int) -> str:
    """Two 3x3 convolutions."""
    y = net.relu(f"{name}.relu1", _normalized(net, f"{name}.conv1", f"{name}.bn1", x, width, 3, stride))
    return _joined(net, name, x, _normalized(net, f"{name}.conv2", f"{name}.bn2", y, width, 3), stride)


def _bottleneck(net: NetBuilder, name: str, x: str, width: int, stride: int) -> str:
    """A 3x3 convolution between two 1x1 ones, the stride in the middle as in torchvision."""
    y = net.relu(f"{name}.relu1", _normalized(net, f"{name}.conv1", f"{name}.bn1", x, width, 1))
    y = net.relu(f"{name}.relu2", _normalized(net, f"{name}.conv2", f"{name}.bn2", y, width, 3, stride))
    return _joined(net, name, x, _normalized(net, f"{name}.conv3", f"{name}.bn3", y, 4 * width, 1), stride)


def _resnet(name: str, block: _Block, blocks: tuple[int, ...], num_classes: int, input_shape: tuple[int, ...]) -> Graph:
    net = NetBuilder(name)
    x = net.input("data", (BATCH, *input_shape))
    x = net.relu("relu", _normalized(net, "conv1", "bn1", x, 64, 7, 2))
    x = net.pooling("maxpool", x, "max", 3, stride=2, padding=1)
    for stage, count in enumerate(blocks):
        for index in range(count):
            stride = 2 if stage and not index else 1
            x = block(net, f"layer{stage + 1}.{index}", x, 64 << stage, stride)
    return net.build(net.inner_product("fc", net.global_pooling("avgpool", x), num_classes))


def resnet18(num_classes: int = 1000, input_shape: tuple[int, ...] = (3, 224, 224)) -> Graph:
    """Eighteen layers with weights (He et al., arXiv 1512.03385).

    Args:
        num_classes: K.
        input_shape: [C, H, W].
    """
    return _resnet("resnet18", _basic, (2, 2, 2, 2), num_classes, input_shape)


def resnet50(num_classes: int = 1000, input_shape: tuple[int, ...] = (3, 224, 224)) -> Graph:
    """Fifty layers with weights (He et al., arXiv 1512.03385).

    Args:
        num_classes: K.
        input_shape: [C, H, W].
    """
    return _resnet("resnet50", _bottleneck, (3, 4, 6, 3), num_classes, input_shape)
