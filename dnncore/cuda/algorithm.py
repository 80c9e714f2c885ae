"""What an algorithm of this backend is."""

from __future__ import annotations

from typing import Protocol

from dnncore.backend import Algorithm
from dnncore.cuda.unit import Unit

__all__ = ["CudaAlgorithm"]


class CudaAlgorithm(Algorithm, Protocol):
    """An algorithm whose offers prepare calls, and that can say beforehand which kernels they may name. Immutable."""

    def units(self) -> tuple[Unit, ...]:
        """Every unit that its calls can name."""
        ...
