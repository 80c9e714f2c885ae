"""Softmax: every algorithm and mode, forward and backward."""

from __future__ import annotations

from dnncore.descriptors import SoftmaxAlgorithm, SoftmaxMode, TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import SoftmaxBackwardProblem, SoftmaxForwardProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

F16, BF16, F32, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64

# name, shape, dtype, layout, alpha, beta
TENSORS = (
    ("matrix", (5, 10), F32, "NCHW", 1.0, 0.0),
    ("one-class", (3, 1), F32, "NCHW", 1.0, 0.0),
    ("no-classes", (3, 0, 2), F32, "NCHW", 1.0, 0.0),
    ("many-classes", (2, 1237), F32, "NCHW", 1.0, 0.0),
    ("more-than-fit-in-registers", (1, 32771), F32, "NCHW", 1.0, 0.0),
    ("images", (2, 7, 3, 4), F32, "NCHW", 1.0, 0.0),
    ("places-side-by-side", (2, 35, 5, 7), F32, "NCHW", 1.0, 0.0),
    ("images-nhwc-fp64", (2, 5, 3, 3), F64, "NHWC", 1.0, 0.0),
    ("fp64", (1, 16390), F64, "NCHW", 1.0, 0.0),
    ("fp64-places", (1, 34, 33), F64, "NCHW", 1.0, 0.5),
    ("gaps-and-blend", (2, 6, 2, 3), F32, "gaps", 2.0, 0.25),
    ("fp16", (3, 101), F16, "NCHW", 1.0, 0.0),
    ("fp16-blend", (2, 3, 9, 5), F16, "gaps", 1.5, -0.5),
    ("fp16-places", (1, 35, 4, 9), F16, "NCHW", 1.0, 0.0),
    ("fp16-long", (1, 32776), F16, "NCHW", 1.0, 0.0),
    ("bf16", (3, 19), BF16, "NCHW", 1.0, 0.0),
    ("bf16-places", (2, 40, 6, 6), BF16, "NCHW", 1.0, 0.0),
    ("bf16-long", (1, 32780), BF16, "NCHW", 0.5, 1.0),
    ("short-packs", (37, 16), F32, "NCHW", 1.0, 0.0),
    ("packs-in-a-block", (2, 1240), F32, "NCHW", 2.0, 0.25),
    ("fp16-packs", (3, 104), F16, "NCHW", 2.0, 0.5),
    ("bf16-packs-in-a-block", (2, 1104), BF16, "NCHW", 1.0, 0.0),
    ("fills-a-block", (1, 32768), F32, "NCHW", 1.0, 0.0),
    ("short-packs-apart", (37, 16), F32, "apart", 1.0, 0.0),
    ("fp16-packs-apart", (9, 104), F16, "apart", 1.0, 0.5),
    ("empty", (0, 4), F32, "NCHW", 1.0, 0.0),
)


def _rows_apart(shape: tuple[int, ...], dtype: DType) -> TensorDescriptor:
    """Rows of neighbours with one element between them, so that few begin where a pack may."""
    _, length = shape
    return TensorDescriptor(dtype, shape, (length + 1, 1))


def _cases() -> tuple[Case, ...]:
    cases = []
    for algorithm in SoftmaxAlgorithm:
        for mode in SoftmaxMode:
            for name, shape, dtype, layout, alpha, beta in TENSORS:
                t = _rows_apart(shape, dtype) if layout == "apart" else describe(shape, dtype, layout)
                label = f"{algorithm.value}-{mode.value}-{name}"
                forward = SoftmaxForwardProblem(t, t, algorithm, mode)
                backward = SoftmaxBackwardProblem(t, t, t, algorithm, mode)
                cases.append(Case(f"softmax-forward-{label}", forward, alpha, beta))
                cases.append(Case(f"softmax-backward-{label}", backward, alpha, beta))
    return tuple(cases)


CASES = _cases()
