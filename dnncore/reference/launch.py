"""What the families share: descriptors become NumPy views, results are blended into outputs.

A family gives an algorithm as a pure function of the problem and its float64 (or integer) inputs; `ReferenceAlgorithm` makes an
`Algorithm` of it, which prepares `ReferenceWork`: the function and the problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dnncore.backend import Address, Launch, Offer, Stream
from dnncore.descriptors import TensorDescriptor
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import Problem

__all__ = ["Array", "Compute", "ReferenceAlgorithm", "ReferenceWork"]

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


@dataclass(frozen=True, slots=True)
class ReferenceWork:
    """A function over float64 arrays with its problem. Immutable.

    Args:
        algorithm: Name of what prepared it.
        compute: The function.
        problem: What it solves.
    """

    algorithm: str
    compute: Compute
    problem: Problem

    def bind(self) -> Launch:
        """The launch; none has a workspace."""
        problem = self.problem
        places = [Placed(descriptor) for descriptor in (*problem.inputs, *problem.outputs)]
        num_inputs = len(problem.inputs)

        def launch(_stream: Stream, alpha: float, beta: float, addresses: Sequence[Address]) -> None:
            views = [place.over(address) for place, address in zip(places, addresses[:-1], strict=True)]
            arrays, (target, *others) = [_widen(view) for view in views[:num_inputs]], views[num_inputs:]
            # A product with beta 0 would carry a NaN over from memory that nobody has written yet.
            with np.errstate(all="ignore"):
                found = self.compute(problem, *arrays)
                first, *rest = found if isinstance(found, tuple) else (found,)
                value = first if alpha == 1 else alpha * first
                _store(target, value if beta == 0 else value + beta * _widen(target))
                for other, further in zip(others, rest, strict=True):
                    _store(other, further)

        return launch

    def describe(self) -> str:
        """What a launch is."""
        return f"{self.algorithm}: NumPy in float64"


@dataclass(frozen=True, slots=True)
class ReferenceAlgorithm:
    """A pure function over float64 arrays, as an `Algorithm`. Immutable.

    Args:
        name: See `backend.Algorithm`.
        compute: The function.
        unsupported: The reason why a problem is not supported, None when it is.
        temporaries: Elements that it writes and reads again beside the operands.
    """

    name: str
    compute: Compute
    unsupported: Callable[[Any], str | None] = lambda _problem: None
    temporaries: Callable[[Any], int] = lambda _problem: 0

    def offer(self, problem: Any, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`: the bytes of the operands and of temporaries, and the multiply-adds, one after the other."""
        reason = self.unsupported(problem)
        if reason is not None:
            return reason
        nbytes = sum(tensor.size * tensor.dtype.itemsize for tensor in (*problem.inputs, *problem.outputs))
        nbytes += 2 * self.temporaries(problem) * np.dtype(np.float64).itemsize
        seconds = nbytes / figures.bytes_per_second + problem.macs / figures.products_per_second(Maths.FP64)
        work = partial(ReferenceWork, self.name, self.compute, problem)
        return Offer(figures.launch_seconds + seconds, work, math="fp64")


def _widen(array: np.ndarray) -> np.ndarray:
    return array.copy() if array.dtype == np.int32 else array.astype(np.float64)


def _store(target: np.ndarray, value: Array) -> None:
    """Round to the target's type; integers saturate, and 0 stands for NaN."""
    if target.dtype.kind == "i":
        limits = np.iinfo(target.dtype)
        value = np.clip(np.rint(np.nan_to_num(value, nan=0.0)), limits.min, limits.max)
    target[...] = value
