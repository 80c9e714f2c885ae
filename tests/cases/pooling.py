"""Pooling windows, forward and backward, in each of the three modes, and maxima with their indices.

Eight or sixteen bits hold few distinct values, so that windows of those dtypes have several equal maxima.
"""

from __future__ import annotations

from typing import Any

from dnncore.descriptors import PoolingDescriptor, PoolingMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import PoolingBackwardIndicesProblem, PoolingBackwardProblem, PoolingForwardProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

F16, BF16, F32, F64, INT8 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64, DType.INT8

# name, x, window, settings, dtype, layout, alpha, beta
WINDOWS: tuple[tuple[str, tuple[int, ...], Any, dict[str, Any], DType, str, float, float], ...] = (
    ("2x2", (2, 3, 6, 4), 2, {}, F32, "NCHW", 1.0, 0.0),
    ("3x3-stride-2-overlapping", (2, 3, 7, 7), 3, {"stride": 2}, F32, "NCHW", 1.0, 0.0),
    ("padding", (1, 2, 6, 5), 3, {"stride": 2, "padding": 1}, F32, "NCHW", 1.0, 0.0),
    ("asymmetric-padding", (1, 2, 6, 5), 3, {"stride": 2, "padding": ((0, 1), (2, 0))}, F32, "NCHW", 1.0, 0.0),
    ("ceil", (1, 2, 6, 8), 3, {"stride": 2, "ceil_mode": True}, F32, "NCHW", 1.0, 0.0),
    ("ceil-with-padding", (2, 1, 7, 6), 3, {"stride": 2, "padding": 1, "ceil_mode": True}, F32, "NCHW", 1.0, 0.0),
    ("stride-skips", (1, 2, 8, 9), 2, {"stride": 3}, F32, "NCHW", 1.0, 0.0),
    ("global", (2, 4, 5, 3), (5, 3), {}, F32, "NCHW", 1.0, 0.0),
    ("nhwc", (2, 5, 6, 6), 2, {}, F32, "NHWC", 1.0, 0.0),
    ("nhwc-padding", (2, 5, 7, 6), 3, {"stride": 2, "padding": 1}, F32, "NHWC", 1.0, 0.0),
    ("gaps-and-blend", (2, 2, 5, 6), 2, {"stride": 1}, F32, "gaps", -2.0, 0.5),
    ("several-tiles", (1, 3, 53, 133), 3, {"stride": 2, "padding": 1}, F32, "NCHW", 1.0, 0.0),
    ("several-tiles-nhwc", (1, 37, 21, 19), 2, {"stride": 2, "ceil_mode": True}, F32, "NHWC", 1.0, 0.0),
    ("many-windows-over-a-place", (1, 2, 40, 40), 9, {"stride": 1, "padding": 4}, F64, "NCHW", 1.0, 0.0),
    ("1d", (2, 3, 9), 3, {"spatial_ndim": 1, "stride": 2, "padding": 1}, F32, "NCHW", 1.0, 0.0),
    ("3d", (1, 2, 4, 4, 5), (2, 2, 3), {"spatial_ndim": 3, "stride": (2, 1, 2)}, F32, "NCHW", 1.0, 0.0),
    ("batch-0", (0, 2, 4, 4), 2, {}, F32, "NCHW", 1.0, 0.0),
    ("fp64", (1, 3, 5, 5), 3, {"stride": 2, "padding": 1}, F64, "CHWN", 1.0, 0.0),
    ("fp64-1d-blend", (2, 1, 11), 4, {"spatial_ndim": 1, "stride": 3}, F64, "NCHW", 0.5, -1.0),
    ("fp16", (2, 3, 13, 11), 3, {"stride": 2, "padding": 1}, F16, "NCHW", 1.0, 0.0),
    ("fp16-nhwc-blend", (2, 9, 6, 8), 2, {}, F16, "NHWC", -0.5, 2.0),
    ("fp16-4d", (1, 2, 3, 4, 3, 2), 2, {"spatial_ndim": 4, "stride": 1, "padding": 1}, F16, "NCHW", 1.0, 0.0),
    ("bf16", (2, 3, 13, 11), 3, {"stride": 2, "padding": 1, "ceil_mode": True}, BF16, "NCHW", 1.0, 0.0),
    ("bf16-blend", (1, 5, 9, 7), (3, 5), {"stride": (1, 2), "padding": ((2, 1), (0, 4))}, BF16, "NHWC", 1.5, -0.5),
    ("bf16-2x2", (1, 2, 8, 6), 2, {}, BF16, "gaps", 1.0, 0.0),
    ("vectors-3x3", (2, 16, 7, 6), 3, {"stride": 1, "padding": 1}, F16, "NHWC", 1.0, 0.0),
    ("vectors-3x3-stride-2", (1, 8, 9, 8), 3, {"stride": 2, "ceil_mode": True}, BF16, "NHWC", 0.5, -1.0),
    ("vectors-2x2", (2, 12, 5, 7), 2, {"stride": 2, "padding": 1}, F32, "NHWC", 1.0, 2.0),
    ("vectors-global", (2, 8, 5, 6), (5, 6), {}, F16, "NHWC", 1.0, 0.0),
    ("int8", (2, 3, 13, 11), 3, {"stride": 2, "padding": 1}, INT8, "NCHW", 1.0, 0.0),
    ("int8-nhwc-saturating", (2, 5, 6, 6), 2, {}, INT8, "NHWC", 1.75, 0.0),
)

