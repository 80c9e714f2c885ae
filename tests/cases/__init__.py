"""Problems that every backend must solve: data, shared by tests, benchmarks and documentation."""

from __future__ import annotations

from tests.cases import activation, convolution, cross_entropy, pooling, softmax, tensor
from tests.cases.case import Case

__all__ = ["CASES", "Case"]

CASES: tuple[Case, ...] = (
    *convolution.CASES,
    *pooling.CASES,
    *activation.CASES,
    *softmax.CASES,
    *tensor.CASES,
    *cross_entropy.CASES,
)
