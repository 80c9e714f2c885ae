"""Cross-entropy of logits, forward and backward; the harness draws classes from -1 to K, so some are none."""

from __future__ import annotations

from dnncore.descriptors import CrossEntropyDescriptor
from dnncore.dtypes import DType
from dnncore.problems import CrossEntropyBackwardProblem, CrossEntropyForwardProblem
from tests.cases.case import Case, describe

__all__ = ["CASES"]

F16, BF16, F32, F64 = DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64
PLAIN, SMOOTH, IGNORING = (
    CrossEntropyDescriptor(),
    CrossEntropyDescriptor(label_smoothing=0.1),
    CrossEntropyDescriptor(label_smoothing=0.3, ignore_index=2),
)

# name, shape of x, its dtype, the loss's, layout, settings, whether labels are probabilities, alpha, beta
TENSORS = (
    ("ten", (9, 10), F32, F32, "NCHW", PLAIN, False, 1.0, 0.0),
    ("many", (3, 1033), F32, F32, "NCHW", PLAIN, False, 0.125, 0.0),
    ("more-than-fit-in-registers", (1, 32771), F32, F32, "NCHW", PLAIN, False, 1.0, 0.0),
    ("gaps-blend", (5, 7), F32, F32, "gaps", PLAIN, False, 0.2, -1.0),
    ("fp64", (4, 3), F64, F64, "NCHW", PLAIN, False, 1.0, 0.0),
    ("fp64-smooth", (4, 1100), F64, F64, "NCHW", IGNORING, False, 1.0, 0.0),
    ("fp64-long", (1, 16386), F64, F64, "gaps", SMOOTH, False, 1.0, 0.0),
    ("one-class", (3, 1), F32, F32, "NCHW", PLAIN, False, 1.0, 0.0),
    ("no-classes", (3, 0), F32, F32, "NCHW", PLAIN, False, 1.0, 0.0),
    ("empty", (0, 10), F32, F32, "NCHW", PLAIN, False, 1.0, 0.0),
    ("smooth", (7, 40), F32, F32, "NCHW", SMOOTH, False, 1.0, 0.0),
    ("ignored", (12, 4), F32, F32, "NCHW", IGNORING, False, 1.0, 0.5),
    ("probabilities", (5, 37), F32, F32, "gaps", PLAIN, True, 1.0, 0.0),
    ("probabilities-smooth", (3, 1200), F32, F32, "NCHW", SMOOTH, True, 0.5, 1.0),
    ("packs-in-a-block", (2, 1240), F32, F32, "NCHW", IGNORING, False, 2.0, 0.25),
    ("packs-of-probabilities", (3, 64), F32, F32, "NCHW", SMOOTH, True, 1.0, 0.0),
    ("fills-a-block", (1, 32768), F32, F32, "NCHW", PLAIN, False, 1.0, 0.0),
    ("fp16-packs", (5, 104), F16, F16, "NCHW", SMOOTH, False, 2.0, 0.5),
    ("fp16", (6, 10), F16, F16, "NCHW", PLAIN, False, 1.0, 0.0),
    ("fp16-wide-loss", (4, 300), F16, F32, "NCHW", SMOOTH, False, 1.0, 0.5),
    ("fp16-long-probabilities", (1, 32776), F16, F32, "NCHW", PLAIN, True, 1.0, 0.0),
    ("bf16", (3, 1100), BF16, BF16, "NCHW", PLAIN, False, 1.0, 0.0),
    ("bf16-long", (1, 32780), BF16, F32, "NCHW", PLAIN, False, 1.0, 0.25),
    ("bf16-wide-loss", (6, 21), BF16, F32, "gaps", IGNORING, False, 2.0, 0.0),
    ("bf16-probabilities", (3, 50), BF16, BF16, "NCHW", SMOOTH, True, 1.0, 0.0),
)


def _cases() -> tuple[Case, ...]:
    cases = []
    for name, shape, dtype, loss_dtype, layout, settings, probabilities, alpha, beta in TENSORS:
        x, loss = describe(shape, dtype, layout), describe(shape[:1], loss_dtype, layout)
        labels = describe(shape, dtype, layout) if probabilities else describe(shape[:1], DType.INT32, layout)
        forward = CrossEntropyForwardProblem(x, labels, loss, settings)
        backward = CrossEntropyBackwardProblem(x, labels, x, settings)
        cases.append(Case(f"cross-entropy-forward-{name}", forward, alpha, beta))
        cases.append(Case(f"cross-entropy-backward-{name}", backward, alpha, beta))
    return tuple(cases)


CASES = _cases()
