"""What the pooling kernels share of a problem: which operands there are, where its windows lie, what is done with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dnncore.cuda.params import FLOATING
from dnncore.descriptors import PoolingMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import PoolingBackwardIndicesProblem, PoolingBackwardProblem, PoolingForwardProblem

__all__ = [
    "DTYPES",
    "MODES",
    "WALKED_WINDOWS",
    "WINDOW_FIELDS",
    "Geometry",
    "Operands",
    "PoolingProblem",
    "mode_of",
    "operands_of",
    "why_not_walked",
    "window_places",
    "windows_of",
]

PoolingProblem = PoolingForwardProblem | PoolingBackwardProblem | PoolingBackwardIndicesProblem

MODES = {"max": "kMax", "indices": "kIndices", "average": "kAverage"}
"""Enumerators of `dnncore::PoolingMode`, in its order; "indices" are maxima whose places are kept."""

WALKED_WINDOWS = ((3, 1), (3, 2), (2, 2))
"""Extents and strides of those that there are kernels for whose threads walk down rows, the same along rows and columns."""

WINDOW_FIELDS = tuple((name, "<i4", 2) for name in ("x_extent", "y_extent", "before", "counted_low", "counted_high"))
"""Of the parameter structs of those kernels; `windows_of` fills them in."""

DTYPES = {"forward": (*FLOATING, DType.INT8), "backward": FLOATING}
"""Element types that there are kernels for."""


def mode_of(problem: PoolingProblem) -> str:
    """Which of MODES a problem asks for."""
    if isinstance(problem, PoolingBackwardIndicesProblem) or (
        isinstance(problem, PoolingForwardProblem) and problem.indices is not None
    ):
        return "indices"
    return "max" if problem.pooling.mode is PoolingMode.MAX else "average"


@dataclass(frozen=True, slots=True)
class Operands:
    """A problem's operands as the parameter structs call them. Immutable.

    Args:
        fields: Those that take the operands' addresses, in the problem's order.
        views: Tensors beside the blended output, whose views are `<name>_view`.
    """

    fields: tuple[str, ...]
    views: dict[str, TensorDescriptor]


def operands_of(problem: PoolingProblem) -> Operands:
    """Name a problem's operands."""
    if isinstance(problem, PoolingBackwardIndicesProblem):
        return Operands(("dy", "indices", "output"), {"dy": problem.dy, "indices": problem.indices})
    if isinstance(problem, PoolingBackwardProblem):
        return Operands(("y", "dy", "x", "output"), {"dy": problem.dy, "x": problem.x})
    if problem.indices is None:
        return Operands(("x", "output"), {"x": problem.x})
    return Operands(("x", "output", "indices"), {"x": problem.x, "indices": problem.indices})


def windows_of(problem: PoolingProblem) -> dict[str, tuple[int, ...]]:
    """Where windows over two dimensions lie, by WINDOW_FIELDS."""
    geometry = Geometry.of(problem)
    return {
        "x_extent": geometry.x,
        "y_extent": geometry.y,
        "before": tuple(before for before, _ in problem.pooling.padding),
        "counted_low": geometry.counted_low,
        "counted_high": geometry.counted_high,
    }


def why_not_walked(problem: PoolingProblem) -> str | None:
    """None where windows are among WALKED_WINDOWS, or not over two dimensions at all, else the reason why not."""
    window, stride = problem.pooling.window, problem.pooling.stride
    if len(window) != 2 or (len({*window}) == len({*stride}) == 1 and (window[0], stride[0]) in WALKED_WINDOWS):
        return None
    known = ", ".join(f"{extent} x {extent} with stride {each}" for extent, each in WALKED_WINDOWS)
    return f"windows of {window} with strides {stride}; it is for {known}"


def window_places(problem: PoolingProblem) -> int:
    """Places of all windows together, padding among them."""
    pooled = problem.y if isinstance(problem, PoolingForwardProblem) else problem.dy
    return pooled.size * math.prod(problem.pooling.window)


@dataclass(frozen=True, slots=True)
class Geometry:
    """Spatial extents, and the places of the padded input that an average counts: from `counted_low` to before `counted_high`.

    Padding is counted as far as it goes, or not at all; places of a ceil-mode window behind it are not. Immutable.
    """

    x: tuple[int, ...]
    y: tuple[int, ...]
    counted_low: tuple[int, ...]
    counted_high: tuple[int, ...]

    @classmethod
    def of(cls, problem: PoolingProblem) -> Geometry:
        """Take them from whichever operands have them."""
        if isinstance(problem, PoolingBackwardIndicesProblem):
            x, y = problem.dx.shape[2:], problem.dy.shape[2:]
        else:
            x, y = problem.x.shape[2:], problem.y.shape[2:]
        padding = problem.pooling.padding
        if problem.pooling.mode is not PoolingMode.AVERAGE_INCLUDE_PADDING:
            return cls(x, y, (0,) * len(x), x)
        low = tuple(-before for before, _ in padding)
        high = tuple(extent + after for extent, (_, after) in zip(x, padding, strict=True))
        return cls(x, y, low, high)
