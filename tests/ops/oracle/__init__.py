"""What the answer is: PyTorch's CPU build in float64, and the magnitude of what went into each element.

The gradients come from autograd, so that nothing here shares a formula with the code under test. Four spatial dimensions, which
PyTorch does not have, come from a loop over every index. One module a family registers its problems.
"""

from __future__ import annotations

# ruff: noqa: F401 (they register)
from tests.ops.oracle import (
    activation,
    blocks,
    convolution,
    cross_entropy,
    dropout,
    fused_convolution,
    im2col,
    image,
    normalization,
    optimizer,
    pooled_convolution,
    pooling,
    softmax,
    tensor,
    top_k,
)
from tests.ops.oracle.answer import Answer, make_inputs, solve

__all__ = ["Answer", "make_inputs", "solve"]
