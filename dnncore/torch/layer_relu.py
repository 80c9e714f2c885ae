"""A layer, a sum and a ReLU in one operation, where that is what their modules still do."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dnncore.torch.graph_breaks import runs_untraced
from dnncore.torch.modules import MODULES
from dnncore.torch.modules.layer import TakesRelu, is_watched

__all__ = ["RELU_MODULES", "layer_relu"]

RELU_MODULES = (nn.ReLU, MODULES[nn.ReLU])


@runs_untraced
def layer_relu(layer: Any, relu: Any, x: Tensor, *residuals: Tensor) -> Tensor:
    """relu(layer(x) + residual), one after the other where a module has been replaced or is watched since."""
    y: Tensor
    if (
        isinstance(layer, TakesRelu)
        and (not residuals or layer.takes_residual)
        and not is_watched(layer)
        and (relu is None or (type(relu) in RELU_MODULES and not is_watched(relu)))
    ):
        y = layer.forward_relu(x, *residuals)
        return y
    y = layer(x)
    for residual in residuals:
        y = y + residual
    return y.relu() if relu is None else relu(y)
