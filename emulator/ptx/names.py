"""PTX names to C++ ones, and the scopes that registers, variables and labels live in."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache

from emulator.ptx.syntax import Variable

__all__ = ["Names", "Register", "Scope", "identifier"]


@cache  # registers of all functions have the same names
def identifier(name: str) -> str:
    """A C++ identifier that reads like the PTX name. A trailing underscore keeps %f32 and the type f32 apart."""
    return re.sub(r"\W", "_", name.lstrip("%").replace("$", "_")) + "_"


@dataclass(frozen=True, slots=True)
class Register:
    """A declared register and its C++ variable."""

    variable: str
    type: str


@dataclass(slots=True)
class Scope:
    """What a block declares, by PTX name: variables and labels with their C++ names."""

    registers: dict[str, Register] = field(default_factory=dict)
    variables: dict[str, tuple[Variable, str]] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Names:
    """C++ names of one function, each given once. Owned by one writer."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def new(self, name: str) -> str:
        """A C++ name for a declaration: blocks may declare what an outer one has."""
        base = identifier(name)
        count = self._taken[base] = self._taken.get(base, 0) + 1
        return base if count == 1 else f"{base}{count}"
