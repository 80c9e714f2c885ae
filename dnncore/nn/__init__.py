"""Nets: layers joined by name, bound to a handle for serving or training, and saved as model packages."""

from dnncore.nn.executor import Executor, Phase
from dnncore.nn.layer import Layer, ParameterSpec
from dnncore.nn.net import Net, Node
from dnncore.nn.package import Package
from dnncore.nn.parameters import Parameters

__all__ = ["Executor", "Layer", "Net", "Node", "Package", "ParameterSpec", "Parameters", "Phase"]
