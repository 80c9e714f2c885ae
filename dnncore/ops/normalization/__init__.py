"""Batch, layer, group and RMS normalisation, and local response normalisation; one module a family.

Statistics that are saved for the backward operation are in the compute type of x: float64 for float64, float32 for all others.
Each of the others (scale, bias, their gradients, statistics that are given or running) is in that or in the dtype of x.
"""

from dnncore.ops.normalization.batch_norm import batch_norm_backward, batch_norm_forward, batch_norm_inference
from dnncore.ops.normalization.group_norm import group_norm_backward, group_norm_forward
from dnncore.ops.normalization.layer_norm import (
    layer_norm_backward,
    layer_norm_forward,
    rms_norm_backward,
    rms_norm_forward,
)
from dnncore.ops.normalization.lrn import lrn_backward, lrn_forward

__all__ = [
    "batch_norm_backward",
    "batch_norm_forward",
    "batch_norm_inference",
    "group_norm_backward",
    "group_norm_forward",
    "layer_norm_backward",
    "layer_norm_forward",
    "lrn_backward",
    "lrn_forward",
    "rms_norm_backward",
    "rms_norm_forward",
]
