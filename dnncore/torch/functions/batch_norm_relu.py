"""Batch normalisation in training, a residual, and ReLU: one function in place of two or three."""

from __future__ import annotations

from torch import Tensor

from dnncore.errors import BadParamError
from dnncore.torch.functions.batch_norm import batch_norm_in_training
from dnncore.torch.functions.draft import RELU
from dnncore.torch.graph_breaks import breaks_graph

__all__ = ["batch_norm_relu"]


@breaks_graph
def batch_norm_relu(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    residual: Tensor | None = None,
) -> Tensor:
    """relu(batch_norm(x) + residual) with statistics of the batch, rounded once.

    Args:
        running_mean, running_var: [C]; updated, but not by an empty batch.
        residual: Like x, in shape and dtype; None for 0.

    Parameters and running statistics as `batch_norm` takes them. One after the other, what is in between would be rounded too.
    """
    if residual is not None and (residual.shape != x.shape or residual.dtype is not x.dtype):
        raise BadParamError(
            f"residual is {residual.dtype} {tuple(residual.shape)} but x is {x.dtype} {tuple(x.shape)}; they must be alike"
        )
    settings = momentum, eps, RELU
    return batch_norm_in_training(x, running_mean, running_var, weight, bias, settings, residual)
