"""MobileNetV2: channels spread out, filtered one by one, and brought together again."""

from __future__ import annotations

from dnncore.nn.builder import NetBuilder
from dnncore.nn.graph import BATCH, Graph

__all__ = ["mobilenet_v2"]

_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks, and stride of the first of them (table 2 of the paper)."""


def _normalized(
    net: NetBuilder, name: str, norm: str, x: str, channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> str:
    conv = net.convolution(name, x, channels, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return net.batch_norm(norm, conv)


def _basic(net: NetBuilder, name: str, x: str, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
    norm = _normalized(net, f"{name}.0", f"{name}.1", x, channels, kernel, stride, groups)
    return net.activation(f"{name}.2", norm, "clipped_relu", 6.0)


def _block(net: NetBuilder, name: str, x: str, expansion: int, channels: int, stride: int) -> str:
    inputs = net.shape(x)[1]
    width, place, y = inputs * expansion, 0, x
    if expansion != 1:
        y, place = _basic(net, f"{name}.conv.0", y, width, 1), 1
    y = _basic(net, f"{name}.conv.{place}", y, width, 3, stride, groups=width)
    y = _normalized(net, f"{name}.conv.{place + 1}", f"{name}.conv.{place + 2}", y, channels, 1)
    return net.plus(f"{name}.add", x, y) if stride == 1 and inputs == channels else y


def mobilenet_v2(num_classes: int = 1000, input_shape: tuple[int, ...] = (3, 224, 224)) -> Graph:
    """Seventeen inverted residuals (Sandler et al., arXiv 1801.04381).

    Args:
        num_classes: K.
        input_shape: [C, H, W].
    """
    net = NetBuilder("mobilenet_v2")
    x, index = _basic(net, "features.0", net.input("data", (BATCH, *input_shape)), 32, 3, 2), 1
    for expansion, channels, blocks, stride in _STAGES:
        for block in range(blocks):
            x = _block(net, f"features.{index}", x, expansion, channels, 1 if block else stride)
            index += 1
    x = net.global_pooling("avgpool", _basic(net, f"features.{index}", x, 1280, 1))
    return net.build(net.inner_product("classifier.1", net.dropout("classifier.0", x, 0.2), num_classes))
