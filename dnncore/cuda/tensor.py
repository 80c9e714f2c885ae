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
from dnncore.cuda.transpose import TRANSPOSES_OF_MEMORY_RATE, Transpose, TransposePairs
from dnncore.descriptors import BinaryOperator, UnaryOperator
from dnncore.problems import BinaryProblem, UnaryProblem

__all__ = ["ADD", "BINARY", "COPY", "COPY_TO_ANOTHER_INNERMOST", "COPY_TO_THE_SAME_INNERMOST", "FILL", "UNARY", "WHERE"]


def _operator(problem: UnaryProblem | BinaryProblem) -> UnaryOperator | BinaryOperator:
    return problem.operator


def _factors(problem: BinaryProblem) -> tuple[float, float]:
    return problem.alpha1, problem.alpha2


def _not_compiled(problem: BinaryProblem) -> str | None:
    names = ", ".join(operator.value for operator in BINARY_OPERATORS)
    return None if problem.operator in BINARY_OPERATORS else f"it computes {names}"


FILL: tuple[CudaAlgorithm, ...] = (*elementwise(Function("One", dtypes=ELEMENT_TYPES)), POINTWISE)
_TRANSPOSES = (TransposePairs(), Transpose())
_COPIES = elementwise(Function("Copy", dtypes=ELEMENT_TYPES, broadcasts=True))
_IN_ONE_ORDER = tuple(each for each in _COPIES if each.wants_one_order)
COPY: tuple[tuple[float, CudaAlgorithm], ...] = tuple(
    sorted(
        (
            *((TRANSPOSES_OF_MEMORY_RATE, each) for each in _TRANSPOSES),
            *((each.of_memory_rate, each) for each in _COPIES),
        ),
        key=lambda pair: -pair[0],
    )
)
"""Those of `ADD` that copy to another layout of the same dtype, each beside the share of the memory's rate that it does not exceed,
the largest first; without workspace. The last takes every layout, in less time than what `ADD` has besides."""

COPY_TO_THE_SAME_INNERMOST = tuple((rate, each) for rate, each in COPY if each not in _TRANSPOSES)
"""The same where no dimensions change places: all but transposes."""

COPY_TO_ANOTHER_INNERMOST = tuple((rate, each) for rate, each in COPY if each not in _IN_ONE_ORDER)
"""The same where another dimension is innermost in the copy: all but what would go through both in one order."""

ADD: tuple[CudaAlgorithm, ...] = (
    *_TRANSPOSES,
    Interleave(),
    *_COPIES,
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
