"""Sums of products over dimensions with letters, as transpositions, reshapes and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.values import Computed, Imported
from dnncore.nn.graph import Role
from dnncore.nn.operators import MatrixProduct, Reduce, Transpose

__all__ = ["RULES"]


def _einsum(call: Call) -> Sequence[Imported]:
    """Of one or two operands, none of which has a letter twice."""
    equation = call.attributes.text("equation", "").replace(" ", "")
    terms, result = _parsed(equation)
    if len(terms) != len(call.inputs):
        raise BadParamError(f"equation {equation!r} is of {len(terms)} operands, there are {len(call.inputs)}")
    operands = [call.tensor(index, Role.TRAINABLE) for index in range(len(terms))]
    _check(equation, terms, operands)
    if len(operands) == 1:
        return (_ordered(call, *_summed(call, operands[0], terms[0], result), result),)
    (a, left), (b, right) = (
        _summed(call, x, term, result + other) for x, term, other in zip(operands, terms, reversed(terms), strict=True)
    )
    return (_ordered(call, *_product(call, a, left, b, right, result), result),)


def _parsed(equation: str) -> tuple[list[str], str]:
    """The letters of each operand and of the result.

    Raises:
        NotSupportedError: a letter is in one of them twice, there are more than two operands, or it has an ellipsis.
        BadParamError: it makes no sense.
    """
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if "." in equation or len(terms) > 2 or any(len(set(term)) < len(term) for term in (*terms, result)):
        raise NotSupportedError(
            f"equation {equation!r} must be of one or two operands, without an ellipsis, and with no letter twice in one"
        )
    if not arrow:
        result = "".join(sorted(letter for letter in {*left} - {","} if left.count(letter) == 1))
    if not all(letter.isalpha() for letter in (*"".join(terms), *result)) or not {*result} <= {*left}:
        raise BadParamError(f"equation {equation!r} makes no sense")
    return terms, result


def _check(equation: str, terms: Sequence[str], operands: Sequence[Computed]) -> None:
    """Refuse operands whose extents do not fit.

    Raises:
        BadParamError: a letter stands for two extents, or an operand has not as many dimensions as letters.
    """
    extents: dict[str, tuple[int, int]] = {}
    for term, x in zip(terms, operands, strict=True):
        pairs = list(zip(*x.shapes, strict=True))
        if len(term) != len(pairs) or any(
            extents.setdefault(letter, pair) != pair for letter, pair in zip(term, pairs, strict=False)
        ):
            raise BadParamError(f"equation {equation!r} does not fit {', '.join(map(str, operands))}")


def _summed(call: Call, x: Computed, letters: str, wanted: str) -> tuple[Computed, str]:
    """x summed over the letters that nobody wants, and those that are left."""
    over = tuple(axis for axis, letter in enumerate(letters) if letter not in wanted)
    left = "".join(letter for letter in letters if letter in wanted)
    return call.emit(Reduce("add", over, False), x) if over else x, left


def _ordered(call: Call, x: Computed, letters: str, wanted: str) -> Computed:
    """x with its dimensions in another order."""
    order = tuple(letters.index(letter) for letter in wanted)
    return x if letters == wanted else call.emit(Transpose(order), x)


def _product(call: Call, x: Computed, left: str, y: Computed, right: str, result: str) -> tuple[Computed, str]:
    """Products of two operands summed over the letters that both have and the result has not, and the letters of what comes out."""
    shared = "".join(letter for letter in left if letter in right and letter in result)
    inner = "".join(letter for letter in left if letter in right and letter not in result)
    rows, columns = ("".join(letter for letter in term if letter not in shared + inner) for term in (left, right))
    few, many = (dict(zip(left + right, (*a, *b), strict=True)) for a, b in zip(x.shapes, y.shapes, strict=True))

    def reshaped(value: Computed, *groups: str) -> Computed:
        """With the dimensions of the shared letters, and one for each group of others."""
        return call.reshape(
            value,
            *([math.prod(of[letter] for letter in group) for group in (*shared, *groups)] for of in (few, many)),
        )

    x = reshaped(_ordered(call, x, left, shared + rows + inner), rows, inner)
    y = reshaped(_ordered(call, y, right, shared + inner + columns), inner, columns)
    return reshaped(call.emit(MatrixProduct(), x, y), *rows, *columns), shared + rows + columns


RULES: Mapping[str, Rule] = {"Einsum": _einsum}
