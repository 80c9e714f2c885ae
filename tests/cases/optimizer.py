"""Steps of optimizers: parameters of a few elements and of several chunks, more than a launch takes, every dtype."""

from __future__ import annotations

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import AdamProblem, MomentumProblem, Problem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

FLOATING = tuple(dtype for dtype in DType if dtype.is_floating)


def _weights(dtype: DType) -> tuple[TensorDescriptor, ...]:
    """None of them is a whole number of packs, or of chunks, but for one; the last has two chunks of 16-bit elements."""
    shapes = ((3,), (5, 3, 3, 3), (0, 4), (128,), (1, 8209))
    return tuple(describe(shape, dtype, "NHWC" if len(shape) == 4 else "NCHW") for shape in shapes)


def _cases() -> list[Case]:
    cases = []
    for dtype in FLOATING:
        weights = _weights(dtype)
        problems: dict[str, Problem] = {
            "momentum": MomentumProblem(weights, 0.9),
            "nesterov-decay": MomentumProblem(weights, 0.75, True, 0.125),
            "adam": AdamProblem(weights, 0.9, 0.99, 1e-3),
            "adam-decay": AdamProblem(weights, 0.875, 0.75, 1e-2, 0.25),
        }
        cases += [Case(f"{name}-{dtype.value}", problem, -0.25, 1.0) for name, problem in problems.items()]
    weights = _weights(DType.FLOAT32)
    many = tuple(describe((1 + 37 * i % 61,), DType.FLOAT32, "NCHW") for i in range(131))
    return [
        *cases,
        Case("descent", MomentumProblem(weights, 0.0), -0.5, 1.0),
        Case("descent-decay", MomentumProblem(weights, 0.0, decay=0.5), -0.5, 1.0),
        Case("momentum-alone", MomentumProblem(weights[1:2], 0.5), 1.0, 0.0),
        Case("momentum-many", MomentumProblem(many, 0.9), -0.25, 1.0),
        Case("adam-many", AdamProblem(many, 0.9, 0.99, 1e-3), -0.25, 0.5),
    ]


CASES: tuple[Case, ...] = tuple(_cases())
