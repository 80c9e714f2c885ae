"""How descriptors and problems read what they are given: any numbers, one or a sequence, a member of an enum or its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from math import ldexp
from operator import attrgetter, index
from typing import Any, TypeVar

import numpy as np

from dnncore.errors import BadParamError

__all__ = ["HashedOnce", "Pairs", "each", "member", "number", "pairs", "settle", "whole", "whole_pairs", "wholes"]


class HashedOnce:
    """A frozen value that remembers its hash: descriptors are in the key of every launch. Immutable.

    A dataclass takes it by `__hash__ = HashedOnce.__hash__` in its own body. The hash is no field: it is neither compared nor
    pickled.
    """

    __slots__ = ("_hash",)
    __match_args__: tuple[str, ...]
    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            found = hash(_values(self.__match_args__)(self))
            object.__setattr__(self, "_hash", found)
            return found


@cache
def _values(names: tuple[str, ...]) -> Callable[[object], Any]:
    """What gives all fields of such names at once; of a single one, that."""
    return attrgetter(*names)


Pairs = tuple[tuple[int, int], ...]
_Member = TypeVar("_Member", bound=Enum)


def member(kind: type[_Member], value: _Member | str) -> _Member:
    """The member of an enum that a value stands for.

    Raises:
        BadParamError: it stands for none; the message lists those there are.
    """
    if isinstance(value, kind):
        return value
    try:
        return kind(value)
    except ValueError as error:
        names = ", ".join(str(member.value) for member in kind)
        raise BadParamError(f"{value!r} is no {kind.__name__}; use one of {names}") from error


def settle(frozen: object, **fields: object) -> None:
    """Give fields of a frozen value, while it is made, what they stand for: members for text, plain integers for NumPy's."""
    for name, value in fields.items():
        object.__setattr__(frozen, name, value)


def whole(value: int, what: str) -> int:
    """A plain integer, which NumPy's fixed widths cannot overflow.

    Raises:
        BadParamError: it is no integer; the message gives its name and value.
    """
    try:
        return index(value)
    except TypeError as error:
        raise BadParamError(f"{what} {value!r} must be an integer") from error


def number(value: float, what: str) -> float:
    """A plain float, from a number of any kind, NaN and infinities among them.

    Raises:
        BadParamError: it is no real number; the message gives its name and value.
    """
    try:
        return ldexp(value, 0)  # as float(value), but that reads text as well
    except (TypeError, ValueError, OverflowError) as error:
        raise BadParamError(f"{what} {value!r} must be a number") from error


def wholes(values: Sequence[int], what: str) -> tuple[int, ...]:
    """Plain integers, from any sequence of integers."""
    try:
        return tuple(map(index, values))
    except TypeError as error:
        raise BadParamError(f"{what} {values!r} must be a sequence of integers") from error


def whole_pairs(values: Sequence[tuple[int, int]], what: str) -> Pairs:
    """Plain integers in pairs (before, after)."""
    try:
        return tuple((index(before), index(after)) for before, after in values)
    except (TypeError, ValueError) as error:
        raise BadParamError(f"{what} {values!r} must be pairs (before, after) of integers") from error


def each(value: int | Sequence[int], spatial_ndim: int, what: str) -> tuple[int, ...]:
    """One number a spatial dimension, from one for all or a sequence of them."""
    return wholes(_spread(value, spatial_ndim, what), what)


def pairs(value: int | Sequence[int | tuple[int, int]], spatial_ndim: int, what: str) -> Pairs:
    """A pair (before, after) a spatial dimension; a single number stands for both."""
    values: list[Any] = [
        (one, one) if isinstance(one, int | np.integer) else one for one in _spread(value, spatial_ndim, what)
    ]
    return whole_pairs(values, what)


def _spread(value: Any, spatial_ndim: int, what: str) -> tuple[Any, ...]:
    spatial_ndim = whole(spatial_ndim, "spatial_ndim")
    try:
        values = (value,) * spatial_ndim if isinstance(value, int | np.integer) else tuple(value)
    except TypeError as error:
        raise BadParamError(f"{what} {value!r} must be an integer or a sequence") from error
    if len(values) != spatial_ndim:
        raise BadParamError(f"{what} {value} must be one number or {spatial_ndim}, one per spatial dimension")
    return values
