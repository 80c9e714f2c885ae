"""torchvision's nets with the weights of those of our zoo, which have the same layers under the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.vision import torchvision
from dnncore.nn import Graph

__all__ = ["torch_name", "twin", "weights_of"]

_PARTS = {"scale": "weight", "mean": "running_mean", "variance": "running_var"}


def twin(name: str, weights: Mapping[str, np.ndarray] | None = None, **options: Any) -> torch.nn.Module:
    """torchvision's net of a name, in float32 on the CPU.

    Args:
        name: Of a net of the zoo.
        weights: Of ours; None for those that torchvision makes.
        options: Of torchvision's function.
    """
    if name == "googlenet":
        options = {"init_weights": False, **options}
    net: torch.nn.Module = getattr(torchvision().models, name)(**options)
    state = net.state_dict()
    for ours, array in (weights or {}).items():
        state[torch_name(ours)] = torch.from_numpy(np.ascontiguousarray(array))
    net.load_state_dict(state)
    return net


def weights_of(net: torch.nn.Module, graph: Graph) -> dict[str, np.ndarray]:
    """Its weights under our names; matrices that nothing trains, which it computes, are ours."""
    state, own = net.state_dict(), graph.initialize(seed=0)
    return {
        name: state[torch_name(name)].numpy() if torch_name(name) in state else own[name] for name in graph.constant
    }


def torch_name(ours: str) -> str:
    """What torchvision calls a constant."""
    node, _, part = ours.rpartition(".")
    return f"{node}.{_PARTS.get(part, part)}"
