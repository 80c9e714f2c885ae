"""What softmax is taken over, and how it is computed."""

from __future__ import annotations

from enum import Enum

__all__ = ["SoftmaxAlgorithm", "SoftmaxMode"]


class SoftmaxAlgorithm(Enum):
    """FAST exponentiates as is (overflows for large inputs), ACCURATE subtracts the maximum, LOG gives logarithms."""

    FAST = "fast"
    ACCURATE = "accurate"
    LOG = "log"


class SoftmaxMode(Enum):
    """INSTANCE normalises over C and the spatial dimensions of each image, CHANNEL over C at each place."""

    INSTANCE = "instance"
    CHANNEL = "channel"
