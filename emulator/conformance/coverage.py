"""Which of the emulator's instructions the checks cover."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Protocol

from emulator.conformance import families
from emulator.conformance.scalar import opcodes
from emulator.conformance.sources import KERNELS, cuda_library

if TYPE_CHECKING:
    from collections.abc import Iterable

_TEXT = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


class Rule(Protocol):
    """A row of the translator's table."""

    opcode: str
    modifiers: str

    def match(self, opcode: str) -> object | None:
        """Not None where the row translates the opcode."""


def emulated() -> list[Rule]:
    """The translator's rows."""
    table: Iterable[Rule] = importlib.import_module("emulator.ptx.instructions").TABLE
    return list(table)


def covered() -> set[str]:
    """The opcodes of all checks: what they say, and what is written in PTX inside the CUDA C++ kernels."""
    words = {word for name in families.NAMES for check in families.load(name).checks for word in check.covers}
    for path in KERNELS.glob("*.cu"):
        source = cuda_library(path.stem).text()
        # Neighbouring literals are one text; %0 and line ends are as good as blanks here.
        for text in _TEXT.findall(re.sub(r'"\s+"', "", source)):
            words.update(opcodes(text.replace("\\n", ";").replace("\\t", " ")))
    return words


def uncovered() -> set[str]:
    """The rows that translate no opcode of any check, as their opcode and modifiers."""
    words = covered()
    found = set()
    for rule in emulated():
        if not any(word.startswith(rule.opcode) and rule.match(word) is not None for word in words):
            found.add(f"{rule.opcode} {rule.modifiers}".strip())
    return found
