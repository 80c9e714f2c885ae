"""The cases of onnx.backend.test whose operators are all declared, and which of them are refused, with the reason."""

from __future__ import annotations

import fcntl
import hashlib
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test import loader
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from dnncore.cache import write_atomically
from dnncore.importers.onnx.rules import RULES

__all__ = ["CASES", "DECLARED", "REFUSED", "ROUNDED", "Case", "feeds_of", "reason_of", "results_of"]

DECLARED = frozenset({*RULES, "ConstantOfShape", "Range"})
"""Operators that are imported whatever their operands are, but for those that say how large a result is; of `FOLDS` alone the
others are only where these are constant."""

_KINDS = ("node", "pytorch-converted", "pytorch-operator", "simple")

REFUSED: Mapping[str, str] = {
    r"test_equal_string(_broadcast)?": "strings",
    r"test_training_dropout(_default)?(_mask)?": "random numbers",
    r"test_identity_(sequence|opt)": "sequences and optional values",
}
"""What is refused, and why: names of cases as patterns. A test finds patterns that refuse too much."""

ROUNDED: Mapping[str, str] = {
    "test_attention_4d_causal_fp16_expanded": "two of 192 elements of float16 differ by one unit in the last place",
}
"""What is computed, and misses the tolerance of onnx.backend.test, a thousandth, by less than another one."""


@dataclass(frozen=True)
class Case:
    """A case: its name, what it is mainly about, and the model."""

    name: str
    kind: str
    operator: str
    model: ModelProto


def reason_of(name: str) -> str | None:
    """Why a case does not pass; None for one that must."""
    return next((reason for pattern, reason in REFUSED.items() if re.fullmatch(pattern, name)), ROUNDED.get(name))


_KEPT = Path(__file__).parents[3] / ".build/onnx"


@cache
def _cases_of_nodes() -> list[TestCase]:
    """The cases of single operators.

    onnx computes their answers when they are imported, element by element in Python, which takes longer than all that is done with
    them: the first process of a run keeps them for the others, by the versions of what computes them.
    """
    key = hashlib.sha256(f"{onnx.__version__} {np.__version__}".encode() + Path(__file__).read_bytes()).hexdigest()
    path = _KEPT / f"{key[:24]}.pickle"
    _KEPT.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file():
            write_atomically(path, pickle.dumps(_load_node_model_tests()))
    found: list[TestCase] = pickle.loads(path.read_bytes())
    return found


_load_node_model_tests, loader.load_node_model_tests = loader.load_node_model_tests, _cases_of_nodes
"""onnx.backend.test.BackendTest asks for them too."""


@cache
def _tests() -> tuple[tuple[str, TestCase], ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's about values that the cases mean to overflow
        return tuple((kind, case) for kind in _KINDS for case in load_model_tests(kind=kind))


def _found() -> Iterator[Case]:
    for kind, case in _tests():
        model = case.model or onnx.load(Path(case.model_dir or "") / "model.onnx")
        kinds = [node.op_type for node in model.graph.node]
        if DECLARED.issuperset(kinds) and not any(node.domain for node in model.graph.node):
            yield Case(case.name, kind, _main(case.name, kinds), model)


def _main(name: str, kinds: list[str]) -> str:
    """The operator a case is about: the one its name begins with, or the first."""
    letters = re.sub("[^a-z0-9]", "", name.removeprefix("test_").lower())
    named = [kind for kind in sorted(set(kinds), key=len, reverse=True) if letters.startswith(kind.lower())]
    return (named or kinds)[0]


CASES: tuple[Case, ...] = tuple(_found())


def feeds_of(case: Case) -> dict[str, Any]:
    """The inputs of a case's first data set by name."""
    weights = {one.name for one in case.model.graph.initializer}
    names = [one.name for one in case.model.graph.input if one.name not in weights]
    return dict(zip(names, _inputs_of(case.name), strict=True))


def results_of(name: str) -> list[np.ndarray]:
    """What a case of one operator must give for these."""
    (case,) = (case for _, case in _tests() if case.name == name)
    return list((case.data_sets or [([], [])])[0][1])


def _inputs_of(name: str) -> list[object]:
    (case,) = (case for _, case in _tests() if case.name == name)
    if case.data_sets:
        given = case.data_sets[0][0]
        return [numpy_helper.to_array(one) if isinstance(one, TensorProto) else one for one in given]
    folder = next(Path(case.model_dir or "").glob("test_data_set*"))
    found = sorted(folder.glob("input_*.pb"))
    return [numpy_helper.to_array(TensorProto.FromString(path.read_bytes())) for path in found]
