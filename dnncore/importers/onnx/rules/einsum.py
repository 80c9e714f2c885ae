"""Sums of products over dimensions with letters, as transpositions, reshapes and products of matrices."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from dnncore.errors import BadParamError, NotSupportedError
from dnncore.importers.onnx.conversion import Call
from dnncore.importers.onnx.rules.rule import Rule
from dnncore.importers.onnx.values import Computed, Imported
from dnncore.nn.graph import Role
from dnncore.nn.operators import MatrixProduct, Reduce, Slice, Transpose

__all__ = ["RULES"]


_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")
_ELLIPSIS = "..."
_FIRST = 0x100
"""Characters from here on are the letters of dimensions that an ellipsis stands for."""

_ONE = (1, 1)
"""An extent of 1, whatever the batch."""


def _einsum(call: Call) -> Sequence[Imported]:
    """Of one or two operands."""
    equation = call.attributes.text("equation", "").replace(" ", "")
    terms, result = _parsed(equation)
    if len(terms) != len(call.inputs):
        raise BadParamError(f"equation {equation!r} is of {len(terms)} operands, there are {len(call.inputs)}")
    operands = [call.tensor(index, Role.TRAINABLE) for index in range(len(terms))]
    terms, result = _spelled_out(equation, terms, result, operands)
    _check(equation, terms, operands)
    parts = [_diagonal(call, x, term) for x, term in zip(operands, terms, strict=True)]
    if len(parts) == 1:
        ((x, term),) = parts
        return (_ordered(call, *_summed(call, x, term, result), result),)
    (a, left), (b, right) = (
        _not_broadcast(call, *part, *other) for part, other in zip(parts, reversed(parts), strict=True)
    )
    a, left = _summed(call, a, left, result + right)
    b, right = _summed(call, b, right, result + left)
    return (_ordered(call, *_product(call, a, left, b, right, result), result),)


def _parsed(equation: str) -> tuple[list[str], str]:
    """The letters of each operand and of the result, where "..." may stand for more of them.

    Raises:
        NotSupportedError: there are more than two operands.
        BadParamError: it makes no sense.
    """
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if len(terms) > 2:
        raise NotSupportedError(f"equation {equation!r} must be of one or two operands")
    if not arrow:
        letters = sorted(letter for letter in {*left} - {*",."} if left.count(letter) == 1)
        result = _ELLIPSIS * (_ELLIPSIS in left) + "".join(letters)
    letters = [letter for letter in result if letter != "."]
    if (
        not all(_TERM.fullmatch(term) for term in (*terms, result))
        or not {*result} <= {*left}
        or len(letters) > len({*letters})
    ):
        raise BadParamError(f"equation {equation!r} makes no sense")
    return terms, result


def _spelled_out(
    equation: str, terms: Sequence[str], result: str, operands: Sequence[Computed]
) -> tuple[list[str], str]:
    """Operands and result with letters of their own in place of the ellipses.

    Raises:
        BadParamError: an operand has fewer dimensions than letters, ellipses stand for different numbers of dimensions, or the
            result lacks them.
    """
    counts = {
        x.ndim - len(term.replace(_ELLIPSIS, "")) for x, term in zip(operands, terms, strict=True) if _ELLIPSIS in term
    } or {0}
    if len(counts) > 1 or min(counts) < 0:
        raise BadParamError(f"equation {equation!r} does not fit {', '.join(map(str, operands))}")
    (count,) = counts
    if count and _ELLIPSIS not in result:
        raise BadParamError(f"equation {equation!r} leaves out of its result what the ellipsis stands for")
    letters = "".join(chr(_FIRST + place) for place in range(count))
    return [term.replace(_ELLIPSIS, letters) for term in terms], result.replace(_ELLIPSIS, letters)


def _check(equation: str, terms: Sequence[str], operands: Sequence[Computed]) -> None:
    """Refuse operands whose extents do not fit.

    Raises:
        BadParamError: a letter stands for two extents, or an operand has not as many dimensions as letters. Of an ellipsis one of
            them may be 1.
    """
    extents: dict[str, tuple[int, int]] = {}
    for term, x in zip(terms, operands, strict=True):
        pairs = list(zip(*x.shapes, strict=True))
        fits = len(term) == len(pairs)
        for letter, pair in zip(term, pairs, strict=False):
            known = extents.setdefault(letter, pair)
            if ord(letter) >= _FIRST and _ONE in (known, pair):
                extents[letter] = max(known, pair)
            else:
                fits = fits and known == pair
        if not fits:
            raise BadParamError(f"equation {equation!r} does not fit {', '.join(map(str, operands))}")


def _diagonal(call: Call, x: Computed, letters: str) -> tuple[Computed, str]:
    """x with one dimension for each letter, and the letters: of those that it has twice, the elements whose indices are the same.

    Raises:
        NotSupportedError: the extent of such a letter depends on the batch.
    """
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            one = letters.index(letter)
            other = letters.index(letter, one + 1)
            few, many = (shape[one] for shape in x.shapes)
            if few != many:
                raise NotSupportedError(f"{letter!r} twice in {letters!r}: its extent depends on the batch")
            others = [axis for axis in range(len(letters)) if axis not in (one, other)]
            x = (
                call.emit(Transpose((*others, one, other)), x)
                if (one, other) != (len(letters) - 2, len(letters) - 1)
                else x
            )
            letters = "".join(letters[axis] for axis in others) + letter
            x = call.reshape(x, *((*shape[:-2], few * few) for shape in x.shapes))
            x = call.emit(Slice(len(letters) - 1, 0, few * few, few + 1), x)
    return x, letters


def _not_broadcast(call: Call, x: Computed, letters: str, other: Computed, theirs: str) -> tuple[Computed, str]:
    """x without the dimensions of 1 along which the other operand has more, and its letters."""
    extents = dict(zip(theirs, zip(*other.shapes, strict=True), strict=True))
    own = zip(letters, zip(*x.shapes, strict=True), strict=True)
    kept = [axis for axis, (letter, pair) in enumerate(own) if pair != _ONE or extents.get(letter, pair) == pair]
    shapes = ([shape[axis] for axis in kept] for shape in x.shapes)
    return call.reshape(x, *shapes), "".join(letters[axis] for axis in kept)


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
