"""Cross-entropy of logits, forward and backward; the harness draws labels from -1 to K, so some are no class."""

from __future__ import annotations

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import CrossEntropyBackwardProblem, CrossEntropyForwardProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

TENSORS = (
    ("ten", (9, 10), DType.FLOAT32, "NCHW", 1.0, 0.0),
    ("many", (3, 1033), DType.FLOAT32, "NCHW", 0.125, 0.0),
    ("gaps-blend", (5, 7), DType.FLOAT32, "gaps", 0.2, -1.0),
    ("fp64", (4, 3), DType.FLOAT64, "NCHW", 1.0, 0.0),
    ("one-class", (3, 1), DType.FLOAT32, "NCHW", 1.0, 0.0),
    ("empty", (0, 10), DType.FLOAT32, "NCHW", 1.0, 0.0),
)


def _cases() -> tuple[Case, ...]:
    cases = []
    for name, shape, dtype, layout, alpha, beta in TENSORS:
        x, labels = describe(shape, dtype, layout), TensorDescriptor.packed(shape[:1], DType.INT32)
        loss = describe(shape[:1], dtype, layout)
        cases.append(Case(f"cross-entropy-forward-{name}", CrossEntropyForwardProblem(x, labels, loss), alpha, beta))
        cases.append(Case(f"cross-entropy-backward-{name}", CrossEntropyBackwardProblem(x, labels, x), alpha, beta))
    return tuple(cases)


CASES = _cases()
