"""Nets: graphs of operations, bound to a handle for serving or training, and saved as model packages."""

from dnncore.nn.builder import NetBuilder
from dnncore.nn.executor import Executor
from dnncore.nn.graph import BATCH, Constant, Graph, Node, Role, Value
from dnncore.nn.model import Model
from dnncore.nn.package import Package
from dnncore.nn.parameters import Parameters
from dnncore.nn.shared_memory import SharedMemory

__all__ = [
    "BATCH",
    "Constant",
    "Executor",
    "Graph",
    "Model",
    "NetBuilder",
    "Node",
    "Package",
    "Parameters",
    "Role",
    "SharedMemory",
    "Value",
]
