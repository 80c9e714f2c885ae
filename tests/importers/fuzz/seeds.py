"""Whole files, of which every case damages one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dnncore.errors import DnncoreError, ModelImportError

__all__ = ["Seed", "Seeds"]

_EVERY = 200
"""Large files come up once in so many cases: they take a hundred times as long as small ones."""


@dataclass(frozen=True)
class Seed:
    """A file that is imported as it stands. Immutable.

    Args:
        name: What it is.
        data: Its bytes.
        load: Imports bytes like these.
        refusal: How it says that it does not.
    """

    name: str
    data: bytes
    load: Callable[[bytes], object]
    refusal: type[DnncoreError] = ModelImportError


@dataclass(frozen=True)
class Seeds:
    """Files of one kind. Immutable.

    Args:
        small: Of some hundred bytes to some kilobytes.
        large: Nets that somebody uses.
    """

    small: Sequence[Seed]
    large: Sequence[Seed]

    def of(self, case: int) -> Seed:
        """The file that a case damages."""
        if self.large and case % _EVERY == 0:
            return self.large[case // _EVERY % len(self.large)]
        return self.small[case % len(self.small)]