ROLLING: tuple[tuple[str, tuple[int, ...], dict[str, Any], DType, str, float, float], ...] = (
    ("odd-widths", (2, 8, 7, 9), {"stride": 1, "padding": 1}, F16, "NHWC", 1.0, 0.0),
    ("no-padding", (1, 16, 4, 8), {"stride": 1}, BF16, "NHWC", 1.0, 0.0),
    ("one-window", (3, 8, 3, 3), {"stride": 2}, F16, "NHWC", 1.0, 0.0),
    ("one-place", (3, 8, 1, 1), {"stride": 1, "padding": 1}, BF16, "NHWC", 1.0, 0.0),
    ("widest-padding", (1, 24, 2, 1), {"stride": 1, "padding": 2}, F16, "NHWC", 1.0, 0.0),
    ("padding-of-four-kinds", (1, 8, 5, 6), {"stride": 1, "padding": ((0, 2), (2, 1))}, F16, "NHWC", 1.0, 0.0),
    ("padding-of-four-kinds-stride-2", (2, 8, 5, 6), {"stride": 2, "padding": ((2, 0), (1, 2))}, BF16, "NHWC", 1.0, 0.0),
    ("ceil", (2, 40, 8, 10), {"stride": 2, "ceil_mode": True}, F16, "NHWC", 1.0, 0.0),
    ("ceil-with-padding", (1, 8, 6, 7), {"stride": 2, "padding": 1, "ceil_mode": True}, F16, "NHWC", 1.0, 0.0),
    ("ceil-padding-behind", (1, 8, 6, 5), {"stride": 2, "padding": ((0, 2), (0, 2)), "ceil_mode": True}, BF16, "NHWC", 1.0, 0.0),
    ("groups-of-channels", (1, 8 * 34, 4, 3), {"stride": 1, "padding": 1}, F16, "NHWC", 1.0, 0.0),
    ("blend", (2, 8, 6, 6), {"stride": 1, "padding": 1}, F16, "NHWC", -0.5, 2.0),
    ("blend-stride-2", (2, 16, 6, 7), {"stride": 2, "padding": 1}, BF16, "NHWC", 1.0, 1.0),
    ("views", (2, 16, 5, 6), {"stride": 1, "padding": 1}, F16, "views", 1.0, 0.0),
    ("views-blend-stride-2", (2, 8, 7, 5), {"stride": 2, "padding": 1}, BF16, "views", 2.0, 0.5),
)  # fmt: skip
"""As WINDOWS, of 3 x 3 places: the corners of the algorithm "rolling"."""


def _view(shape: tuple[int, ...], dtype: DType) -> TensorDescriptor:
    """A part of the channels, of the columns and of the rows of an NHWC tensor, whose strides are multiples of 8 elements."""
    n, c, h, w = shape
    column = c + 24
    row = (w + 1) * column + 8
    return TensorDescriptor(dtype, (n, c, h, w), ((h + 2) * row, 1, row, column))


VECTORS: tuple[tuple[str, tuple[int, ...], Any, dict[str, Any], DType, str, float, float], ...] = (
    ("3x3-odd-widths", (2, 8, 7, 9), 3, {"stride": 1, "padding": 1}, F16, "NHWC", 1.0, 0.0),
    ("3x3-no-padding", (1, 16, 4, 8), 3, {"stride": 1}, BF16, "NHWC", 1.0, 0.0),
    ("3x3-one-window", (3, 8, 3, 3), 3, {"stride": 2}, F16, "NHWC", 1.0, 0.0),
    ("3x3-one-place", (3, 4, 1, 1), 3, {"stride": 1, "padding": 1}, F32, "NHWC", 1.0, 0.0),
    ("3x3-widest-padding", (1, 24, 2, 1), 3, {"stride": 1, "padding": 2}, F16, "NHWC", 1.0, 0.0),
    ("3x3-padding-of-four-kinds", (1, 8, 5, 6), 3, {"stride": 1, "padding": ((0, 2), (2, 1))}, F32, "NHWC", 1.0, 0.0),
    ("3x3-padding-of-four-kinds-stride-2", (2, 8, 5, 6), 3, {"stride": 2, "padding": ((2, 0), (1, 2))}, BF16, "NHWC", 1.0, 0.0),
    ("3x3-ceil", (2, 40, 8, 10), 3, {"stride": 2, "ceil_mode": True}, F16, "NHWC", 1.0, 0.0),
    ("3x3-ceil-with-padding", (1, 8, 6, 7), 3, {"stride": 2, "padding": 1, "ceil_mode": True}, F32, "NHWC", 1.0, 0.0),
    ("3x3-groups-of-channels", (1, 8 * 34, 4, 3), 3, {"stride": 1, "padding": 1}, F16, "NHWC", 1.0, 0.0),
    ("3x3-blend", (2, 8, 6, 6), 3, {"stride": 1, "padding": 1}, F16, "NHWC", -0.5, 2.0),
    ("3x3-blend-stride-2", (2, 16, 6, 7), 3, {"stride": 2, "padding": 1}, BF16, "NHWC", 1.0, 1.0),
    ("3x3-views", (2, 16, 5, 6), 3, {"stride": 1, "padding": 1}, F16, "views", 1.0, 0.0),
    ("2x2", (2, 8, 6, 4), 2, {"stride": 2}, F16, "NHWC", 1.0, 0.0),
    ("2x2-rest", (1, 12, 7, 5), 2, {"stride": 2}, F32, "NHWC", 1.0, 0.0),
    ("2x2-padding-ceil-blend", (2, 8, 6, 7), 2, {"stride": 2, "padding": 1, "ceil_mode": True}, BF16, "NHWC", 2.0, -1.0),
    ("2x2-views", (1, 8, 5, 6), 2, {"stride": 2}, F16, "views", 1.0, 0.0),
)  # fmt: skip
"""As WINDOWS: the corners of "rolling" backward, and of "channels" with indices. The packed ones are tried in NCHW, too."""


