"""Dropout."""

from __future__ import annotations

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import DropoutProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

# name, shape, dtype, layout of x, layout of y, probability, alpha, beta
TENSORS = (
    ("vector", (1031,), DType.FLOAT32, "NCHW", "NCHW", 0.5, 1.0, 0.0),
    ("images", (2, 3, 5, 7), DType.FLOAT32, "NCHW", "NCHW", 0.1, 1.0, 0.0),
    ("nhwc", (2, 3, 4, 5), DType.FLOAT32, "NHWC", "NHWC", 0.3, 1.0, 0.0),
    ("mixed-layouts-blend", (2, 3, 4, 5), DType.FLOAT32, "NCHW", "CHWN", 0.3, 2.0, -1.0),
    ("blend", (3, 7), DType.FLOAT32, "NCHW", "NCHW", 0.25, -2.0, 0.5),
    ("fp64", (3, 7), DType.FLOAT64, "NCHW", "NCHW", 0.9, 1.0, 0.0),
    ("fp64-gaps", (2, 7), DType.FLOAT64, "gaps", "NCHW", 0.5, 1.0, 0.0),
    ("fp16", (2, 37), DType.FLOAT16, "NCHW", "NCHW", 0.5, 1.0, 0.0),
    ("fp16-gaps", (5, 7), DType.FLOAT16, "gaps", "gaps", 0.5, 1.0, 1.0),
    ("bf16", (2, 37), DType.BFLOAT16, "NCHW", "NCHW", 0.5, 1.0, 1.0),
    ("bf16-gaps", (5, 7), DType.BFLOAT16, "gaps", "NHWC", 0.5, 1.0, 0.0),
    ("keep-all", (33,), DType.FLOAT32, "NCHW", "NCHW", 0.0, 1.0, 0.0),
    ("drop-all", (33,), DType.FLOAT32, "NCHW", "NCHW", 1.0, 1.0, 0.0),
    ("empty", (0, 3), DType.FLOAT32, "NCHW", "NCHW", 0.5, 1.0, 0.0),
)

CASES = tuple(
    Case(
        f"dropout-{name}",
        DropoutProblem(
            describe(shape, dtype, x),
            TensorDescriptor.packed((4,), DType.INT32),
            describe(shape, dtype, y),
            probability,
        ),
        alpha,
        beta,
    )
    for name, shape, dtype, x, y, probability, alpha, beta in TENSORS
)
