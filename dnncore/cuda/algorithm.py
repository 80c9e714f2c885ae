"""What an algorithm of this backend is."""

from __future__ import annotations

from typing import Any, Protocol

from dnncore.backend import Algorithm
from dnncore.cuda.unit import Unit
from dnncore.figures import DeviceFigures

__all__ = ["BoundedAnywhere", "CudaAlgorithm"]


class CudaAlgorithm(Algorithm, Protocol):
    """An algorithm whose offers prepare calls, and that can say beforehand which kernels they may name. Immutable."""

    def units(self) -> tuple[Unit, ...]:
        """Every unit that its calls can name."""
        ...


class BoundedAnywhere(CudaAlgorithm, Protocol):
    """An algorithm whose bound holds wherever its operands lie, so that for copies of them it is the same. Immutable."""

    def least_seconds(self, problem: Any, figures: DeviceFigures) -> float:
        """As that of `bounds.Bounded`, which it is."""
        ...
