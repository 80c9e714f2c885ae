"""What the tables of algorithms ask about: features that a problem may have, and ways to give it one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from dnncore import ConvolutionDescriptor, ConvolutionMode, DType, Layout, PoolingDescriptor, TensorDescriptor
from dnncore.problems import PooledConvolutionProblem, Problem
from tests.cases.case import describe

__all__ = ["FEATURES", "Feature"]

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Feature:
    """Something that a problem may have. Immutable.

    Args:
        name: Heading of its column.
        has: Whether a problem has it.
        vary: The problem with it; None where it makes no sense. BadParamError says that it would not be legal.
    """

    name: str
    has: Callable[[Problem], bool]
    vary: Callable[[Problem], Problem | None]


def _tensors(problem: Any) -> dict[str, TensorDescriptor]:
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    return {name: value for name, value in fields.items() if isinstance(value, TensorDescriptor)}


def _with_tensors(problem: Any, change: Callable[[TensorDescriptor], TensorDescriptor]) -> Problem:
    changed: Problem = dataclasses.replace(problem, **{name: change(t) for name, t in _tensors(problem).items()})
    return changed


def _with_shapes(problem: Any, shapes: Mapping[str, Shape], others: Mapping[Shape, Shape], **settings: Any) -> Problem:
    """Packed tensors of other shapes: by a field's name, or by that of what it is the gradient of, else by the shape it had."""
    tensors = {}
    for name, t in _tensors(problem).items():
        shape = shapes.get(name, shapes.get(name.removeprefix("d"), others.get(t.shape, t.shape)))
        tensors[name] = t if shape == t.shape else TensorDescriptor.packed(shape, t.dtype)
    changed: Problem = dataclasses.replace(problem, **tensors, **settings)
    return changed


def _dtype(problem: Problem) -> DType:
    return (*problem.inputs, *problem.outputs)[0].dtype


def _of_dtype(dtype: DType) -> Feature:
    def vary(problem: Problem) -> Problem:
        old = _dtype(problem)
        return _with_tensors(problem, lambda t: dataclasses.replace(t, dtype=dtype) if t.dtype is old else t)

    return Feature(dtype.value, lambda problem: _dtype(problem) is dtype, vary)


def _planar(problem: Problem) -> list[TensorDescriptor]:
    return [t for t in (*problem.inputs, *problem.outputs) if t.ndim > 2]


def _in_layout(layout: Layout) -> Feature:
    def packed(t: TensorDescriptor) -> TensorDescriptor:
        return TensorDescriptor.packed(t.shape, t.dtype, layout)

    def has(problem: Problem) -> bool:
        planar = _planar(problem)
        return bool(planar) and all(t == packed(t) for t in planar)

    def vary(problem: Problem) -> Problem | None:
        return _with_tensors(problem, lambda t: packed(t) if t.ndim > 2 else t) if _planar(problem) else None

    return Feature(layout.value, has, vary)


def _with_gaps(problem: Problem) -> Problem:
    return _with_tensors(problem, lambda t: describe(t.shape, t.dtype, "gaps"))


def _spatial_ndim(problem: Problem) -> int:
    moves = getattr(problem, "convolution", None) or getattr(problem, "pooling", None)
    return moves.spatial_ndim if isinstance(moves, ConvolutionDescriptor | PoolingDescriptor) else 0


def _has_fields(problem: Problem, *names: str) -> bool:
    return set(names) <= {field.name for field in dataclasses.fields(problem)}  # type: ignore[arg-type]


def _is_convolution(problem: Problem) -> bool:
    return _has_fields(problem, "x", "w", "y", "convolution")


def _of_spatial_ndim(ndim: int) -> Feature:
    def vary(problem: Any) -> Problem | None:
        if _has_fields(problem, "x", "y", "pooling"):
            x = (*problem.x.shape[:2], *(min(problem.x.shape[2], 16),) * ndim)
            pooling = PoolingDescriptor.make(problem.pooling.mode, 2, spatial_ndim=ndim)
            y = pooling.output_shape(x)
            return _with_shapes(problem, {"x": x, "y": y}, {problem.y.shape: y}, pooling=pooling)
        if _is_convolution(problem):
            x = (*problem.x.shape[:2], *(min(problem.x.shape[2], 16),) * ndim)
            conv = ConvolutionDescriptor.make(ndim, padding=1, groups=problem.convolution.groups)
            return _convolved(problem, x, (*problem.w.shape[:2], *(3,) * ndim), conv)
        return None

    return Feature(f"{ndim}-d", lambda problem: _spatial_ndim(problem) == ndim, vary)


def _convolved(problem: Any, x: Shape, w: Shape, conv: ConvolutionDescriptor) -> Problem:
    y = conv.output_shape(x, w)
    if isinstance(problem, PooledConvolutionProblem):
        y = problem.pooling.pooling.output_shape(y)
    bias = (1, problem.y.shape[1], *(1,) * problem.convolution.spatial_ndim)
    others = {problem.y.shape: y, bias: (1, y[1], *(1,) * conv.spatial_ndim)}
    return _with_shapes(problem, {"x": x, "w": w, "y": y}, others, convolution=conv)


def _of_convolution(name: str, has: Callable[[Any], bool], change: Callable[[Any], Problem]) -> Feature:
    return Feature(
        name,
        lambda problem: hasattr(problem, "convolution") and has(problem),
        lambda problem: change(problem) if _is_convolution(problem) else None,
    )


def _set(problem: Any, **settings: Any) -> Problem:
    conv = dataclasses.replace(problem.convolution, **settings)
    w = problem.w.shape
    return _convolved(problem, problem.x.shape, (w[0], problem.x.shape[1] // conv.groups, *w[2:]), conv)


def _depthwise(problem: Any) -> Problem:
    conv = dataclasses.replace(problem.convolution, groups=problem.x.shape[1])
    return _convolved(problem, problem.x.shape, (conv.groups, 1, *problem.w.shape[2:]), conv)


FEATURES: tuple[Feature, ...] = (
    *map(_of_dtype, DType),
    *map(_of_spatial_ndim, (1, 2, 3, 4)),
    *(_in_layout(layout) for layout in Layout),
    Feature("gaps between elements", lambda problem: not all(t.is_packed for t in problem.outputs), _with_gaps),
    _of_convolution("groups", lambda p: p.convolution.groups > 1, lambda p: _set(p, groups=2)),
    _of_convolution("depthwise", lambda p: p.x.shape[1] == p.convolution.groups > 1, _depthwise),
    _of_convolution(
        "dilation",
        lambda p: max(p.convolution.dilation) > 1,
        lambda p: _set(p, dilation=(2,) * p.convolution.spatial_ndim),
    ),
    _of_convolution(
        "true convolution",
        lambda p: p.convolution.mode is ConvolutionMode.CONVOLUTION,
        lambda p: _set(p, mode=ConvolutionMode.CONVOLUTION),
    ),
)
"""Columns of the tables, in this order."""
