"""Gradients of imported operators, in float64, against differences of what they give: the cases of onnx.backend.test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dnncore import Handle
from dnncore.dtypes import DType
from dnncore.errors import BadParamError
from dnncore.importers.onnx.values import Known
from dnncore.nn import Executor, Graph, Parameters, Value
from dnncore.nn.gradient import differentiate
from dnncore.nn.model import Model
from dnncore.nn.operators import Cast
from tests.importers.onnx.backend import imports_of
from tests.importers.onnx.cases import CASES, DECLARED, Case, feeds_of, reason_of

PAGE = (Path(__file__).parents[3] / "docs/onnx.md").read_text()

WITHOUT = ("ReduceProd", "TopK")
"""Operators whose gradient is refused."""

FLAT = ("Ceil", "Floor", "Round", "Sign")
"""Functions of steps, through which nothing flows."""

NOT_COMPARED = frozenset(
    {
        "And",
        "ArgMax",
        "ArgMin",
        "Constant",
        "ConstantOfShape",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
    }
    | {"Not", "Or", "Range", "Shape", "Size", "Xor"}
    | {"Cast", "CastLike"}
)
"""Operators of whole numbers, bool and shapes; and casts, whose cases have numbers that are not finite, or of 16 bits."""

_STEP, _ALLOWED = 1e-6, 1e-5
_MOST = 3
"""Cases of an operator."""


def _wide(model: Model) -> Model:
    """The model in float64 where it is in float32."""

    def dtype(old: DType) -> DType:
        return DType.FLOAT64 if old is DType.FLOAT32 else old

    graph, cast = model.graph, Cast(DType.FLOAT64.value)
    wide = replace(
        graph,
        inputs=tuple(value._replace(dtype=dtype(value.dtype)) for value in graph.inputs),
        constants=tuple(replace(one, dtype=dtype(one.dtype)) for one in graph.constants),
        nodes=tuple(replace(node, operator=cast) if node.operator == Cast("float32") else node for node in graph.nodes),
    )
    return Model(wide, {name: _widened(array) for name, array in model.weights.items()})


def _widened(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    return array.astype(np.float64) if array.dtype == np.float32 else array


class _Slope:
    """An output of a case, as it follows from its inputs: by a gradient and by a difference. A gradient is of `inputs`."""

    def __init__(self, case: Case, handle: Handle, rng: np.random.Generator) -> None:
        feeds = feeds_of(case)
        imports, rest = imports_of(case.model, feeds)
        wanted = [name for name, found in imports.outputs.items() if not isinstance(found, Known)][:1]
        self.inputs: list[str] = []
        if not wanted:
            return
        self._handle = handle
        self._model = _wide(imports.model(wanted))
        self.graph = self._model.graph
        # Away from what the cases have on purpose: equal numbers, and those at which functions have corners.
        self._feeds = {name: _widened(array) for name, array in rest.items()}
        self._feeds |= {
            name: array + 0.01 * rng.standard_normal(array.shape)
            for name, array in self._feeds.items()
            if array.dtype == np.float64
        }
        if self.graph.values[wanted[0]].dtype is DType.FLOAT64 and all(one.size for one in self._feeds.values()):
            self.inputs = [value.name for value in self.graph.inputs if value.dtype is DType.FLOAT64]

    def difference(self) -> tuple[float, float, float]:
        """The slope along a random direction by the gradient and by a difference, and how much was summed for the first."""
        (output,), rng = self.graph.outputs, np.random.default_rng(1)
        dy = rng.standard_normal(self._run(self.graph, self._feeds)[output].shape)
        directions = {name: rng.standard_normal(self._feeds[name].shape) for name in self.inputs}
        seed = Value("dy of the test", DType.FLOAT64, self.graph.values[output].shape)
        given = replace(self.graph, inputs=(*self.graph.inputs, seed))
        derived = differentiate(given, {output: seed.name}, self.inputs)
        found = self._run(derived.graph, self._feeds | {seed.name: dy})
        products = [found[derived.gradients[name]].reshape(array.shape) * array for name, array in directions.items()]
        there, back = (
            self._run(self.graph, self._feeds | {n: self._feeds[n] + sign * _STEP * d for n, d in directions.items()})
            for sign in (1, -1)
        )
        by_difference = ((there[output] - back[output]) * dy).sum() / (2 * _STEP)
        return sum(one.sum() for one in products), float(by_difference), sum(np.abs(one).sum() for one in products)

    def _run(self, graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        weights = {name: self._model.weights[name] for name in graph.constant}
        with (
            Parameters.upload(self._handle, graph, weights) as parameters,
            Executor(graph, self._handle, parameters, 1) as executor,
        ):
            found = executor.run({value.name: feeds[value.name] for value in graph.inputs})
            return {name: array.copy() for name, array in found.items()}


def _cases(operator: str) -> Iterator[Case]:
    return (case for case in CASES if case.operator == operator and reason_of(case.name) is None)


@pytest.mark.parametrize("operator", sorted(DECLARED - NOT_COMPARED - set(WITHOUT) - set(FLAT)))
def test_the_gradient_of_an_operator_is_its_slope(operator: str) -> None:
    compared = 0
    with Handle("cpu") as handle:
        for case in _cases(operator):
            slope = _Slope(case, handle, np.random.default_rng(0))
            if not slope.inputs:
                continue
            try:
                ours, expected, magnitude = slope.difference()
            except BadParamError as error:
                if "no seed depends on" in str(error):  # an operand that only chooses
                    continue
                raise
            if np.isfinite(ours) and np.isfinite(expected):
                assert abs(ours - expected) <= _ALLOWED * (magnitude + 1), case.name
                compared += 1
            if compared == _MOST:
                return
    assert compared, "no case has a gradient that can be compared"


@pytest.mark.parametrize("operator", WITHOUT)
def test_a_gradient_that_there_is_not_is_refused(operator: str) -> None:
    with Handle("cpu") as handle:
        slope = next(s for case in _cases(operator) if (s := _Slope(case, handle, np.random.default_rng(0))).inputs)
        with pytest.raises(BadParamError, match="has no gradient"):
            slope.difference()


@pytest.mark.parametrize("operator", FLAT)
def test_nothing_flows_through_functions_of_steps(operator: str) -> None:
    with Handle("cpu") as handle:
        slope = next(s for case in _cases(operator) if (s := _Slope(case, handle, np.random.default_rng(0))).inputs)
        with pytest.raises(BadParamError, match="no seed depends on"):
            slope.difference()


def test_the_page_says_what_has_no_gradient() -> None:
    (line,) = (line for line in PAGE.splitlines() if line.startswith("Every operator has a gradient but "))
    assert all(name in line for name in (*WITHOUT, *FLAT))
