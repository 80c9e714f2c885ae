"""What the families share: descriptors become NumPy views, results are blended into outputs.

A family gives an algorithm as a pure function of the problem and its float64 (or integer) inputs; `ReferenceAlgorithm` makes an
`Algorithm` of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dnncore.backend import Address, Launch, Stream
from dnncore.descriptors import TensorDescriptor
from dnncore.problems import Problem

__all__ = ["Array", "Compute", "ReferenceAlgorithm"]

Array = npt.NDArray[np.float64]
"""What the families compute with."""

Compute = Callable[..., Array | tuple[Array, ...]]
"""compute(problem, *inputs) -> the output's value in float64, of the output's shape; a tuple for several outputs.

Inputs come in float64, int32 ones (labels, indices) as they are.
"""


class Placed:
    """How a descriptor lies over bytes, worked out once; a launch then makes its views in a microsecond. Immutable."""

    def __init__(self, descriptor: TensorDescriptor) -> None:
        self._layout = (descriptor.shape, descriptor.dtype.numpy)
        self._strides = descriptor.byte_strides

    def over(self, address: np.ndarray) -> np.ndarray:
        """Lay it over uint8 [bytes] that start at the tensor's first element; the result shares their memory."""
        return np.ndarray(*self._layout, buffer=address, strides=self._strides)


@dataclass(frozen=True)
class ReferenceAlgorithm:
    """A pure function over float64 arrays, as an `Algorithm`. Immutable.

    Args:
        name: See `backend.Algorithm`.
        compute: The function.
        unsupported: The reason why a problem is not supported, None when it is.
    """

    name: str
    compute: Compute
    unsupported: Callable[[Any], str | None] = lambda _problem: None
    deterministic: bool = True
    math: str = "fp64"

    def supports(self, problem: Any, device: Any) -> str | None:  # noqa: ARG002 (the Protocol's signature)
        """None when the problem is supported, else the reason why not."""
        return self.unsupported(problem)

    def workspace_bytes(self, problem: Any) -> int:  # noqa: ARG002 (the Protocol's signature)
        """0: NumPy allocates its own temporaries."""
        return 0

    def prepare(self, problem: Problem, device: Any) -> Launch:  # noqa: ARG002 (the Protocol's signature)
        """Bind the function to a problem."""
        places = [Placed(descriptor) for descriptor in problem.inputs]
        targets = [Placed(descriptor) for descriptor in problem.outputs]

        def launch(
            _stream: Stream,
            alpha: float,
            inputs: Sequence[Address],
            beta: float,
            outputs: Sequence[Address],
            _workspace: Address | None,
        ) -> None:
            arrays = [_widen(p.over(address)) for p, address in zip(places, inputs, strict=True)]
            target, *others = [p.over(address) for p, address in zip(targets, outputs, strict=True)]
            # A product with beta 0 would carry a NaN over from memory that nobody has written yet.
            with np.errstate(all="ignore"):
                found = self.compute(problem, *arrays)
                first, *rest = found if isinstance(found, tuple) else (found,)
                value = first if alpha == 1 else alpha * first
                _store(target, value if beta == 0 else value + beta * _widen(target))
                for other, further in zip(others, rest, strict=True):
                    _store(other, further)

        return launch


def _widen(array: np.ndarray) -> np.ndarray:
    return array.copy() if array.dtype == np.int32 else array.astype(np.float64)


def _store(target: np.ndarray, value: Array) -> None:
    """Round to the target's type; integers saturate, and 0 stands for NaN."""
    if target.dtype.kind == "i":
        limits = np.iinfo(target.dtype)
        value = np.clip(np.rint(np.nan_to_num(value, nan=0.0)), limits.min, limits.max)
    target[...] = value
