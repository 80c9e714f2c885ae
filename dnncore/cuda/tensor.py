"""Filling a tensor, adding one to another with broadcasting, functions of one and of two, element by element."""

from __future__ import annotations

from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.convert import Convert
from dnncore.cuda.convert_dense import ConvertDense
from dnncore.cuda.convert_transposed import ConvertTransposed
from dnncore.cuda.elementwise import BINARY_OPERATORS, Function, elementwise
from dnncore.cuda.interleave import Interleave
from dnncore.cuda.params import ELEMENT_TYPES
from dnncore.cuda.pointwise import POINTWISE
from dnncore.cuda.transpose import Transpose, TransposePairs
from dnncore.descriptors import BinaryOperator, UnaryOperator
from dnncore.problems import BinaryProblem, UnaryProblem

__all__ = ["ADD", "BINARY", "FILL", "UNARY", "WHERE"]


def _operator(problem: UnaryProblem | BinaryProblem) -> UnaryOperator | BinaryOperator:
    return problem.operator


def _factors(problem: BinaryProblem) -> tuple[float, float]:
    return problem.alpha1, problem.alpha2


def _not_compiled(problem: BinaryProblem) -> str | None:
    names = ", ".join(operator.value for operator in BINARY_OPERATORS)
    return None if problem.operator in BINARY_OPERATORS else f"it computes {names}"


FILL: tuple[CudaAlgorithm, ...] = (*elementwise(Function("One", dtypes=ELEMENT_TYPES)), POINTWISE)
ADD: tuple[CudaAlgorithm, ...] = (
    TransposePairs(),
    Transpose(),
    Interleave(),
    *elementwise(Function("Copy", dtypes=ELEMENT_TYPES, broadcasts=True)),
    ConvertDense(),
    ConvertTransposed(),
    Convert(),
    POINTWISE,
)
UNARY = elementwise(Function("Unary", kinds=tuple(UnaryOperator), kind=_operator))
BINARY: tuple[CudaAlgorithm, ...] = (
    *elementwise(
        Function(
            "Binary",
            kinds=BINARY_OPERATORS,
            kind=_operator,
            settings=_factors,
            refuses=_not_compiled,
            broadcasts=True,
        )
    ),
    POINTWISE,
)
WHERE: tuple[CudaAlgorithm, ...] = (
    *elementwise(Function("Where", dtypes=ELEMENT_TYPES, broadcasts=True, is_conditional=True)),
    POINTWISE,
)
