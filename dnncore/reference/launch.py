"""What the families share: descriptors become NumPy views, results are blended into outputs.

A family gives an algorithm as a pure function of the problem and its inputs, which come in float64, or in float32 (or as the
integers that they are); `ReferenceAlgorithm` makes an `Algorithm` of it, which prepares `ReferenceWork`: function and problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import numpy as np
import numpy.typing as npt

from dnncore.backend import Address, Launch, Offer, Stream
from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.figures import DeviceFigures, Maths
from dnncore.problems import Problem
from dnncore.problems.optimizer import num_blended

__all__ = [
    "BLOCK_ELEMENTS",
    "Array",
    "Compute",
    "Index",
    "Parts",
    "ReferenceAlgorithm",
    "ReferenceWork",
    "Value",
    "exact_and_fast",
    "few",
    "in_parts",
]

Array = npt.NDArray[np.floating]
"""What the families compute with: float64, or float32 for an algorithm of `Maths.FP32`."""

Index = tuple[int | slice, ...]
"""A part of an array."""

Value = Array | tuple[Array, ...]
"""Of the output; a tuple for several outputs."""

Parts = Iterator[tuple[Index, Value]]
"""Where a part of each output lies, and its value; together they are all of it."""

Compute = Callable[..., Value | Parts]
"""compute(problem, *inputs) -> the output's value, of the output's shape or one that is broadcast to it; or its parts, one by one.

int32 inputs (labels, indices) and uint8 ones (pixels) come as they are. No input may be changed: it may be the caller's memory.
"""

BLOCK_ELEMENTS = 1 << 20
"""Of an array that is written and read again: 4 MiB of float32 stay in a core's cache, or near it."""

_TEMPORARIES = 4
"""Arrays of the output's size that a family's function has at a time, about."""

_NUMPY: dict[Maths, np.dtype] = {Maths.FP64: np.dtype(np.float64), Maths.FP32: np.dtype(np.float32)}


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
    """A function over arrays with its problem. Immutable.

    Args:
        algorithm: Name of what prepared it.
        compute: The function.
        problem: What it solves.
        maths: What it computes in: FP64 or FP32.
    """

    algorithm: str
    compute: Compute
    problem: Problem
    maths: Maths

    def bind(self) -> Launch:
        """The launch; none has a workspace."""
        problem, dtype = self.problem, _NUMPY[self.maths]
        places = [Placed(descriptor) for descriptor in (*problem.inputs, *problem.outputs)]
        num_inputs, blended = len(problem.inputs), num_blended(problem)

        def launch(_stream: Stream, alpha: float, beta: float, addresses: Sequence[Address]) -> None:
            views = [place.over(address) for place, address in zip(places, addresses[:-1], strict=True)]
            arrays, targets = [_widen(view, dtype) for view in views[:num_inputs]], views[num_inputs:]

            def blend(target: np.ndarray, index: Index, value: Array) -> None:
                # A product with beta 0 would carry a NaN over from memory that nobody has written yet.
                scaled = value if alpha == 1 else alpha * value
                _store(target[index], scaled if beta == 0 else scaled + beta * _widen(target[index], dtype))

            with np.errstate(all="ignore"):
                found = self.compute(problem, *arrays)
                for index, value in found if isinstance(found, Iterator) else [((), found)]:
                    for place, (target, one) in enumerate(
                        zip(targets, value if isinstance(value, tuple) else (value,), strict=True)
                    ):
                        if place < blended:
                            blend(target, index, one)
                        else:
                            _store(target[index], one)

        return launch

    def describe(self) -> str:
        """What a launch is."""
        return f"{self.algorithm}: NumPy in {_NUMPY[self.maths]}"


