"""How the makers of descriptors read what they are given: one number or a sequence, a member of an enum or its name."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeVar

import numpy as np

from dnncore.errors import BadParamError

__all__ = ["Pairs", "each", "member", "pairs"]

Pairs = tuple[tuple[int, int], ...]
_Member = TypeVar("_Member", bound=Enum)


def member(kind: type[_Member], value: _Member | str) -> _Member:
    """The member of an enum that a value stands for.

    Raises:
        BadParamError: it stands for none; the message lists those there are.
    """
    try:
        return kind(value)
    except ValueError as error:
        names = ", ".join(str(member.value) for member in kind)
        raise BadParamError(f"{value!r} is no {kind.__name__}; use one of {names}") from error


def each(value: int | Sequence[int], spatial_ndim: int, what: str) -> tuple[int, ...]:
    """One number a spatial dimension, from one for all or a sequence of them."""
    values = (value,) * spatial_ndim if isinstance(value, int | np.integer) else tuple(int(v) for v in value)
    if len(values) != spatial_ndim:
        raise BadParamError(f"{what} {value} must be one number or {spatial_ndim}, one a spatial dimension")
    return values


def pairs(value: int | Sequence[int | tuple[int, int]], spatial_ndim: int, what: str) -> Pairs:
    """A pair (before, after) a spatial dimension; a single number stands for both."""
    values = (value,) * spatial_ndim if isinstance(value, int | np.integer) else tuple(value)
    if len(values) != spatial_ndim:
        raise BadParamError(f"{what} {value} must be one number or {spatial_ndim}, one a spatial dimension")
    pairs = []
    for each in values:
        before, *after = (each, each) if isinstance(each, int | np.integer) else each
        if len(after) != 1:
            raise BadParamError(f"{what} {value} has {each}; a number or a pair (before, after) is needed")
        pairs.append((int(before), int(after[0])))
    return tuple(pairs)
