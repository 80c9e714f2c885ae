"""Softmax: every algorithm and mode, forward and backward."""

from __future__ import annotations

from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode
from dnncore.dtypes import DType
from dnncore.problems import SoftmaxBackwardProblem, SoftmaxForwardProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

TENSORS = (
    ("matrix", (5, 10), DType.FLOAT32, "NCHW", 1.0, 0.0),
    ("one-class", (3, 1), DType.FLOAT32, "NCHW", 1.0, 0.0),
    ("many-classes", (2, 1237), DType.FLOAT32, "NCHW", 1.0, 0.0),
    ("images", (2, 7, 3, 4), DType.FLOAT32, "NCHW", 1.0, 0.0),
    ("images-nhwc-fp64", (2, 5, 3, 3), DType.FLOAT64, "NHWC", 1.0, 0.0),
    ("gaps-and-blend", (2, 6, 2, 3), DType.FLOAT32, "gaps", 2.0, 0.25),
    ("empty", (0, 4), DType.FLOAT32, "NCHW", 1.0, 0.0),
)


def _cases() -> tuple[Case, ...]:
    cases = []
    for algorithm in SoftmaxAlgorithm:
        for mode in SoftmaxMode:
            for name, shape, dtype, layout, alpha, beta in TENSORS:
                t = describe(shape, dtype, layout)
                label = f"{algorithm.value}-{mode.value}-{name}"
                forward = SoftmaxForwardProblem(t, t, algorithm, mode)
                backward = SoftmaxBackwardProblem(t, t, t, algorithm, mode)
                cases.append(Case(f"softmax-forward-{label}", forward, alpha, beta))
                cases.append(Case(f"softmax-backward-{label}", backward, alpha, beta))
    return tuple(cases)


CASES = _cases()
