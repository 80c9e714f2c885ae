"""The table of docs/onnx.md: by operator, how many cases of onnx.backend.test pass, and why the others do not.

``python -m tests.importers.onnx.table`` writes it; a test says when it is out of date.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from dnncore.importers.onnx.folding import FOLDS
from dnncore.importers.onnx.values import Known
from dnncore.importers.onnx.versions import NEWEST_VERSION
from tests.importers.onnx.backend import imports_of
from tests.importers.onnx.cases import CASES, DECLARED, Case, feeds_of, reason_of

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parents[3] / "docs" / "onnx.md"
_BEGIN, _END = "<!-- made by python -m tests.importers.onnx.table -->", "<!-- end -->"

_MUST = frozenset({
    "Add", "AveragePool", "BatchNormalization", "Cast", "Clip", "Concat", "Constant", "ConstantOfShape", "Conv",
    "ConvTranspose", "Div", "Dropout", "Elu", "Expand", "Flatten", "Gather", "Gemm", "GlobalAveragePool", "GlobalMaxPool",
    "HardSigmoid", "HardSwish", "Identity", "LRN", "LeakyRelu", "LogSoftmax", "MatMul", "MaxPool", "Mul", "PRelu", "Pad",
    "ReduceMean", "Relu", "Reshape", "Shape", "Sigmoid", "Slice", "Softmax", "Split", "Squeeze", "Sub", "Sum", "Tanh",
    "Transpose", "Unsqueeze",
})  # fmt: skip
"""What the convolutional networks of common exporters consist of."""


def _is_folded(case: Case) -> bool:
    """Whether no output is computed by a device: all operands have dtypes that none has, as int64."""
    imports, _ = imports_of(case.model, feeds_of(case))
    return all(isinstance(found, Known) for found in imports.outputs.values())


def _lines() -> list[str]:
    computed, folded = Counter[str](), Counter[str]()
    refused: defaultdict[str, Counter[str]] = defaultdict(Counter)
    must = Counter[bool]()
    kinds: defaultdict[str, Counter[bool]] = defaultdict(Counter)
    for case in CASES:
        reason = reason_of(case.name)
        kinds[case.kind][reason is None] += 1
        if case.kind == "node" and _MUST.issuperset(node.op_type for node in case.model.graph.node):
            must[reason is None] += 1
        if reason is not None:
            refused[case.operator][reason] += 1
        else:
            (folded if _is_folded(case) else computed)[case.operator] += 1
    passed = sum(kinds[kind][True] for kind in kinds)
    by_kind = ", ".join(f"{count[True]} of {count.total()} {kind}" for kind, count in kinds.items())
    lines = [
        f"Of the {len(CASES)} cases whose operators are all in the table, {passed} pass: {by_kind}. Of the {must.total()} node "
        f"cases with nothing but the {len(_MUST)} operators that networks of convolutions consist of, {must[True]} pass.",
        "",
        "| operator | read up to its version of opset | pass on a device | pass, folded | do not pass |",
        "| --- | --- | --- | --- | --- |",
    ]
    for kind in sorted(DECLARED):
        reasons = "; ".join(f"{count}: {reason}" for reason, count in sorted(refused[kind].items()))
        lines.append(f"| {kind} | {NEWEST_VERSION[kind]} | {computed[kind]} | {folded[kind]} | {reasons} |")
    lines += ["", "Only where their operands are constant: " + ", ".join(sorted(FOLDS.keys() - DECLARED)) + "."]
    return lines


def page() -> str:
    """The page with its table made anew."""
    before, rest = PAGE.read_text().split(_BEGIN)
    _, after = rest.split(_END)
    return "\n".join([before + _BEGIN, *_lines(), _END + after])


if __name__ == "__main__":
    PAGE.write_text(page())
