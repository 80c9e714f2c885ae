"""Problems that every backend must solve: data, shared by tests, benchmarks and documentation."""

from __future__ import annotations

from tests.cases import (
    activation,
    bottleneck,
    convolution,
    cross_entropy,
    depthwise,
    dropout,
    elementwise,
    few_channels,
    fft,
    fused_convolution,
    im2col,
    image,
    inverted_residual,
    matmul,
    normalization,
    optimizer,
    pooled_convolution,
    pooling,
    reduce,
    softmax,
    space_to_depth,
    tensor,
    top_k,
    winograd,
)
from tests.cases.case import Case

__all__ = ["CASES", "Case"]

CASES: tuple[Case, ...] = (
    *convolution.CASES,
    *depthwise.CASES,
    *fused_convolution.CASES,
    *fft.CASES,
    *winograd.CASES,
    *few_channels.CASES,
    *space_to_depth.CASES,
    *im2col.CASES,
    *image.CASES,
    *bottleneck.CASES,
    *inverted_residual.CASES,
    *pooled_convolution.CASES,
    *pooling.CASES,
    *activation.CASES,
    *softmax.CASES,
    *tensor.CASES,
    *matmul.CASES,
    *elementwise.CASES,
    *reduce.CASES,
    *top_k.CASES,
    *dropout.CASES,
    *cross_entropy.CASES,
    *normalization.CASES,
    *optimizer.CASES,
)
