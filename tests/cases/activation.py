"""Activations, forward and backward."""

from __future__ import annotations

from dnncore.descriptors import ActivationDescriptor, ActivationMode
from dnncore.dtypes import DType
from dnncore.problems import ActivationBackwardProblem, ActivationForwardProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

TENSORS = (
    ("nchw", (2, 3, 5, 7), DType.FLOAT32, "NCHW", 1.0, 0.0),
    ("nhwc-fp64", (2, 3, 4, 5), DType.FLOAT64, "NHWC", 1.0, 0.0),
    ("gaps-and-blend", (3, 2, 4), DType.FLOAT32, "gaps", 0.5, -3.0),
    ("vector", (1031,), DType.FLOAT32, "NCHW", 1.0, 0.0),
    ("vector-blend", (514,), DType.FLOAT32, "NCHW", 2.0, 1.0),
    ("empty", (0, 3, 2, 2), DType.FLOAT32, "NCHW", 1.0, 0.0),
    ("fp16", (3, 5, 37), DType.FLOAT16, "NCHW", 1.0, 0.0),
    ("fp16-gaps-blend", (2, 3, 4), DType.FLOAT16, "gaps", 0.5, 2.0),
    ("fp16-rows", (3, 21), DType.FLOAT16, "gaps", 1.0, 0.0),
    ("bf16", (517,), DType.BFLOAT16, "NCHW", 1.0, 1.0),
    ("bf16-rows", (2, 19), DType.BFLOAT16, "gaps", 1.0, 0.0),
    ("bf16-nhwc", (2, 3, 2, 5), DType.BFLOAT16, "gaps", 1.0, 0.0),
    ("rows", (3, 21), DType.FLOAT32, "gaps", 1.0, 0.0),
    ("fp64-rows", (2, 17), DType.FLOAT64, "gaps", 1.0, 0.0),
    ("fp64-gaps", (2, 3, 4), DType.FLOAT64, "gaps", 1.0, 0.0),
)

EVERY_MODE = ("nchw", "nhwc-fp64", "gaps-and-blend", "fp16", "bf16")
"""Every mode has a kernel for tensors in one piece, in each type; one serves all modes for other layouts."""


def _cases() -> tuple[Case, ...]:
    cases = []
    for mode in ActivationMode:
        activation = ActivationDescriptor.make(mode)
        for name, shape, dtype, layout, alpha, beta in TENSORS:
            if mode is not ActivationMode.RELU and name not in EVERY_MODE:
                continue
            t = describe(shape, dtype, layout)
            forward = ActivationForwardProblem(t, t, activation)
            backward = ActivationBackwardProblem(t, t, t, t, activation)
            cases.append(Case(f"activation-forward-{mode.value}-{name}", forward, alpha, beta))
            cases.append(Case(f"activation-backward-{mode.value}-{name}", backward, alpha, beta))
    return tuple(cases)


CASES = _cases()
