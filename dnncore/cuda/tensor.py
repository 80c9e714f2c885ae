"""Filling a tensor, adding one to another with broadcasting, functions of one and of two, element by element."""

from __future__ import annotations

from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.convert import Convert
from dnncore.cuda.elementwise import Function, elementwise
from dnncore.cuda.transpose import Transpose
from dnncore.descriptors import BinaryOperator, UnaryOperator
from dnncore.dtypes import DType
from dnncore.problems import BinaryProblem, UnaryProblem

__all__ = ["ADD", "BINARY", "FILL", "UNARY"]

_OPERATORS = {operator: i for i, operator in enumerate(BinaryOperator)}
"""`dnncore::BinaryOperator`."""


_FUNCTIONS = {operator: i for i, operator in enumerate(UnaryOperator)}
"""`dnncore::UnaryOperator`."""


def _unary(problem: UnaryProblem) -> tuple[float, float, int]:
    return 0.0, 0.0, _FUNCTIONS[problem.operator]


def _binary(problem: BinaryProblem) -> tuple[float, float, int]:
    return problem.alpha1, problem.alpha2, _OPERATORS[problem.operator]


FILL = elementwise(Function("One", dtypes=tuple(DType)))
ADD: tuple[CudaAlgorithm, ...] = (
    Transpose(),
    *elementwise(Function("Copy", dtypes=tuple(DType))),
    Convert(),
)
UNARY = elementwise(Function("Unary", settings=_unary))
BINARY = elementwise(Function("Binary", settings=_binary))
