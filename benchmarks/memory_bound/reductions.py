"""Reductions of images and of rows, with and without the places of what was found."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.measurement import LARGE, SMALL, Measurement, Sized
from dnncore import DType, TensorDescriptor
from dnncore.descriptors import Layout, ReduceOperator
from dnncore.problems import ReduceProblem

__all__ = ["reductions"]

_ROWS = ((65536, 1000), (256, 1000))


def _images(dtype: DType, whole: tuple[int, ...], layout: Layout, sized: Sized) -> Iterator[Measurement]:
    shape = sized(whole)
    x = TensorDescriptor.packed(shape, dtype, layout)
    size = f"{layout.value} {whole[2]}"
    channels = TensorDescriptor.packed((1, shape[1], 1, 1), dtype)
    pixels = TensorDescriptor.packed((*shape[:2], 1, 1), dtype)
    yield Measurement(
        f"reduce-max to channels {size}",
        ReduceProblem(x, channels, ReduceOperator.MAX),
        (x,),
        lambda x: x.amax((0, 2, 3), keepdim=True),
    )
    yield Measurement(
        f"reduce-avg of each plane {size}",
        ReduceProblem(x, pixels, ReduceOperator.AVG),
        (x,),
        lambda x: x.mean((2, 3), keepdim=True),
    )


def reductions(dtype: DType, sized: Sized) -> Iterator[Measurement]:
    """Images in both layouts, large and small; rows; a whole tensor, as the norm of gradients is."""
    for shape in (LARGE, SMALL):
        for layout in (Layout.NCHW, Layout.NHWC):
            yield from _images(dtype, shape, layout, sized)
    for whole in _ROWS:
        rows, width = sized(whole)
        x, size = TensorDescriptor.packed((rows, width), dtype), f"{whole[0]}x{whole[1]}"
        row, column = (TensorDescriptor.packed(extents, dtype) for extents in ((rows, 1), (1, width)))
        yield Measurement(
            f"reduce-add of rows {size}",
            ReduceProblem(x, row, ReduceOperator.ADD),
            (x,),
            lambda x: x.sum(1, keepdim=True),
            length=width,
        )
        yield Measurement(
            f"reduce-add of columns {size}",
            ReduceProblem(x, column, ReduceOperator.ADD),
            (x,),
            lambda x: x.sum(0, keepdim=True),
            length=rows,
        )
        yield Measurement(
            f"reduce-max of rows, indices {size}",
            ReduceProblem(x, row, ReduceOperator.MAX, row.with_dtype(DType.INT32)),
            (x,),
            lambda x: x.max(1, keepdim=True),
        )
    x = TensorDescriptor.packed(sized(LARGE), dtype)
    yield Measurement(
        "reduce-norm2 of all 112",
        ReduceProblem(x, TensorDescriptor.packed((1, 1, 1, 1), dtype), ReduceOperator.NORM2),
        (x,),
        lambda x: torch.linalg.vector_norm(x).reshape(1, 1, 1, 1),
        length=x.size,
    )
