"""Nets by name, as structure: what configuration files refer to. All but LeNet have torchvision's layers and their names."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dnncore.nn.graph import Graph
from dnncore.nn.zoo.alexnet import alexnet
from dnncore.nn.zoo.googlenet import googlenet
from dnncore.nn.zoo.lenet import lenet
from dnncore.nn.zoo.mobilenet import mobilenet_v2
from dnncore.nn.zoo.resnet import resnet18, resnet50
from dnncore.nn.zoo.vgg import vgg16

__all__ = ["AUXILIARY", "ZOO", "alexnet", "googlenet", "lenet", "mobilenet_v2", "resnet18", "resnet50", "vgg16"]

ZOO: dict[str, Callable[..., Graph]] = {
    net.__name__: net for net in (alexnet, googlenet, lenet, mobilenet_v2, resnet18, resnet50, vgg16)
}
"""Functions that make a net from a number of classes and the shape of one input, by name; both have defaults. All of them end in
logits."""

AUXILIARY: dict[str, Callable[..., Graph]] = {"googlenet": partial(googlenet, auxiliary=True)}
"""Those with heads that are only there for training: the same nets with the heads' logits as further outputs."""
