"""A fully connected layer's product and the products of its gradients, beside PyTorch's with cuBLAS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.kernels.precision import Precision
from benchmarks.measurement import Measurement
from benchmarks.net_layers import LinearGeometry
from dnncore import TensorDescriptor
from dnncore.problems import MatmulProblem

__all__ = ["linear"]


def _scaled(inputs: Sequence[torch.Tensor]) -> None:
    """The second factor divided by the root of a sum's terms, so that results are as large as inputs."""
    inputs[1].mul_(inputs[1].shape[0] ** -0.5)


def linear(
    layer: LinearGeometry, direction: str, precision: Precision, fields: Mapping[str, Any] | None = None
) -> Measurement:
    """One of its products.

    Args:
        layer: Its geometry.
        direction: "forward", y = x w'; "backward_data", dx = dy w; "backward_filter", dw = dy' x.
        precision: Element type.
        fields: Of its row, beside layer and direction.
    """
    x, w, y = (
        TensorDescriptor.packed(shape, precision.dtype)
        for shape in ((layer.n, layer.c), (layer.k, layer.c), (layer.n, layer.k))
    )
    a, b, c = {
        "forward": (x, w.transposed(1, 0), y),
        "backward_data": (y, w, x),
        "backward_filter": (y.transposed(1, 0), x, w),
    }[direction]
    return Measurement(
        *(f"{layer.name} {direction}", MatmulProblem(a, b, c), (x, w, y), torch.matmul),
        prepare=_scaled,
        length=a.shape[1],
        fields={"layer": layer.name, **(fields or {}), "direction": direction},
    )