@dataclass(frozen=True, slots=True)
class ReferenceAlgorithm:
    """A pure function over arrays, as an `Algorithm`. Immutable.

    Args:
        name: See `backend.Algorithm`.
        compute: The function.
        unsupported: The reason why a problem is not supported, None when it is.
        temporaries: Elements that it writes and reads again beside the operands.
        maths: What it computes in: FP64 whatever the tensors hold, or FP32 where that is their compute type.
    """

    name: str
    compute: Compute
    unsupported: Callable[[Any], str | None] = lambda _problem: None
    temporaries: Callable[[Any], int] = lambda _problem: 0
    maths: Maths = Maths.FP64

    def offer(self, problem: Any, figures: DeviceFigures) -> Offer | str:
        """See `backend.Algorithm`: bytes of operands, copies and temporaries, and the multiply-adds, one after the other."""
        tensors = (*problem.inputs, *problem.outputs)
        reason = _not_for_float32(tensors) if self.maths is Maths.FP32 else None
        reason = reason or self.unsupported(problem)
        if reason is not None:
            return reason
        dtype = _NUMPY[self.maths]
        copied = sum(tensor.size for tensor in tensors if tensor.dtype.numpy != dtype)
        nbytes = sum(tensor.size * tensor.dtype.itemsize for tensor in tensors)
        nbytes += 2 * (copied + self.temporaries(problem)) * dtype.itemsize
        seconds = nbytes / figures.bytes_per_second + problem.macs / figures.products_per_second(self.maths)
        work = partial(ReferenceWork, self.name, self.compute, problem, self.maths)
        return Offer(figures.launch_seconds + seconds, work, math="fp64" if self.maths is Maths.FP64 else "dtype")


def _not_for_float32(tensors: Sequence[TensorDescriptor]) -> str | None:
    """float32 is the compute type of float32 and of what is narrower; sums of int8 are exact, and need more digits than it has."""
    if any(tensor.dtype is DType.FLOAT64 for tensor in tensors):
        return "computes in float32, and a tensor is float64"
    return None if tensors[0].dtype.is_floating else f"computes in float32, and takes no {tensors[0].dtype.value}"


def exact_and_fast(name: str, compute: Compute, fast: Compute | None = None) -> tuple[ReferenceAlgorithm, ...]:
    """The same in float32, which is faster and so comes first, and in float64.

    Args:
        name: Of the one in float64; the other's ends with _fp32.
        compute: What both do,
        fast: unless the one in float32 does this.
    """
    return ReferenceAlgorithm(f"{name}_fp32", fast or compute, maths=Maths.FP32), ReferenceAlgorithm(name, compute)


def few(count: int, elements: int) -> Iterator[slice]:
    """Slices of `count` things, each of as many as have BLOCK_ELEMENTS together, and at least of one.

    Args:
        count: How many there are.
        elements: What one of them has.
    """
    step = max(1, BLOCK_ELEMENTS // max(1, elements))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def in_parts(compute: Callable[..., Value], axis: int) -> Callable[..., Parts]:
    """The same for a few images or channels at a time, so that what passes between NumPy's functions stays in the cache.

    Args:
        compute: What looks at each of them alone, and uses no shape of the problem's along the axis.
        axis: 0 for images, 1 for channels; operands that have one where the output has more are shared.
    """

    @wraps(compute)
    def parts(problem: Problem, *arrays: Array) -> Parts:
        output = problem.outputs[0]
        extent, before = output.shape[axis], (slice(None),) * axis
        for some in few(extent, _TEMPORARIES * output.size // max(1, extent)):
            index = (*before, some)
            yield index, compute(problem, *(a if a.shape[axis] != extent else a[index] for a in arrays))

    return parts


def _widen(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return array if array.dtype in (np.int32, np.uint8) else array.astype(dtype, copy=False)


def _store(target: np.ndarray, value: Array) -> None:
    """Round to the target's type; integers saturate, and 0 stands for NaN."""
    if target.dtype.kind in "iu":
        limits = np.iinfo(target.dtype)
        value = np.clip(np.rint(np.nan_to_num(value, nan=0.0)), limits.min, limits.max)
    target[...] = value
