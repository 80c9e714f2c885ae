"""Filling a tensor, adding one to another with broadcasting, and combining two, element by element."""

from __future__ import annotations

from dnncore.cuda.algorithm import CudaAlgorithm
from dnncore.cuda.convert import Convert
from dnncore.cuda.elementwise import Function, elementwise
from dnncore.cuda.transpose import Transpose
from dnncore.descriptors import BinaryOperator
from dnncore.dtypes import DType
from dnncore.problems import BinaryProblem

__all__ = ["ADD", "BINARY", "FILL"]

_OPERATORS = {operator: i for i, operator in enumerate(BinaryOperator)}
"""`dnncore::BinaryOperator`."""


def _binary(problem: BinaryProblem) -> tuple[float, float, int]:
    return problem.alpha1, problem.alpha2, _OPERATORS[problem.operator]


FILL = elementwise(Function("One", dtypes=tuple(DType)))
ADD: tuple[CudaAlgorithm, ...] = (
    Transpose(),
    *elementwise(Function("Copy", dtypes=tuple(DType))),
    Convert(),
)
BINARY = elementwise(Function("Binary", settings=_binary))