def _rolling_cases() -> tuple[Case, ...]:
    cases = []
    for name, shape, settings, dtype, layout, alpha, beta in ROLLING:
        for mode in PoolingMode:
            pooling = PoolingDescriptor.make(mode, 3, **settings)
            x, y = (
                _view(extents, dtype) if layout == "views" else describe(extents, dtype, layout)
                for extents in (shape, pooling.output_shape(shape))
            )
            problem = PoolingForwardProblem(x, y, pooling)
            cases.append(Case(f"pooling-forward-rolling-{mode.value}-{name}", problem, alpha, beta, ("rolling",)))
    return tuple(cases)


def _cases_of_vectors() -> tuple[Case, ...]:
    cases = []
    of_planes = [(f"{name}-planes", *rest[:4], "NCHW", *rest[5:]) for name, *rest in VECTORS if rest[4] == "NHWC"]
    for name, shape, window, settings, dtype, layout, alpha, beta in (*VECTORS, *of_planes):

        def laid_out(extents: tuple[int, ...], of: DType, layout: str = layout) -> TensorDescriptor:
            return _view(extents, of) if layout == "views" else describe(extents, of, layout)

        for mode in PoolingMode:
            pooling = PoolingDescriptor.make(mode, window, **settings)
            x, y, indices = (
                laid_out(shape, dtype),
                *(laid_out(pooling.output_shape(shape), of) for of in (dtype, DType.INT32)),
            )
            if mode is PoolingMode.MAX:
                forward = PoolingForwardProblem(x, y, pooling, indices)
                algorithm = "rolling_planes" if layout == "NCHW" else "channels"
                cases.append(Case(f"pooling-forward-vectors-indices-{name}", forward, alpha, beta, (algorithm,)))
                backward = PoolingBackwardIndicesProblem(y, indices, x, pooling)
                cases.append(Case(f"pooling-backward-vectors-indices-{name}", backward, alpha, beta, ("rolling",)))
            if layout == "NCHW":
                forward = PoolingForwardProblem(x, y, pooling)
                label = f"pooling-forward-{mode.value}-{name}"
                cases.append(Case(label, forward, alpha, beta, ("rolling_planes",)))
            gradient = PoolingBackwardProblem(y, y, x, x, pooling)
            label = f"pooling-backward-vectors-{mode.value}-{name}"
            cases.append(Case(label, gradient, alpha, beta, ("rolling",)))
    return tuple(cases)


def _cases() -> tuple[Case, ...]:
    cases = []
    for name, shape, window, settings, dtype, layout, alpha, beta in WINDOWS:
        for mode in PoolingMode:
            pooling = PoolingDescriptor.make(mode, window, **settings)
            x = describe(shape, dtype, layout)
            y = describe(pooling.output_shape(shape), dtype, layout)
            label = f"{mode.value}-{name}"
            cases.append(Case(f"pooling-forward-{label}", PoolingForwardProblem(x, y, pooling), alpha, beta))
            if dtype is not INT8:
                backward = PoolingBackwardProblem(y, y, x, x, pooling)
                cases.append(Case(f"pooling-backward-{label}", backward, alpha, beta))
            if mode is PoolingMode.MAX:
                # In another layout than y, where y has one of its own.
                indices = describe(y.shape, DType.INT32, "NCHW" if layout == "NHWC" else layout)
                with_indices = PoolingForwardProblem(x, y, pooling, indices)
                cases.append(Case(f"pooling-forward-indices-{name}", with_indices, alpha, beta))
                if dtype is not INT8:
                    backward_indices = PoolingBackwardIndicesProblem(y, indices, x, pooling)
                    cases.append(Case(f"pooling-backward-indices-{name}", backward_indices, alpha, beta))
    return tuple(cases)


CASES = (*_cases(), *_rolling_cases(), *_cases_of_vectors())
