"""Filling, adding, combining, summing, reducing and multiplying tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from dnncore.descriptors import BinaryOperator, ReduceOperator, UnaryOperator
from dnncore.dtypes import DType
from dnncore.problems import (
    AddProblem,
    BinaryProblem,
    FillProblem,
    MatmulProblem,
    ReduceProblem,
    SumProblem,
    UnaryProblem,
    WhereProblem,
)
from tests.ops.oracle.answer import Tensor, Terms, answers, draw, draw_inputs

__all__: list[str] = []


@answers.register
def _(problem: FillProblem) -> Terms:
    value = torch.ones(problem.y.shape, dtype=torch.float64)
    return value, value, 1


@answers.register
def _(problem: AddProblem, a: Tensor) -> Terms:
    value = a.double().expand(problem.c.shape)
    return value, value.abs(), 1


@answers.register
def _(problem: UnaryProblem, x: Tensor) -> Terms:
    is_softplus = problem.operator is UnaryOperator.SOFTPLUS
    value = (torch.nn.functional.softplus if is_softplus else getattr(torch, problem.operator.value))(x)
    return value, value.abs(), 2


@draw_inputs.register
def _(problem: BinaryProblem, rng: np.random.Generator) -> list[np.ndarray]:
    """Whole numbers of both signs, whose powers are whole and stay below 2^31, and by which one can divide."""
    if problem.a.dtype not in (DType.INT8, DType.UINT8, DType.INT32):
        return [draw(descriptor, rng) for descriptor in problem.inputs]
    exponents = problem.operator is BinaryOperator.POW
    a, b = (
        rng.integers(-12, 13, problem.a.shape),
        rng.choice([0, 1, 2, 4] if exponents else [-3, -2, 1, 5], problem.b.shape),
    )
    if problem.a.dtype is DType.UINT8:
        a, b = abs(a), abs(b)
    return [a.astype(problem.a.dtype.numpy), b.astype(problem.b.dtype.numpy)]


@answers.register
def _(problem: BinaryProblem, a: Tensor, b: Tensor) -> Terms:
    functions = {
        BinaryOperator.ADD: torch.add,
        BinaryOperator.SUB: torch.sub,
        BinaryOperator.MUL: torch.mul,
        BinaryOperator.DIV: torch.div,
        BinaryOperator.MIN: torch.minimum,
        BinaryOperator.MAX: torch.maximum,
        BinaryOperator.FMOD: torch.fmod,
        BinaryOperator.MOD: torch.remainder,
        BinaryOperator.POW: torch.pow,
        BinaryOperator.EQUAL: torch.eq,
        BinaryOperator.NOT_EQUAL: torch.ne,
        BinaryOperator.LESS: torch.lt,
        BinaryOperator.LESS_EQUAL: torch.le,
        BinaryOperator.GREATER: torch.gt,
        BinaryOperator.GREATER_EQUAL: torch.ge,
        BinaryOperator.AND: torch.logical_and,
        BinaryOperator.OR: torch.logical_or,
        BinaryOperator.XOR: torch.logical_xor,
    }
    first, second = (problem.alpha1 * a).expand(problem.c.shape), (problem.alpha2 * b).expand(problem.c.shape)
    value = functions[problem.operator](first, second).double()
    if problem.operator is BinaryOperator.DIV and not problem.c.dtype.is_floating:
        value = value.trunc()
    if (
        problem.operator is BinaryOperator.POW
    ):  # a rounding of the exponent counts as often as its product with a logarithm
        return value, value.abs() * (1 + (second * first.abs().log().clamp(min=-99)).abs()), 2
    is_product = problem.operator in (BinaryOperator.MUL, BinaryOperator.DIV)
    return value, value.abs() if is_product else first.abs() + second.abs(), 2


@answers.register
def _(problem: WhereProblem, condition: Tensor, a: Tensor, b: Tensor) -> Terms:
    value = torch.where(condition != 0, a.double(), b.double()).expand(problem.c.shape)
    return value, value.abs(), 1


@answers.register
def _(problem: SumProblem, x: Tensor) -> Terms:
    axes = [axis for axis, extent in enumerate(problem.y.shape) if extent == 1]
    length = max(math.prod(problem.x.shape[axis] for axis in axes), 1)
    return (x.sum(axes, keepdim=True), x.abs().sum(axes, keepdim=True), length) if axes else (x, x.abs(), 1)


@answers.register
def _(problem: ReduceProblem, x: Tensor) -> Any:
    """Element by element of y, which leaves no doubt about what is reduced and in which order it is counted."""
    value = torch.empty(problem.y.shape, dtype=torch.float64)
    magnitude, index = torch.empty_like(value), torch.full_like(value, -1)
    length = 1
    for place in torch.cartesian_prod(*map(torch.arange, problem.y.shape)).reshape(-1, x.ndim).tolist():
        mine = tuple(
            slice(None) if small == 1 else slice(at, at + 1) for at, small in zip(place, problem.y.shape, strict=True)
        )
        row, at = x[mine].flatten(), tuple(place)
        length = max(row.numel(), 1)
        value[at], magnitude[at], index[at] = _reduced(problem.operator, row)
    terms = (value, magnitude, length)
    return terms if problem.indices is None else [terms, (index, index, 1)]


def _reduced(operator: ReduceOperator, row: Tensor) -> tuple[float, float, int]:
    """Value, magnitude and index."""
    match operator:
        case ReduceOperator.ADD:
            return row.sum(), row.abs().sum(), -1
        case ReduceOperator.AVG:
            return row.mean(), row.abs().mean(), -1
        case ReduceOperator.MUL:
            return row.prod(), row.prod().abs(), -1
        case ReduceOperator.MUL_NO_ZEROS:
            product = row[row != 0].prod()
            return product, product.abs(), -1
        case ReduceOperator.NORM1 | ReduceOperator.NORM2:
            norm = row.norm(p=1 if operator is ReduceOperator.NORM1 else 2)
            return norm, norm, -1
    if operator is ReduceOperator.AMAX:
        row = row.abs()
    if not row.numel():
        empty = math.inf if operator is ReduceOperator.MIN else -math.inf
        return empty, 0.0, -1
    found = row.min() if operator is ReduceOperator.MIN else row.max()
    return found, found.abs(), int((row == found).nonzero()[0])


@answers.register
def _(problem: MatmulProblem, a: Tensor, b: Tensor) -> Terms:
    return a @ b, a.abs() @ b.abs(), max(problem.a.shape[1], 1)
